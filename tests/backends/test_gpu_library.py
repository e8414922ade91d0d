"""Library steps: which products are offered to a library, and files that lie about one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from gpu_blas import blas_device, blas_of
from gpu_products import (
    BF16,
    F32,
    K,
    M,
    N,
    leaf,
    product,
    spread,
    values_for,
    with_bias,
    with_residual,
)

from weft import ops
from weft.compile import compile_graph, library
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DTypeError, FileFormatError
from weft.graph.ir import Graph
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.ops.graph_listener import input_node
from weft.program import serial
from weft.program.program import Library, Program
from weft.program.session import Session


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are worth a call here."""
    monkeypatch.setattr(library, "WORK", 1)


# -- what is offered ------------------------------------------------------------------------------


def offers(graph: Graph, caps: str = "cuda") -> list[str]:
    report = compile_graph(graph, PRESETS[caps]).meta["report"]
    return [line.library for line in report.groups]


def refused() -> dict[str, tuple[Graph, str]]:
    y, a, b = product("nt")
    n = input_node("n", (), dt.int32, "scalar")
    bounded = input_node("a", (64, K), F32, "input", rows="n")
    bias = leaf("bias", N)
    rounded, c, d = product("nt", BF16, F32)
    f32_bias = ops.cast(ops.add(rounded, spread(bias, M, N)), BF16)
    twice = ops.cast(ops.cast(rounded, BF16), F32)
    narrow = leaf("b", K, N, dtype=BF16)
    return {
        "rows": (
            Graph((bounded, b, n), (ops.dot(bounded, ops.transpose(b, (1, 0)), out_dtype=F32),)),
            "rows bounded at run time",
        ),
        "epilogue": (Graph((a, b), (ops.tanh(y),)), "an epilogue of its own"),
        "scaled": (Graph((a, b), (ops.mul(y, 2.0),)), "an epilogue of its own"),
        "relu": (Graph((a, b), (ops.maximum(y, 0),)), "an epilogue of its own"),
        "gelu in f32": (
            Graph((a, b), (ops.call("gelu", y, approximate="tanh"),)),
            "gelu in float32",
        ),
        "exact gelu": (Graph((c, d), (ops.cast(ops.call("gelu", rounded), BF16),)), "an epilogue"),
        "two roundings": (Graph((c, d), (twice,)), "an epilogue of its own"),
        "bias of another dtype": (Graph((c, d, bias), (f32_bias,)), "an epilogue of its own"),
        "mixed": (
            Graph((a, narrow), (ops.dot(a, ops.cast(narrow, F32), out_dtype=F32),)),
            "float32 by bfloat16 to float32",
        ),
        "strided": (_strided(), "operands that are no plain matrices"),
        "itself": (Graph((a, b), (ops.add(y, y),)), "an epilogue of its own"),
    }


def _strided() -> Graph:
    a, b = leaf("a", M, 2 * K), leaf("b", K, N)
    left = ops.slice_(a, starts=(0, 0), stops=(M, 2 * K), steps=(1, 2))
    return Graph((a, b), (ops.dot(left, b, out_dtype=F32),))


@pytest.mark.parametrize("name", [
    "rows", "epilogue", "scaled", "relu", "gelu in f32", "exact gelu", "two roundings",
    "bias of another dtype", "mixed", "strided", "itself",
])  # fmt: skip
def test_what_is_not_offered(name: str) -> None:
    graph, why = refused()[name]
    (line,) = [x for x in offers(graph) if x]
    assert line.startswith(f"no: {why}")


def test_small_products_and_other_targets_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offers(with_bias()) == offers(with_bias(), "hip-wave64") == ["yes"]
    assert offers(with_bias(), "webgpu") == offers(with_bias(), "cpu-avx2") == [""]
    monkeypatch.setattr(library, "WORK", 1 << 21)
    assert offers(with_bias()) == ["no: small"]


def test_the_report_says_so() -> None:
    report = compile_graph(with_bias(), PRESETS["cuda"]).meta["report"]
    assert "a vendor's library may do it instead" in report.text()
    assert "vendor" not in compile_graph(with_bias(), PRESETS["webgpu"]).meta["report"].text()


