"""Tiny calls: draws of shapes, dtypes and values, and what a case of tiny_cases.py is made of."""

import functools

import numpy as np
from wgpu_case import VARIANTS, device

import weft
from weft.backends import wgsl
from weft.backends.wgpu import WgpuDevice
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt

FLOATS = (dt.float32, dt.float16, dt.bfloat16)
SIGNED = (dt.int32, dt.int8)
INTS = (*SIGNED, dt.uint32, dt.uint8)
KINDS = {
    "f": FLOATS, "s": (*FLOATS, *SIGNED), "n": (*FLOATS, *INTS), "i": INTS, "b": (*INTS, dt.bool_),
    "a": (*FLOATS, *INTS, dt.bool_), "w": (dt.float32,), "l": (dt.bool_,),
}  # fmt: skip


@functools.cache
def browser(variant):
    """A device of the tests' with no more than every browser has."""
    device()  # skips the test where there is none
    limits = {"max_bindings": 8, "max_threads": 256, "shared_bytes": 16384}
    return WgpuDevice("vulkan", 0, **limits, **VARIANTS[variant])


def modules(fn, given, caps):
    """The WGSL of each kernel that a function becomes for a target."""
    specs = [weft.Spec(t.shape, t.dtype) for t in given]
    program = compile_graph(weft.trace(lambda *ts: tensors(fn(*ts)), specs), caps)
    return [wgsl.render(kernel, caps) for kernel in program.kernels]


class Draw:
    """Choices of one example; `between(low, high)` gives an integer of both ends."""

    def __init__(self, between):
        self.between = between
        self.seed = 0

    def pick(self, *options):
        return options[self.between(0, len(options) - 1)]

    def extent(self, least=1):
        return self.between(least, 5)

    def shape(self, low=0, high=3, least=1):
        """`low` to `high` axes; now and then one of them has no elements, where `least` is 0."""
        shape = [self.extent() for _ in range(self.between(low, high))]
        if shape and not least and self.between(0, 7) == 7:
            shape[self.between(0, len(shape) - 1)] = 0
        return tuple(shape)

    def axis(self, shape):
        return self.between(-len(shape), len(shape) - 1)

    def dtype(self, kinds="a"):
        return self.pick(*KINDS[kinds])

    def array(self, shape, dtype=dt.float32, low=-2, high=2):
        """Multiples of 1/4, which every float holds; integers; or bools."""
        self.seed += 1
        rng = np.random.default_rng(self.seed)
        shape = (shape,) if isinstance(shape, int) else shape
        if dtype is dt.bool_:
            return rng.integers(0, 2, shape).astype(bool)
        step = 4 if dtype.is_float else 1
        low = max(low, 0) if dtype.kind == "uint" else low
        drawn = rng.integers(int(low * step), int(high * step) + 1, shape)
        return (drawn / step).astype(dtype.numpy) if step > 1 else drawn.astype(dtype.numpy)

    def some(self, kinds="a", low=-2, high=2, rank=(0, 3), least=0):
        """An array of any shape."""
        return self.array(self.shape(*rank, least), self.dtype(kinds), low, high)


def tensors(out):
    """The tensors of a result, in order."""
    if isinstance(out, weft.Tensor):
        return [out]
    return [t for part in out for t in tensors(part)]
