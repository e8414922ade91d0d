"""The verifier takes good kernels and rejects one case per rule; the printer tells them apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from weft.core import dtypes as dt
from weft.core.errors import KernelError
from weft.kernel import expr as k, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import BOOL, F32, I32, Type
from weft.kernel.printer import kernel_hash, text
from weft.kernel.verify import verify

Body = Callable[[Builder, ir.Buffer, ir.Buffer], None]


def make(body: Body, threads: tuple[int, ...] = (8,), grid: tuple = (1,)) -> ir.Kernel:
    b = Builder("kern")
    x, y = b.buffer("x", dt.float32, 64), b.buffer("y", dt.float32, 64, "w")
    body(b, x, y)
    return b.kernel(grid, threads)


def good(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    shared = b.array("shared", dt.float32, 64, "shared")
    i = b.let(b.thread(0) + b.group(0) * 8, "i")
    total = b.var(0.0, "total")
    b.store(shared, i, k.load(x, i))
    b.barrier()
    with b.loop(4, name="j", unroll=True) as j:
        b.assign(total, total + k.load(shared, j))
    with b.when(i < 7):
        b.store(y, i, total)
    with b.otherwise():
        b.prefetch(x, i)


def test_a_good_kernel_passes() -> None:
    verify(make(good))


def twice(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    e = k.load(x, 0)
    b.store(y, 0, e + e)


def raw(value: ir.Expr) -> Body:
    return lambda b, x, y: b.emit(ir.Let(ir.Var("v", value.type), value))


def out_of_scope(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    with b.when(k.load(x, 0) < 1.0):
        v = b.let(k.load(x, 1), "v")
    b.store(y, 0, v)


def assign_let(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    v = b.let(k.load(x, 0), "v")
    b.assign(v, 1.0)


def assign_other_type(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    v = b.var(0.0, "v")
    b.emit(ir.Assign(v, k.const(1)))


def shared_inside(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    with b.loop(3):
        b.emit(ir.Array("s", dt.float32, 4, "shared"))


def barrier_under_if(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    i = b.let(b.thread(0) + 1, "i")
    with b.when(i < 3):
        b.barrier()


def barrier_in_loop(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    """The bound varies only through what the loop's body assigns."""
    n = b.var(3, "n", I32)
    with b.loop(4), b.loop(n):
        b.barrier()
        b.assign(n, b.thread(0))


