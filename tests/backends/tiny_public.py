"""What weft exports (PUBLIC), and where the makers of its tiny calls are kept (CASES)."""

import inspect

import weft
from weft import ops
from weft.core import dtypes as dt
from weft.tensor import torch_functions

I32, F32 = dt.int32, dt.float32


# PyTorch's names, which call functions that have cases here (tests/tensor/test_torch_names.py).
_SPELLINGS = ("weft.tensor.torch_names", "weft.tensor.torch_shapes")
_ALIASES = ("swapaxes", "swapdims", "take_along_dim")


def _spelled(name, value):
    home, _, last = name.rpartition(".")
    if home == "Tensor":
        return last in _ALIASES or getattr(inspect.unwrap(value), "__module__", "") in _SPELLINGS
    return home == "weft" and last in vars(torch_functions)


def _exported():
    found = {}
    for name in weft.__all__:
        value = getattr(weft, name)
        if callable(value) and not isinstance(value, type | weft.DType):
            found[f"weft.{name}"] = value
    for name, value in vars(weft.functional).items():
        here = inspect.isfunction(value) and "weft.tensor" in value.__module__
        if here and not name.startswith("_"):
            found[f"functional.{name}"] = value
    for name in dir(weft.Tensor):
        value = getattr(weft.Tensor, name)
        if inspect.isfunction(value) and (name[0] != "_" or name[:2] == "__"):
            found[f"Tensor.{name}"] = value
    return {name: value for name, value in found.items() if not _spelled(name, value)}


BLOCK = 256  # the least that compiling cuts a row, or a cache, into


def scan_in_blocks(x, *factor, op, axis, exclusive, reverse):
    """A scan as compiling a long one makes it."""
    values, cut = [t.value for t in (x, *factor)], {"reverse": reverse, "block": BLOCK}
    start = {"op": op, "axis": axis, "exclusive": exclusive}
    totals = ops.call("scan_totals", *values, op=op, axis=axis, **cut)
    carries = ops.call("scan_carries", totals, **start)
    return weft.Tensor(ops.call("scan_blocks", *values, carries, **cut, **start))


def product_in_blocks(x, axis):
    cut = {"op": "prod", "axis": axis, "reverse": False, "block": BLOCK}
    totals = ops.call("scan_totals", x.value, **cut)
    joined = ops.call("scan_joined", totals, op="prod", axis=axis, dtype=x.dtype)
    return weft.Tensor(joined)


def attention_in_parts(*operands, **params):
    """Attention to a cache as compiling makes it for a long one."""
    values = [t.value for t in operands]
    parts = ops.call("cached_attention_parts", *values, part=BLOCK, **params)
    return weft.Tensor(ops.call("attention_merge", *parts))


# Made after gradients are, so without any of their own.
OWN = {f.__name__: f for f in (scan_in_blocks, product_in_blocks, attention_in_parts)}
PUBLIC = _exported() | OWN

# What gives the device nothing to compute, by the last part of the name.
_HOST = (
    "compile trace load load_tensors save devices finfo iinfo result_type can_cast "
    "isdtype __array_namespace_info__ manual_seed no_grad "
    "enable_grad grad "
    "is_grad_enabled value_and_grad from_dlpack "
    "item numpy tolist to to_ to_device cpu sync backward register_hook "
    "register_post_accumulate_grad_hook retain_grad requires_grad_ assign detach "
    "__array__ __array_function__ __array_namespace__ "
    "__complex__ __bool__ __dlpack__ __dlpack_device__ __float__ __index__ "
    "__format__ __init__ __int__ __len__ __repr__ __copy__ __deepcopy__ __reduce__"
)
HOST = set(_HOST.split())

CASES = {}  # by the last part of the name, or by all of it


def case(*names):
    """Decorates the maker for these names."""

    def keep(maker):
        for name in names:
            for one in name.split():
                assert one not in CASES, one
                CASES[one] = maker
        return maker

    return keep
