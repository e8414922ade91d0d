"""quantize: rows as integers with a scale per block of 32, and back.

Products of packed weights take their other operand as integers where a policy says so: sums within
a block are exact then (docs/numerics.md, "Products of integers with scales"). Codes are signed: the
instructions of every target multiply packed codes, which are unsigned, by signed bytes or take both
signed.
"""

from __future__ import annotations

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.core.packed import Form
from weft.graph.ir import Node
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want

BLOCK = 32  # k that share a scale
LARGEST = {1: 127, 2: 127 * 128}  # code, by the number of planes of bytes
STEP = 128  # step of the first plane's codes if there are two planes
HUGE = float(np.finfo(np.float32).max)
TINY = 2.0**-100  # blocks whose largest element is smaller count as zeros


def quantize(x: Value, planes: int = 1) -> tuple[Value, ...]:
    """Quantises x[..., K] to int8 codes [..., K] and float32 scales [..., K / 32].

    With two `planes` there is a second array of codes, for finer steps. With t the largest |x| of a
    block, its scale is t * (1 / n) and its codes rint(x * (n / t)), n = 127 or 16256. A second
    plane holds the remainder after 128 times the first. Blocks of zeros have scale 0. If t is
    infinite or NaN, so is the scale, and codes are 0, so products with them are NaN. Raises
    ShapeError where 32 does not divide K.
    """
    codes: tuple[Value, ...] = f.call("quantize", x, planes=planes)
    return codes


def rescale(*parts: Value, whole: bool = False) -> Value:
    """Returns the float32 rows [..., K] that the parts from `quantize` encode. `whole` marks a
    product that reads the parts themselves; compile/interleave sets it."""
    return f.call("rescale", *parts, whole=whole)


def run_of(form: Form, k: int) -> int:
    """Returns the number of k that share both scales where quantised rows meet weights of a form.
    Returns 0 if their products cannot use the form's integers."""
    run = min(form.group, BLOCK)
    whole = k % BLOCK == 0 and run in (16, BLOCK) and form.group % run == 0
    return run if whole and form.values == "int" and 32 // min(form.planes) <= run else 0


def takes_integers(node: Node) -> bool:
    """True for a `rescale` whose parts a product reads."""
    return node.op == "call" and node.attrs["name"] == "rescale" and node.attrs["params"]["whole"]


def _blocks(x: Value) -> Value:
    *lead, k = aval(x).shape
    return f.reshape(x, (*lead, k // BLOCK, BLOCK))


def _spread(scales: Value) -> Value:
    """Each number of a block for all of its elements."""
    shape = aval(scales).shape
    return f.broadcast(f.reshape(scales, (*shape, 1)), (*shape, BLOCK))


def _quantize_abstract(x: Aval, *, planes: int) -> tuple[Aval, ...]:
    want("quantize", x, "float")
    if planes not in LARGEST or not x.shape or x.shape[-1] % BLOCK:
        raise ShapeError(
            f"quantize: {x} in {planes} planes; expected whole blocks of {BLOCK}, 1 or 2 planes"
        )
    codes = Aval(x.shape, dt.int8)
    return (*(codes,) * planes, Aval((*x.shape[:-1], x.shape[-1] // BLOCK), dt.float32))


def _quantize(x: Value, *, planes: int) -> tuple[Value, ...]:
    n, shape = float(LARGEST[planes]), aval(x).shape
    blocks = _blocks(f.cast(x, dt.float32))
    top = f.max_(f.abs_(blocks), -1)
    nan = f.isnan(top)
    some = f.bitwise_and(f.less_equal(TINY, top), f.less_equal(top, HUGE))
    some = f.where(nan, f.full_like(nan, False), some)
    none = f.where(nan, f.full_like(nan, False), f.less(top, TINY))
    inverse = f.where(some, f.div(n, f.where(some, top, 1.0)), 0.0)
    scales = f.where(none, 0.0, f.mul(top, 1.0 / n))
    wide = f.round_(f.mul(blocks, _spread(inverse)))
    if planes == 1:
        return f.reshape(f.cast(wide, dt.int8), shape), scales
    high = f.round_(f.mul(wide, 1.0 / STEP))
    low = f.sub(wide, f.mul(high, float(STEP)))
    first, second = (f.reshape(f.cast(v, dt.int8), shape) for v in (high, low))
    return first, second, scales


def _rescale_abstract(*parts: Aval, whole: bool) -> Aval:
    *codes, scales = parts
    shape = (*codes[0].shape[:-1], codes[0].shape[-1] // BLOCK) if codes else ()
    same = {(c.shape, c.dtype) for c in codes} == {(codes[0].shape, dt.int8)} if codes else False
    if len(codes) not in LARGEST or not same or scales != Aval(shape, dt.float32):
        raise ShapeError(f"rescale: parts {parts}; expected those of quantize")
    return Aval(codes[0].shape, dt.float32)


def _rescale(*parts: Value, whole: bool) -> Value:
    *codes, scales = parts
    first, *second = (_blocks(f.cast(c, dt.float32)) for c in codes)
    if second:
        first = f.add(f.mul(first, float(STEP)), second[0])
    return f.reshape(f.mul(first, _spread(scales)), aval(codes[0]).shape)


register_composite(Composite("quantize", _quantize_abstract, _quantize, {"planes": 1}))
register_composite(
    Composite("rescale", _rescale_abstract, _rescale, {"whole": False}, kind="movement")
)