def name_twice(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    for _ in range(2):
        b.emit(ir.Let(ir.Var("v", I32), k.const(1)))


def foreign(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    b.store(ir.Buffer("y", dt.float32, 64, "w"), 0, 1.0)


def statement_twice(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    s = ir.Store(y, k.const(0), k.const(1.0, F32))
    b.emit(s)
    b.emit(s)


f16, i32x4 = Type(dt.float16), Type(dt.int32, 4)
BAD: dict[str, tuple[Body, str]] = {
    "expression twice": (twice, "two places"),
    "statement twice": (statement_twice, "two places"),
    "narrow arithmetic": (raw(ir.Unary("neg", k.const(1.0, f16), f16)), "storage type"),
    "narrow compare": (
        raw(ir.Binary("lt", k.const(1.0, f16), k.const(1.0, f16), BOOL)),
        "storage type",
    ),
    "lanes": (raw(k.const(1, Type(dt.int32, 3))), "power of two"),
    "constant range": (raw(k.const(300, Type(dt.uint8))), "not a value"),
    "operands differ": (raw(ir.Binary("add", k.const(1), k.const(1.0, F32), I32)), "differ"),
    "result type": (raw(ir.Binary("lt", k.const(1), k.const(1), I32)), "must be bool"),
    "float rem": (raw(ir.Binary("rem", k.const(1.0, F32), k.const(1.0, F32), F32)), "no rem"),
    "float not": (raw(ir.Unary("not", k.const(1.0, F32), F32)), "no not"),
    "integer fma": (raw(ir.Fma(k.const(1), k.const(1), k.const(1), I32)), "float32"),
    "select condition": (raw(ir.Select(k.const(1), k.const(1), k.const(2), I32)), "condition"),
    "bitcast": (raw(ir.Bitcast(k.const(1.0, f16), Type(dt.int32))), "32-bit"),
    "cast lanes": (raw(ir.Cast(k.const(1), Type(dt.float32, 4))), "cast"),
    "pack": (raw(ir.Vec("pack", (k.const(1),), i32x4)), "pack"),
    "extract": (raw(ir.Vec("extract", (k.const(1, i32x4),), I32, (4,))), "lanes"),
    "any": (raw(ir.Vec("any", (k.const(1, i32x4),), I32)), "bool"),
    "any lanes": (
        raw(ir.Vec("any", (k.const(True, Type(dt.bool_, 4)),), Type(dt.bool_, 2))),
        "bool",
    ),
    "keep": (raw(ir.Unary("keep", k.const(1), I32)), "no keep"),
    "dot4": (raw(ir.Collective("dot4", (k.const(1),) * 3, I32)), "dot4"),
    "undeclared": (raw(ir.Var("ghost", I32)), "not declared"),
    "out of scope": (out_of_scope, "not declared"),
    "assign to let": (assign_let, "not mutable"),
    "assign of a type": (assign_other_type, "expected"),
    "name twice": (name_twice, "twice"),
    "name": (lambda b, x, y: b.emit(ir.Let(ir.Var("a b", I32), k.const(1))), "identifier"),
    "store to r": (lambda b, x, y: b.store(x, 0, 1.0), "read-only"),
    "load of w": (lambda b, x, y: b.store(y, 0, k.load(y, 1)), "write-only"),
    "foreign buffer": (foreign, "not declared"),
    "float index": (lambda b, x, y: b.store(y, k.const(0.0, F32), 1.0), "int32"),
    "index lanes": (
        lambda b, x, y: b.emit(ir.Store(y, k.iota(4), k.const(1.0, Type(dt.float32, 8)))),
        "lanes",
    ),
    "mask": (
        lambda b, x, y: b.store(y, 0, k.const(1.0, Type(dt.float32, 4)), k.const(True, BOOL)),
        "mask",
    ),
    "stored dtype": (lambda b, x, y: b.emit(ir.Store(y, k.const(0), k.const(1))), "holds"),
    "condition": (lambda b, x, y: b.emit(ir.If(k.const(1), ir.Block(()))), "bool"),
    "step": (
        lambda b, x, y: b.emit(
            ir.For(ir.Var("i", I32), k.const(0), k.const(3), ir.Block(()), step=0)
        ),
        "positive",
    ),
    "unroll": (
        lambda b, x, y: b.emit(
            ir.For(ir.Var("i", I32), k.const(0), ir.Param("n", 0), ir.Block(()), unroll=True)
        ),
        "constant bounds",
    ),
    "shared inside": (shared_inside, "top of the kernel"),
    "empty array": (lambda b, x, y: b.emit(ir.Array("s", dt.float32, 0)), "positive size"),
    "barrier under if": (barrier_under_if, "barrier is inside"),
    "barrier in a loop": (barrier_in_loop, "barrier is inside"),
}


@pytest.mark.parametrize("case", BAD)
def test_each_rule(case: str) -> None:
    body, message = BAD[case]
    with pytest.raises(KernelError, match=message) as caught:
        verify(make(body))
    assert str(caught.value).startswith("kernel kern: ")


def test_the_header() -> None:
    with pytest.raises(KernelError, match="grid"):
        verify(make(good, grid=(ir.Axis("group", 0),)))
    with pytest.raises(KernelError, match="threads"):
        verify(make(good, threads=(0,)))
    with pytest.raises(KernelError, match="identifier"):
        verify(dataclasses.replace(make(good), name="a.b"))


def test_one_thread_cannot_diverge() -> None:
    verify(make(barrier_under_if, threads=(1,)))


# -- the printer


def variants() -> list[ir.Kernel]:
    """Kernels that differ in one detail each."""

    def loads(lanes: int = 4, index: ir.Expr | int = 0, mask: bool = False) -> Body:
        def body(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
            m = k.const(True, Type(dt.bool_, lanes)) if mask else None
            b.store(y, 0, k.load(x, index, lanes, m))

        return body

    def loop(step: int, unroll: bool) -> Body:
        def body(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
            with b.loop(4, step=step, unroll=unroll) as i:
                b.store(y, i, 0.0)

        return body

    bodies: list[Body] = [good, barrier_under_if, assign_let]
    bodies += [loads(), loads(2), loads(mask=True), loads(index=1)]
    bodies += [loads(index=k.iota(4)), loop(1, False), loop(2, False), loop(1, True)]
    bodies += [lambda b, x, y, v=v: b.store(y, 0, v) for v in (0.0, -0.0, 1.0, float("nan"))]
    bodies += [lambda b, x, y, n=n: b.store(y, ir.Param("n", n), 1.0) for n in (0, 1)]
    bodies += [lambda b, x, y, s=s: b.array("s", dt.float32, 4, s) and None for s in
               ("private", "shared")]  # fmt: skip
    bodies += [lambda b, x, y: b.let(b.thread(0), "v") and None]
    bodies += [lambda b, x, y: b.var(b.thread(0), "v") and None]
    bodies += [raw(k.const(1, Type(dt.int8))), raw(k.const(1)), raw(k.const(True, BOOL))]
    bodies += [raw(ir.Cast(k.const(1), F32)), raw(ir.Bitcast(k.const(1), F32))]
    bodies += [raw(ir.Vec("extract", (k.const(1, i32x4),), I32, (n,))) for n in (0, 1)]
    bodies += [raw(ir.Collective("subgroup_xor", (k.const(1),), I32, attr)) for attr in (1, 2)]
    kernels = [make(body) for body in bodies]
    base = kernels[0]
    x, y = base.buffers
    kernels += [
        dataclasses.replace(base, name="other"),
        dataclasses.replace(base, threads=(8, 2, 1)),
        dataclasses.replace(base, grid=(k.const(2), k.const(1), k.const(1))),
        dataclasses.replace(base, flops=1),
        dataclasses.replace(base, buffers=(x, dataclasses.replace(y, access="rw"))),
        dataclasses.replace(base, buffers=(dataclasses.replace(x, size=65), y)),
    ]
    return kernels


def test_different_kernels_print_differently() -> None:
    texts = [text(kernel) for kernel in variants()]
    assert len(set(texts)) == len(texts)


def test_printing_is_deterministic() -> None:
    assert [kernel_hash(x) for x in variants()] == [kernel_hash(x) for x in variants()]
    assert len(kernel_hash(make(good))) == 64


def test_the_text_reads_well() -> None:
    assert (
        text(make(good))
        == """\
kernel kern
  buffer x: f32[64]  r
  buffer y: f32[64]  w
  grid    (1, 1, 1)
  threads (8, 1, 1)
  cost    0 flops, 0 bytes
  shared shared: f32[64]
  let i: i32 = (thread.0 + (group.0 * 8))
  var total: f32 = 0.0:f32
  store shared[i] = f32 load x[i]
  barrier
  unroll for j: i32 in range(0, 4, 1)
    total = (total + load shared[j])
  if (i < 7)
    store y[i] = f32 total
  else
    prefetch x[i]
"""
    )


def test_groups_on_a_core() -> None:
    """A hint, but part of what a kernel is: the code differs."""
    one = make(good)
    two = dataclasses.replace(one, resident=2)
    verify(two)
    assert kernel_hash(two) != kernel_hash(one) and "resident 2" in text(two)
    for wrong in (0, 33):
        with pytest.raises(KernelError, match="groups on a core"):
            verify(dataclasses.replace(one, resident=wrong))
