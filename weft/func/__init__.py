"""Transforms of functions, as in torch.func: derivatives, maps over batches, and modules as
functions of their parameters. They nest in any order, run eagerly on any device and inside
weft.compile, and take compiled functions, which they run as a part of their own.
"""

from weft.func.jacobians import grad, grad_and_value, hessian, jacfwd, jacrev
from weft.func.modules import functional_call, stack_module_state
from weft.func.vmap import vmap
from weft.tensor.derivatives import jvp, linearize, value_and_grad, vjp

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "value_and_grad", "vjp", "vmap",
]  # fmt: skip
