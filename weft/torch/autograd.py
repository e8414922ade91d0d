"""torch.autograd: derivatives by weft's tape."""

from weft.torch.runtime import grad as grad
