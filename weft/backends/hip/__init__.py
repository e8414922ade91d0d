"""AMD GPUs through HIP (package rocm-bindings-hip, of hip-python)."""

from weft.backends.hip.driver import HipApi, open_device, probe

__all__ = ["HipApi", "open_device", "probe"]