# -- files ----------------------------------------------------------------------------------------


def changed(entry: list[Any], at: tuple[int, ...], value: Any) -> list[Any]:
    """A copy of nested lists with one value replaced."""
    first, *rest = at
    new = changed(entry[first], tuple(rest), value) if rest else value
    return [*entry[:first], new, *entry[first + 1 :]]


def read_with(program: Program, gemm: list[Any]) -> Program:
    """The Program as a file that has this instead of its step's Gemm would give it."""
    (step,) = program.steps
    assert isinstance(step, Library)
    lied = dataclasses.replace(step, gemm=serial._read_gemm(gemm))
    return serial.loads(serial.dumps(dataclasses.replace(program, steps=(lied,))))


LIES: dict[str, tuple[tuple[int, ...], Any, str]] = {
    "no rows": ((0,), 0, "has sides"),
    "rows beyond": ((0,), M + 1, "beyond its a"),
    "columns beyond": ((1,), N + 1, "beyond its"),
    "a batch beyond": ((3,), 2, "beyond its"),
    "gelu of a number": ((4,), 1, "has gelu"),
    "an argument too many": ((5, 0), 5, "beyond its a"),
    "another dtype": ((5, 1), "float16", "beyond its a"),
    "a negative start": ((5, 2), -1, "beyond its a"),
    "a start beyond": ((5, 2), 1, "beyond its a"),
    "a stride beyond": ((5, 4), K + 1, "beyond its a"),
    "overlapping rows": ((5, 4), K - 1, "no plain matrix"),
    "a from the result": ((5, 0), 3, "argument of the other kind"),
    "the result an operand": ((7, 0), 2, "beyond its c"),
    "part of the result": ((0,), M - 1, "does not write all"),
    "bias by rows": ((8, 4), 1, "beyond its bias"),
    "bias of every second": ((8, 5), 0, "no vector"),
}


@pytest.mark.parametrize("name", LIES)
def test_files_that_lie(name: str) -> None:
    at, value, why = LIES[name]
    program = compile_graph(with_bias(), PRESETS["cuda"])
    honest = serial._gemm(program.steps[0].gemm)  # type: ignore[union-attr]
    assert read_with(program, honest).steps == program.steps
    with pytest.raises(FileFormatError, match=rf"step 0 .*{why}"):
        read_with(program, changed(honest, at, value))


def brief(kernel: Kernel) -> Kernel:
    """A short kernel of the same buffers, which is quick to read."""
    b = Builder(kernel.name)
    buffers = [b.buffer(x.name, x.dtype, x.size, x.access) for x in kernel.buffers]
    b.store(buffers[-1], 0, 0.0)
    return b.kernel((1,), kernel.threads)


def test_what_is_read_stays_in_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in a file's Gemm: it is refused by name, or touches its arguments only."""
    device = blas_device(monkeypatch)
    program, values = compile_graph(with_residual(), device.caps), values_for(with_residual())
    program = dataclasses.replace(program, kernels=tuple(map(brief, program.kernels)))
    honest = serial._gemm(program.steps[0].gemm)  # type: ignore[union-attr]
    places = [(i,) for i in range(5)] + [(i, j) for i in range(5, 10) for j in range(6)]
    played: set[Library] = set()
    for at in places:
        for value in (-1, 0, 1, 2, 3, 16, N, 1 << 31, 1.5, True, None, "float16", [], "x"):
            try:
                read = read_with(program, changed(honest, at, value))
            except FileFormatError:
                continue
            except (TypeError, ValueError, DTypeError):
                continue  # what reading a file calls damaged
            (step,) = read.steps
            if step not in played:
                Session(read, device).run(values)
                played.add(step)
    assert len(played) > 5 and not blas_of(device).wrong


def test_a_copy_has_no_product() -> None:
    with pytest.raises(FileFormatError, match="more to it"):
        serial._read_step(["copy", [0, 0, 4], [0, 4, 4], "", []])
