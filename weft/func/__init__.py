"""Transforms of functions, as in torch.func: derivatives, maps over batches, and modules as
functions of their parameters. They nest in any order, run eagerly on any device and inside
weft.compile, and take compiled functions, which they run as a part of their own.
"""

from weft.func.jacobians import grad, grad_and_value, hessian, jacfwd, jacrev
from weft.func.modules import functional_call, stack_module_state
from weft.func.vmap import vmap
from weft.host.boundary import guard_calls as _guard_calls, takes_function as _takes_function
from weft.tensor.derivatives import jvp, linearize, value_and_grad, vjp

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "value_and_grad", "vjp", "vmap",
]  # fmt: skip

_guard_calls(globals(), ["functional_call"])
_guard_calls(globals(), ["stack_module_state"], deep=True)
for _name in __all__:
    if _name not in ("functional_call", "stack_module_state"):
        globals()[_name] = _takes_function(globals()[_name])
