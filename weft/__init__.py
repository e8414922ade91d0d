"""weft: write a tensor program or a transformer once; run the same Program on every device.

Names load when they are first used, so `import weft` costs next to nothing. `weft.compile` is the
function; the package of that name is reached by `from weft.compile import ...`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_CREATE = (
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like",
    "tril", "triu", "zeros", "zeros_like",
)  # fmt: skip
_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64",
)  # fmt: skip

_GRADIENTS = (
    "checkpoint", "enable_grad", "grad", "is_grad_enabled", "no_grad", "value_and_grad",
)  # fmt: skip

# The array API's functions (design: names follow it where it has one).
_ANGLES = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh", "tan",
)  # fmt: skip
_ELEMENTWISE = (
    "abs", "add", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "copysign", "cos", "divide", "equal", "erf", "exp", "expm1", "floor",
    "floor_divide", "greater", "greater_equal", "hypot", "isfinite", "isinf", "isnan", "less",
    "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "not_equal",
    "positive", "pow", "reciprocal", "remainder", "round", "rsqrt", "sigmoid", "sign", "signbit",
    "sin", "sqrt", "square", "subtract", "tanh", "trunc",
)  # fmt: skip
_ARRAYS = (
    "asarray", "astype", "broadcast_arrays", "broadcast_to", "concat", "e", "expand_dims", "finfo",
    "flip", "iinfo", "inf", "matrix_transpose", "meshgrid", "moveaxis", "nan", "newaxis",
    "permute_dims", "pi", "repeat", "reshape", "result_type", "roll", "squeeze", "tile", "unstack",
)  # fmt: skip
_FOLDING = (
    "all", "any", "argmax", "argmin", "argsort", "count_nonzero", "cumulative_prod",
    "cumulative_sum", "diff",
    "matmul", "max", "mean", "min", "nonzero", "prod", "sort", "std", "sum", "take",
    "take_along_axis", "tensordot", "topk", "unique_values", "var", "vecdot",
)  # fmt: skip

_HOME = {
    **dict.fromkeys(("Tensor", "tensor", "from_dlpack"), "weft.tensor.core"),
    **dict.fromkeys(("Spec", "trace"), "weft.tensor.trace"),
    **dict.fromkeys(_CREATE, "weft.tensor.create"),
    **dict.fromkeys(("rand", "randn", "randint", "manual_seed"), "weft.tensor.random"),
    **dict.fromkeys(("cat", "stack", "broadcast_tensors"), "weft.tensor.shapes"),
    **dict.fromkeys(("where", "one_hot"), "weft.tensor.functional"),
    **dict.fromkeys(_ANGLES, "weft.tensor.angles"),
    **dict.fromkeys(_ELEMENTWISE, "weft.tensor.elementwise"),
    **dict.fromkeys(_ARRAYS, "weft.tensor.arrays"),
    **dict.fromkeys(_FOLDING, "weft.tensor.folding"),
    "einsum": "weft.tensor.einsum",
    **dict.fromkeys(_GRADIENTS, "weft.tensor.autograd"),
    **dict.fromkeys((*_DTYPES, "DType"), "weft.core.dtypes"),
    "autocast": "weft.tensor.autocast",
    "compile": "weft.tensor.compiled",
    "devices": "weft.backends.registry",
    "load": "weft.models",
    "Program": "weft.program.program",
}
_MODULES = {
    "functional": "weft.tensor.functional",
    "errors": "weft.errors",
    "nn": "weft.nn",
    "optim": "weft.optim",
}
_RENAMED = {"bool": ("weft.core.dtypes", "bool_")}

_CALLING_BACK = ("checkpoint", "trace")  # users' own functions, whose errors are theirs

__all__ = sorted([*_HOME, *_MODULES, *_RENAMED])

if TYPE_CHECKING:
    from weft import errors as errors
    from weft import nn as nn
    from weft import optim as optim
    from weft.backends.registry import devices as devices
    from weft.core.dtypes import DType as DType
    from weft.core.dtypes import bfloat16 as bfloat16
    from weft.core.dtypes import float16 as float16
    from weft.core.dtypes import float32 as float32
    from weft.core.dtypes import float64 as float64
    from weft.core.dtypes import int8 as int8
    from weft.core.dtypes import int32 as int32
    from weft.core.dtypes import int64 as int64
    from weft.core.dtypes import uint8 as uint8
    from weft.core.dtypes import uint32 as uint32
    from weft.models import load as load
    from weft.program.program import Program as Program
    from weft.tensor import functional as functional
    from weft.tensor.angles import *  # noqa: F403
    from weft.tensor.arrays import *  # noqa: F403
    from weft.tensor.autocast import autocast as autocast
    from weft.tensor.autograd import checkpoint as checkpoint
    from weft.tensor.autograd import enable_grad as enable_grad
    from weft.tensor.autograd import grad as grad
    from weft.tensor.autograd import is_grad_enabled as is_grad_enabled
    from weft.tensor.autograd import no_grad as no_grad
    from weft.tensor.autograd import value_and_grad as value_and_grad
    from weft.tensor.compiled import compile as compile
    from weft.tensor.core import Tensor as Tensor
    from weft.tensor.core import from_dlpack as from_dlpack
    from weft.tensor.core import tensor as tensor
    from weft.tensor.create import arange as arange
    from weft.tensor.create import empty as empty
    from weft.tensor.create import empty_like as empty_like
    from weft.tensor.create import eye as eye
    from weft.tensor.create import full as full
    from weft.tensor.create import full_like as full_like
    from weft.tensor.create import linspace as linspace
    from weft.tensor.create import ones as ones
    from weft.tensor.create import ones_like as ones_like
    from weft.tensor.create import tril as tril
    from weft.tensor.create import triu as triu
    from weft.tensor.create import zeros as zeros
    from weft.tensor.create import zeros_like as zeros_like
    from weft.tensor.einsum import einsum as einsum
    from weft.tensor.elementwise import *  # noqa: F403
    from weft.tensor.folding import *  # noqa: F403
    from weft.tensor.functional import one_hot as one_hot
    from weft.tensor.functional import where as where
    from weft.tensor.random import manual_seed as manual_seed
    from weft.tensor.random import rand as rand
    from weft.tensor.random import randint as randint
    from weft.tensor.random import randn as randn
    from weft.tensor.shapes import broadcast_tensors as broadcast_tensors
    from weft.tensor.shapes import cat as cat
    from weft.tensor.shapes import stack as stack
    from weft.tensor.trace import Spec as Spec
    from weft.tensor.trace import trace as trace


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    home, attribute = _RENAMED.get(name, (_HOME.get(name), name))
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    value = getattr(import_module(home), attribute)
    if isinstance(value, FunctionType) and name not in _CALLING_BACK:
        from weft.core.boundary import guarded

        value = guarded(value)
    ModuleType.__setattr__(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """weft itself. Importing a submodule sets it as an attribute of its package; for the public
    functions that share a submodule's name (`weft.compile`, `weft.tensor`) that is ignored, so
    that `weft.compile(fn)` works in whatever order things are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
