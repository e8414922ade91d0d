"""A tiny call of every public function: name -> maker(draw, function) -> (call, arrays).

`call` takes a tensor for each array and gives a tensor or several. PUBLIC lists what weft exports,
as it exports it; a name that is neither in CASES nor in HOST fails test_wgsl_tiny.py.
"""

import inspect

import numpy as np

import weft
from weft import ops
from weft.core import dtypes as dt

I32, F32 = dt.int32, dt.float32


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
    return found


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
    return weft.Tensor(ops.call("attention_merge", parts))


# Made after gradients are, so without any of their own.
OWN = {f.__name__: f for f in (scan_in_blocks, product_in_blocks, attention_in_parts)}
PUBLIC = _exported() | OWN

# What gives the device nothing to compute, by the last part of the name.
_HOST = (
    "compile trace load devices finfo iinfo result_type manual_seed no_grad enable_grad grad "
    "is_grad_enabled value_and_grad from_dlpack autocast_dtype narrowed widened values "
    "item numpy tolist to to_ cpu sync backward requires_grad_ assign detach "
    "__array__ __array_function__ __bool__ __dlpack__ __dlpack_device__ __float__ __index__ "
    "__init__ __int__ __len__ __repr__ __deepcopy__"
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


def unary(names, kinds="f", low=-2, high=2):
    @case(names)
    def make(d, f):
        return f, [d.some(kinds, low, high)]


def binary(names, kinds="n", low=-2, high=2, second=(-2, 2)):
    @case(names)
    def make(d, f):
        shape, dtype = d.shape(least=0), d.dtype(kinds)
        cut = shape[d.between(0, len(shape)) :]
        if d.between(0, 1):
            cut = tuple(d.pick(1, n) for n in cut)
        return f, [d.array(shape, dtype, low, high), d.array(cut, dtype, *second)]


unary("ceil cos cosh erf exp expm1 floor isfinite isinf isnan round signbit sin sinh square tan "
      "tanh trunc gelu silu sigmoid relu asinh atan")  # fmt: skip
unary("asin acos atanh", low=-0.75, high=0.75)
unary("log log10 log1p log2 sqrt rsqrt reciprocal", low=0.25, high=6)
unary("acosh", low=1.25, high=6)
unary("abs negative positive sign __abs__ __neg__ __pos__", "s", -3, 3)
unary("logical_not", "l")
unary("bitwise_invert __invert__", "b", -3, 3)
binary("add subtract multiply maximum minimum __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__")
binary("equal not_equal less less_equal greater greater_equal __eq__ __ne__ __lt__ __le__ __gt__ "
       "__ge__")  # fmt: skip
binary("divide hypot logaddexp atan2 copysign __truediv__", "f", second=(0.25, 3))
binary("__rtruediv__", "f", 0.25, 3)
binary("floor_divide remainder __floordiv__ __mod__", "n", -5, 5, second=(1, 3))
binary("__rfloordiv__ __rmod__", "n", 1, 3, second=(-5, 5))
binary("pow __pow__", "f", 0.25, 3)
binary("__rpow__", "f", second=(0.25, 3))
binary("logical_and logical_or logical_xor", "l")
binary("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ __rand__ __ror__ __rxor__", "b")
binary("bitwise_left_shift bitwise_right_shift __lshift__ __rshift__", "i", -4, 4, second=(0, 3))
binary("__rlshift__ __rrshift__", "i", 0, 3, second=(0, 4))


# -- reductions


@case("sum max min mean prod all any count_nonzero var std")
def _(d, f):
    floats = f.__name__ in ("mean", "var", "std", "prod")
    empty = f.__name__ in ("sum", "all", "any", "prod", "count_nonzero")
    kinds = "f" if floats else "a" if f.__name__ in ("all", "any", "count_nonzero") else "n"
    x = d.some(kinds, least=0 if empty else 1)
    axis = None if not x.ndim or d.between(0, 2) == 0 else d.axis(x.shape)
    if x.ndim > 1 and d.between(0, 2) == 0:
        axis = (0, x.ndim - 1)
    keep = d.pick(False, True)
    return lambda t: f(t, axis=axis, keepdims=keep), [x]


@case("argmax argmin")
def _(d, f):
    x = d.some("n", rank=(1, 3), least=1)
    axis = d.pick(None, d.axis(x.shape))
    return lambda t: f(t, axis=axis), [x]


@case("sort argsort")
def _(d, f):
    x = d.some("n", rank=(1, 3))
    axis, down = d.axis(x.shape), d.pick(False, True)
    return lambda t: f(t, axis=axis, descending=down), [x]


@case("topk")
def _(d, f):
    x = d.some("n", rank=(1, 3), least=1)
    axis, largest = d.axis(x.shape), d.pick(False, True)
    k = d.between(1, x.shape[axis])
    return lambda t: f(t, k, axis=axis, largest=largest), [x]


@case("cumulative_sum cumulative_prod cumsum cumprod cummax cummin logcumsumexp")
def _(d, f):
    plain = "cumulative" not in f.__name__
    kinds = "f" if f.__name__ == "logcumsumexp" else "n"
    x = d.some(kinds, rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    first = {} if plain else {"include_initial": d.pick(False, True)}
    return lambda t: f(t, axis=axis, **first), [x]


@case("diff")
def _(d, f):
    x = d.some("n", rank=(1, 3))
    axis, n = d.axis(x.shape), d.between(0, 2)
    return lambda t: f(t, axis=axis, n=n), [x]


@case("matmul __matmul__ __rmatmul__")
def _(d, f):
    m, k, n = d.extent(), d.extent(), d.extent()
    dtype, batch = d.dtype("f"), d.shape(0, 1)
    x, y = d.array((*batch, m, k), dtype), d.array((*d.pick(batch, ()), k, n), dtype)
    if d.between(0, 3) == 0:
        x, y = d.array((k,), dtype), d.pick(d.array((k,), dtype), y)
    return f, [y, x] if f.__name__ == "__rmatmul__" else [x, y]


@case("tensordot")
def _(d, f):
    shared, dtype = d.shape(0, 2), d.dtype("f")
    x, y = (*d.shape(0, 2), *shared), (*shared, *d.shape(0, 1))
    return lambda a, b: f(a, b, axes=len(shared)), [d.array(x, dtype), d.array(y, dtype)]


@case("vecdot")
def _(d, f):
    shape, dtype = d.shape(1, 3), d.dtype("f")
    return f, [d.array(shape, dtype), d.array(shape[-d.between(1, len(shape)) :], dtype)]


@case("einsum")
def _(d, f):
    i, j, k = d.extent(), d.extent(), d.extent()
    text, *shapes = d.pick(
        ("ij,jk->ik", (i, j), (j, k)), ("ij->ji", (i, j)), ("ii->i", (i, i)), ("ij->", (i, j)),
        ("bij,bj->bi", (k, i, j), (k, j)), ("i,j->ij", (i,), (j,)), ("ij,ij->i", (i, j), (i, j)),
    )  # fmt: skip
    dtype = d.dtype("f")
    return lambda *ts: f(text, *ts), [d.array(s, dtype) for s in shapes]


# -- movement


@case("cat concat")
def _(d, f):
    shape, dtype = list(d.shape(1, 3)), d.dtype()
    axis = d.axis(shape)
    arrays = []
    for _ in range(d.between(1, 4)):
        shape[axis] = d.extent(0)
        arrays.append(d.array(tuple(shape), dtype))
    return lambda *ts: f(ts, axis=axis), arrays


@case("stack")
def _(d, f):
    shape, dtype = d.shape(0, 2, least=0), d.dtype()
    axis = d.between(-1, len(shape))
    return lambda *ts: f(ts, axis=axis), [d.array(shape, dtype) for _ in range(d.between(1, 4))]


@case("unstack")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    return lambda t: f(t, axis=axis), [x]


@case("roll")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis, shift = d.pick(None, d.axis(x.shape)), d.between(-6, 6)
    return lambda t: f(t, shift, axis=axis), [x]


@case("pad")
def _(d, f):
    x = d.some("n")
    widths = [(d.between(0, 2), d.between(0, 2)) for _ in x.shape]
    value = d.pick(0, 1)
    return lambda t: f(t, widths, value), [x]


@case("weft.flip")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis = d.pick(None, d.axis(x.shape))
    return lambda t: f(t, axis=axis), [x]


@case("Tensor.flip")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis = d.axis(x.shape)
    return lambda t: f(t, axis), [x]


@case("reshape view")
def _(d, f):
    x = d.some()
    shape = d.pick((x.size,), (1, x.size), tuple(reversed(x.shape)))
    return lambda t: f(t, shape), [x]


@case("flatten")
def _(d, f):
    return lambda t: f(t, 0, -1), [d.some(rank=(1, 3))]


@case("permute permute_dims")
def _(d, f):
    x = d.some(rank=(1, 3))
    axes = tuple(np.random.default_rng(x.size).permutation(x.ndim).tolist())
    return lambda t: f(t, axes), [x]


@case("transpose")
def _(d, f):
    x = d.some(rank=(2, 3))
    return lambda t: f(t, 0, -1), [x]


@case("matrix_transpose")
def _(d, f):
    return f, [d.some(rank=(2, 3))]


@case("moveaxis")
def _(d, f):
    x = d.some(rank=(2, 3))
    return lambda t: f(t, 0, -1), [x]


@case("expand broadcast_to")
def _(d, f):
    x = d.some()
    shape = (*d.shape(0, 1), *x.shape)
    return lambda t: f(t, shape), [x]


@case("broadcast_arrays broadcast_tensors")
def _(d, f):
    shape, dtype = d.shape(1, 3), d.dtype()
    return lambda a, b: tuple(f(a, b)), [d.array(shape, dtype), d.array((1, shape[-1]), dtype)]


@case("meshgrid")
def _(d, f):
    indexing = d.pick("xy", "ij")
    return (
        lambda a, b: tuple(f(a, b, indexing=indexing)),
        [d.array(d.extent(), F32), d.array(d.extent(), F32)],
    )


@case("expand_dims unsqueeze")
def _(d, f):
    axis = d.pick(0, -1)
    return lambda t: f(t, axis), [d.some()]


@case("squeeze")
def _(d, f):
    x = d.some(rank=(1, 2))[None]
    return lambda t: f(t, 0), [x]


@case("repeat")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis, n = d.pick(None, d.axis(x.shape)), d.between(0, 3)
    return lambda t: f(t, n, axis=axis), [x]


@case("repeat_interleave")
def _(d, f):
    x = d.some(rank=(1, 3))
    axis, n = d.axis(x.shape), d.between(1, 3)
    return lambda t: f(t, n, axis), [x]


@case("tile")
def _(d, f):
    x = d.some(rank=(0, 2))
    repetitions = tuple(d.between(1, 3) for _ in range(d.between(1, 3)))
    return lambda t: f(t, repetitions), [x]


@case("chunk")
def _(d, f):
    n = d.between(1, 2)
    return lambda t: f(t, n, 0), [d.some(rank=(1, 3), least=1)]


@case("split")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    size = d.between(1, 2)
    return lambda t: f(t, size, 0), [x]


@case("narrow")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    start = d.between(0, x.shape[axis] - 1)
    length = d.between(1, x.shape[axis] - start)
    return lambda t: f(t, axis, start, length), [x]


@case("contiguous __iter__")
def _(d, f):
    return (lambda t: tuple(f(t))) if f.__name__ == "__iter__" else f, [
        d.some(rank=(1, 2), least=1)
    ]


@case("tril triu")
def _(d, f):
    x, k = d.some("n", rank=(2, 3)), d.between(-2, 2)
    return lambda t: f(t, k), [x]


# -- indexing


def _index(d, shape, n):
    return d.array(shape, I32, -n, n - 1)


@case("take")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    index = _index(d, d.extent(), x.shape[axis])
    return lambda t, i: f(t, i, axis=axis), [x, index]


@case("take_along_axis gather")
def _(d, f):
    x = d.some(rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    shape = list(x.shape)
    shape[axis] = d.extent()
    index = np.abs(_index(d, tuple(shape), x.shape[axis]) % x.shape[axis])
    if f.__name__ == "gather":
        return lambda t, i: f(t, axis, i), [x, index]
    return lambda t, i: f(t, i, axis=axis), [x, index]


KEYS = (
    0, -1, slice(None, None, -1), slice(None, None, 2), slice(1, None), (..., 0), (..., None),
    (slice(None), -1), np.array([0, -1, 0]), (..., np.array([0, 0])),
)  # fmt: skip


@case("__getitem__")
def _(d, f):
    x, key = d.some(rank=(2, 3), least=1), d.pick(*KEYS)
    return lambda t: f(t, key), [x]


@case("__setitem__")
def _(d, f):
    x, key = d.some(rank=(2, 3), least=1), d.pick(*KEYS[:6], *KEYS[7:8])
    shape = x[key].shape

    def call(t, v):
        t = t + 0 if t.dtype != dt.bool_ else t | False
        f(t, key, v)
        return t

    return call, [x, d.array(shape, dt.as_dtype(x.dtype))]


@case("update scatter_add")
def _(d, f):
    x = d.some("w" if f.__name__ == "scatter_add" else "a", rank=(1, 3), least=1)
    n = d.between(1, len(x))
    index = np.random.default_rng(n).permutation(len(x))[:n].astype(np.int32)
    return f, [x, index, d.array((n, *x.shape[1:]), dt.as_dtype(x.dtype))]


@case("where")
def _(d, f):
    shape, dtype = d.shape(least=0), d.dtype()
    return f, [d.array(shape, dt.bool_), d.array(shape, dtype), d.array(shape[1:], dtype)]


@case("one_hot")
def _(d, f):
    classes = d.extent()
    return lambda i: f(i, classes), [d.array(d.shape(0, 2), I32, 0, classes - 1)]


@case("clip")
def _(d, f):
    bounds = d.pick((-1, 1), (None, 1), (0, None))
    return lambda t: f(t, *bounds), [d.some("s", -3, 3)]


@case("astype cast")
def _(d, f):
    to = d.dtype()
    return lambda t: f(t, to), [d.some("a", 0, 3)]


@case("nonzero unique_values")
def _(d, f):
    return f, [d.some("n", rank=(1, 2), least=1)]


# -- creation: the device's name comes with the call


@case("zeros ones empty rand randn")
def _(d, f):
    shape, key = d.shape(1, 3), {"key": 3} if f.__name__[:4] == "rand" else {}
    return (lambda: f(shape, **key) * (f.__name__ != "empty")), []


@case("randint")
def _(d, f):
    shape = d.shape(1, 3)
    return lambda: f(-2, 5, *shape, key=4), []


@case("full")
def _(d, f):
    shape, dtype = d.shape(), d.dtype("n")
    return lambda: f(shape, 1, dtype), []


@case("zeros_like ones_like empty_like")
def _(d, f):
    return (lambda t: f(t) * (0 if f.__name__ == "empty_like" else 1)), [d.some("n")]


@case("full_like")
def _(d, f):
    return lambda t: f(t, 1), [d.some("n")]


@case("arange")
def _(d, f):
    n, dtype = d.extent(), d.pick(F32, I32)
    return lambda: f(n, dtype=dtype), []


@case("eye")
def _(d, f):
    n, m, k = d.extent(), d.extent(), d.between(-2, 2)
    return lambda: f(n, m, k=k), []


@case("linspace")
def _(d, f):
    n = d.extent()
    return lambda: f(-1, 2, n), []


@case("tensor asarray")
def _(d, f):
    return f, [d.some()]


# -- networks


@case("softmax log_softmax normalize")
def _(d, f):
    x = d.some("f", rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    return lambda t: f(t, axis=axis), [x]


@case("layer_norm rms_norm")
def _(d, f):
    x = d.some("f", rank=(1, 3), least=1)
    dtype, n = dt.as_dtype(x.dtype), 2 if f.__name__ == "layer_norm" else 1
    n = d.between(0, n)
    return lambda t, *w: f(t, *w, eps=0.125), [x, *[d.array(x.shape[-1:], dtype) for _ in range(n)]]


@case("linear")
def _(d, f):
    k, n, dtype = d.extent(), d.extent(), d.dtype("f")
    arrays = [d.array((*d.shape(0, 2), k), dtype), d.array((n, k), dtype), d.array(n, dtype)]
    return f, arrays[: d.between(2, 3)]


@case("embedding")
def _(d, f):
    rows = d.extent()
    pad = d.pick(None, 0)
    ids = d.array(d.shape(0, 2), I32, 0, rows - 1)
    return lambda i, w: f(i, w, padding_idx=pad), [ids, d.array((rows, d.extent()), d.dtype("f"))]


@case("rope")
def _(d, f):
    n, h, half, dtype = d.extent(), d.extent(), d.extent(), d.dtype("f")
    turned = d.pick(False, True)
    shapes = ((n, h, 2 * half), (n, half), (n, half))
    return lambda *ts: f(*ts, interleaved=turned), [d.array(s, dtype) for s in shapes]


@case("dropout")
def _(d, f):
    return lambda t: f(t, 0.5, key=5), [d.some("f")]


@case("mse_loss l1_loss binary_cross_entropy_with_logits")
def _(d, f):
    shape, dtype, how = d.shape(0, 3), d.dtype("f"), d.pick("mean", "sum", "none")
    arrays = [d.array(shape, dtype), d.array(shape, dtype, 0, 1)]
    return lambda x, y: f(x, y, reduction=how), arrays


@case("cross_entropy nll_loss")
def _(d, f):
    n, c, more = d.extent(), d.extent(), d.shape(0, 1)
    how = d.pick("mean", "sum", "none")
    smooth = {"label_smoothing": d.pick(0.0, 0.125)} if f.__name__ == "cross_entropy" else {}
    arrays = [d.array((n, c, *more), d.dtype("f")), d.array((n, *more), I32, 0, c - 1)]
    return lambda x, y: f(x, y, reduction=how, **smooth), arrays


def _heads(d):
    g = d.between(1, 2)
    return d.between(1, 2), g * d.between(1, 2), g, d.extent(), d.extent(), d.extent()


@case("attention")
def _(d, f):
    b, h, g, t, s, dim = _heads(d)
    options = d.pick(
        {}, {"causal": True}, {"causal": True, "window": 2}, {"softcap": 2.0}, {"lengths": True}
    )
    shapes = ((b, h, t, dim), (b, g, s, dim), (b, g, s, dim))
    arrays = [d.array(shape, dtype) for dtype in (d.dtype("f"),) for shape in shapes]
    if "lengths" in options:
        return f, [*arrays, d.array(b, I32, 0, s)]
    return lambda *ts: f(*ts, **options), arrays


@case("scaled_dot_product_attention")
def _(d, f):
    b, h, _, t, s, dim = _heads(d)
    shapes = ((b, h, t, dim), (b, h, s, dim), (b, h, s, dim))
    arrays = [d.array(shape, dtype) for dtype in (d.dtype("f"),) for shape in shapes]
    if d.between(0, 1):
        return f, [*arrays, d.array((t, s), d.pick(dt.bool_, F32))]
    return lambda *ts: f(*ts, is_causal=True), arrays


@case("cached_attention")
def _(d, f):
    n, h, g, slots, length, dim = _heads(d)
    dtype = d.dtype("f")
    caches = [d.array((slots, g, length, dim), dtype) for _ in range(2)]
    slot, pos = d.array(n, I32, 0, slots - 1), d.array(n, I32, 0, length - 1)
    return f, [d.array((n, h, dim), dtype), *caches, slot, pos]


@case("attention_in_parts")
def _(d, f):
    n, h, g, slots, length, dim = _heads(d)
    dtype = d.dtype("f")
    caches = [d.array((slots, g, length, dim), dtype) for _ in range(2)]
    slot, pos = d.array(n, I32, 0, slots - 1), d.array(n, I32, 0, length - 1)
    arrays = [d.array((n, h, dim), dtype), *caches, slot, pos]
    return lambda *ts: f(*ts, scale=0.5, window=0, softcap=0.0), arrays


@case("scan_in_blocks")
def _(d, f):
    op = d.pick("sum", "prod", "max", "min", "linear")
    x = d.some("n" if op in ("sum", "prod", "max", "min") else "f", rank=(1, 3), least=1)
    factor = [d.array(x.shape, dt.as_dtype(x.dtype))] * (op == "linear")
    axis, exclusive, reverse = d.between(0, x.ndim - 1), d.pick(False, True), d.pick(False, True)
    exclusive = exclusive and op != "linear"
    options = {"op": op, "axis": axis, "exclusive": exclusive, "reverse": reverse}
    return lambda *ts: f(*ts, **options), [x, *factor]


@case("product_in_blocks")
def _(d, f):
    x = d.some("n", rank=(1, 3), least=1)
    axis = d.between(0, x.ndim - 1)
    return lambda t: f(t, axis), [x]


@case("checkpoint")
def _(d, f):
    return lambda t: f(lambda x: x.exp() * x, t), [d.some("f")]


def _sizes(d):
    """A kernel, stride and padding that fit an image of at least 2 x 2."""
    k = d.between(1, 3)
    return k, d.between(1, 2), d.between(min(1, k // 2), k // 2)


@case("conv2d conv1d")
def _(d, f):
    k, stride, pad = _sizes(d)
    groups, axes = d.between(1, 2), 2 if f.__name__ == "conv2d" else 1
    c, o, dtype = groups * d.between(1, 2), groups * d.between(1, 2), d.dtype("f")
    image = (d.between(1, 2), c, *[d.between(3, 5) for _ in range(axes)])
    shapes = (image, (o, c // groups, *[k] * axes), (o,))
    options = {"stride": stride, "padding": pad, "groups": groups}
    arrays = [d.array(s, dtype) for s in shapes][: d.between(2, 3)]
    return lambda *ts: f(*ts, **options), arrays


@case("max_pool2d avg_pool2d")
def _(d, f):
    k, stride, pad = _sizes(d)
    ceil, shape = d.pick(False, True), (d.between(1, 2), d.between(1, 2), d.between(3, 5), 4)
    x = d.array(shape, d.dtype("f"))
    return lambda t: f(t, k, stride, pad, ceil_mode=ceil), [x]


@case("adaptive_avg_pool2d")
def _(d, f):
    size = (d.between(1, 3), d.between(1, 3))
    return lambda t: f(t, size), [d.array((1, 2, d.extent(), d.extent()), d.dtype("f"))]


@case("batch_norm")
def _(d, f):
    n, c = d.between(2, 5), d.extent()
    training = d.pick(False, True)
    stats = [d.array(c, F32), d.array(c, F32, 1, 2)]
    return (
        lambda x, m, v, w, b: f(x, m + 0, v + 0, w, b, training=training, eps=0.125),
        [d.array((n, c, d.extent(), 2), F32), *stats, d.array(c, F32), d.array(c, F32)],
    )


@case("as_index")
def _(d, f):
    return f, [d.some("i")]


def maker(name):
    """The maker of a public name, or None."""
    last = name.rpartition(".")[2]
    return CASES.get(name, CASES.get(last))
