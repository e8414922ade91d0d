"""torch.signal: windows."""

from weft.torch.signal import windows as windows
