"""Rows of the suite of Kernel IR nodes (a target and a number of lanes), and what they are fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import wgpu_case
from cpu_case import play

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import binary, load

Bodies = Sequence[tuple[Callable[..., ir.Expr], DType]]


@dataclass(frozen=True)
class Row:
    """`target` is a CPU (see cpu_case) or "wgsl", whose arithmetic is that of shaders: subnormals
    and infinities may be lost, and some operations are rounded more than once."""

    target: str
    lanes: int

    @property
    def exact(self) -> bool:
        return self.target != "wgsl"

    @property
    def threads(self) -> int:
        return 1 if self.exact else 16

    def play(
        self, kernel: ir.Kernel, arrays: Sequence[np.ndarray], scalars: Sequence[int] = ()
    ) -> list[np.ndarray]:
        """Copies of the arrays after the kernel has run on them."""
        if self.exact:
            return play(kernel, arrays, scalars, target=self.target)
        return run_kernel(wgpu_case.device(), kernel, list(arrays), tuple(scalars))

    def run(
        self, body: Callable[..., ir.Expr], inputs: Sequence[np.ndarray], out: DType
    ) -> np.ndarray:
        return self.run_all([(body, out)], inputs)[0]

    def run_all(self, bodies: Bodies, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What each body makes of the inputs, all of them in one kernel."""
        n, threads = len(inputs[0]), min(self.threads, len(inputs[0]) // self.lanes)
        b = Builder("elementwise")
        sources = [b.buffer(f"x{i}", dt.as_dtype(x.dtype), n) for i, x in enumerate(inputs)]
        results = [b.buffer(f"out{i}", out, n, "w") for i, (_, out) in enumerate(bodies)]
        at = b.let((b.group(0) * threads + b.thread(0)) * self.lanes, "at")
        values = [b.let(load(s, at, self.lanes)) for s in sources]
        for (body, _), result in zip(bodies, results):
            b.store(result, at, body(*values))
        kernel = b.kernel((n // self.lanes // threads,), (threads,))
        blanks = [np.zeros(n, out.numpy) for _, out in bodies]
        return self.play(kernel, [*inputs, *blanks])[len(inputs) :]

    def check(
        self, truth: dict[str, np.ndarray], inputs: list[np.ndarray], make: Any = binary,
        rtol: float = 0.0,
    ) -> None:  # fmt: skip
        """Each op of the table over the inputs equals its array (in shaders: within `rtol`)."""
        bodies = [
            (lambda *v, op=op: make(op, *v), dt.as_dtype(want.dtype)) for op, want in truth.items()
        ]
        for (op, want), got in zip(truth.items(), self.run_all(bodies, inputs)):
            if rtol and not self.exact:
                np.testing.assert_allclose(got, want, rtol=rtol, err_msg=op)
            else:
                same(got, want, op)

    def sample(self, name: str) -> np.ndarray:
        """128 values of a dtype: without subnormals in float32 where these may be lost."""
        x = SAMPLES[name]
        if self.exact or name not in ("float32", "bfloat16"):
            return x
        tiny = (x != 0) & (np.abs(x.astype(np.float32)) < np.finfo(np.float32).tiny)
        return np.where(tiny, np.float32(0.25), x).astype(x.dtype)

    def floats(self) -> np.ndarray:
        """The float32 sample, in shaders what stays finite under arithmetic."""
        x = self.sample("float32")
        return x if self.exact else np.where(np.abs(x) <= 3e4, x, np.float32(2.5))


def rows(*targets: str) -> list[Any]:
    """The default CPU and WGSL with all their lanes; of further targets the widest."""
    found = [Row("host", n) for n in (1, 4, 16, 32)] + [Row("wgsl", n) for n in (1, 2, 4)]
    found += [Row(t, n) for t in targets for n in (1, 32)]
    return [pytest.param(r, id=f"{r.target}-{r.lanes}") for r in found]


LESSER = ("avx512", "avx2", "base")
rng = np.random.default_rng(0)
F32 = np.concatenate(
    [
        np.array(
            [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.5, np.inf, -np.inf, 1e10, -1e10, 3e9,
             127.6, -128.7, 255.5, 256.0, 65504.0, 65519.9, 65520.0, 1e-5, 6e-8, 3.0e-8, 1e-40,
             3.3895e38, 3.4e38, 2147483520.0, 2147483648.0, -2147483648.0, 4294967040.0, 1 + 2**-8],
            np.float32,
        ),
        rng.standard_normal(96).astype(np.float32) * 100,
    ]
)  # fmt: skip
I32 = np.concatenate(
    [np.array([0, 1, -1, 127, -128, 255, 256, 2**31 - 1, -(2**31), 65536, 7], np.int32),
     rng.integers(-(2**31), 2**31, 117, dtype=np.int64).astype(np.int32)]
)  # fmt: skip
I8, U8 = np.arange(-64, 64).astype(np.int8), np.arange(128).astype(np.uint8) * 2
BOOL = rng.integers(0, 2, 128).astype(bool)
with np.errstate(over="ignore"):
    F16 = np.concatenate(
        [F32[:64].astype(np.float16), np.arange(1, 65, dtype=np.uint16).view(np.float16)]
    )
BF16 = F32.astype(ml_dtypes.bfloat16)
SAMPLES = {"float32": F32, "int32": I32, "uint32": I32.view(np.uint32), "int8": I8, "uint8": U8,
           "bool": BOOL, "float16": F16, "bfloat16": BF16}  # fmt: skip
INTEGERS = [dt.int32, dt.uint32, dt.int8, dt.uint8]


def same(got: np.ndarray, want: np.ndarray, what: str = "") -> None:
    """Equal values, NaN equal to NaN."""
    assert got.dtype == want.dtype
    if got.dtype.kind in "fV":
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want, err_msg=what)


def dot_kernel(op: str, row: Row, a_dtype: DType, attr: int = 0) -> ir.Kernel:
    """16 threads or groups with a dot of `row.lanes` sums each."""
    k, acc, b_dtype = {
        "dot2": (2, dt.float32, dt.bfloat16), "dot4": (4, dt.int32, dt.int8),
        "dot2_int16": (1, dt.int32, dt.int32),
    }[op]  # fmt: skip
    b, n, count = Builder(op), row.lanes, 16 * row.lanes
    acc_in, a = b.buffer("acc", acc, count), b.buffer("a", a_dtype, count * k)
    w, out = b.buffer("b", b_dtype, count * k), b.buffer("out", acc, count, "w")
    at = b.let((b.group(0) * row.threads + b.thread(0)) * n, "at")
    args = (load(acc_in, at, n), load(a, at * k, n * k), load(w, at * k, n * k))
    b.store(out, at, ir.Collective(op, args, ir.Type(acc, n), attr))
    return b.kernel((16 // row.threads,), (row.threads,))
