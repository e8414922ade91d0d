"""Library steps: what is offered, what the library is asked and computes, what may go wrong."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import gpu_blas as fake
import numpy as np
import pytest

from weft import ops
from weft.backends.gpu import blas, blas_api
from weft.backends.gpu.blas_api import CUBLASLT, HIPBLASLT
from weft.backends.interp import InterpDevice
from weft.compile import compile_graph, library
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DeviceError, DTypeError, FileFormatError, UsageError
from weft.graph.ir import Graph, Node
from weft.ops.nodes import input_node
from weft.program import serial
from weft.program.check import check_program
from weft.program.gemm import Gemm, Matrix
from weft.program.program import Library, Program
from weft.program.session import Session

F32, BF16, F16 = dt.float32, dt.bfloat16, dt.float16
M, N, K = 24, 40, 32


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are worth a call here; the environment wishes nothing."""
    monkeypatch.setattr(library, "WORK", 1)
    monkeypatch.delenv("WEFT_BLAS", raising=False)


def leaf(name: str, *shape: int, dtype: dt.DType = F32) -> Node:
    return input_node(name, shape, dtype, "input")


def product(form: str, dtype: dt.DType = F32, out: dt.DType | None = None) -> tuple[Node, ...]:
    """(a b, a, b), where "t" in `form` says that an operand is stored transposed."""
    a = leaf("a", *((K, M) if form[0] == "t" else (M, K)), dtype=dtype)
    b = leaf("b", *((N, K) if form[1] == "t" else (K, N)), dtype=dtype)
    left = ops.transpose(a, (1, 0)) if form[0] == "t" else a
    right = ops.transpose(b, (1, 0)) if form[1] == "t" else b
    return ops.dot(left, right, out_dtype=out or dtype), a, b


def spread(bias: Node, *shape: int) -> Node:
    return ops.broadcast(bias, shape=shape)


def with_bias() -> Graph:
    y, a, b = product("nt")
    bias = leaf("bias", N)
    return Graph((a, b, bias), (ops.add(y, spread(bias, M, N)),), name="g")


def with_residual() -> Graph:
    y, a, b = product("nt")
    bias, more = leaf("bias", N), leaf("more", M, N)
    return Graph((a, b, bias, more), (ops.add(more, ops.add(y, spread(bias, M, N))),), name="g")


def with_gelu() -> Graph:
    y, a, b = product("nt", BF16, F32)
    bias = leaf("bias", N, dtype=BF16)
    inner = ops.add(y, spread(ops.cast(bias, F32), M, N))
    return Graph(
        (a, b, bias), (ops.cast(ops.call("gelu", inner, approximate="tanh"), BF16),), name="g"
    )


def batched() -> Graph:
    a, b = leaf("a", 2, 3, M, K, dtype=F16), leaf("b", 2, 3, N, K, dtype=F16)
    y = ops.dot(a, ops.transpose(b, (0, 1, 3, 2)), out_dtype=F16)
    return Graph((a, b), (y,), name="g")


def heads() -> Graph:
    """A batch whose matrices lie side by side."""
    a, b = leaf("a", M, 4, K), leaf("b", K, 4, N)
    y = ops.dot(ops.transpose(a, (1, 0, 2)), ops.transpose(b, (1, 0, 2)), out_dtype=F32)
    return Graph((a, b), (y,), name="g")


def part() -> Graph:
    """An operand that starts inside its value, and rows that are two axes."""
    a, b = leaf("a", 2, M, 3 * K), leaf("b", K, N)
    left = ops.slice_(a, starts=(0, 0, K), stops=(2, M, 2 * K))
    y = ops.dot(ops.reshape(left, (2 * M, K)), b, out_dtype=F32)
    return Graph((a, b), (ops.reshape(y, (2, M, N)),), name="g")


def plain_graph(form: str, dtype: dt.DType, out: dt.DType) -> Graph:
    y, a, b = product(form, dtype, dtype if dtype is not dt.int8 else dt.int32)
    return Graph((a, b), (y if y.dtype is out else ops.cast(y, out),), name="g")


GRAPHS: dict[str, Any] = {
    **{f"f32 {f}": (lambda f=f: plain_graph(f, F32, F32)) for f in ("nn", "nt", "tn", "tt")},
    "bf16": lambda: plain_graph("nt", BF16, BF16),
    "bf16 to f32": lambda: plain_graph("tn", BF16, F32),
    "f16": lambda: plain_graph("nn", F16, F16),
    "int8": lambda: plain_graph("nt", dt.int8, dt.int32),
    "bias": with_bias,
    "residual": with_residual,
    "gelu": with_gelu,
    "batched": batched,
    "heads": heads,
    "part": part,
}  # fmt: skip


def values_for(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    out = {}
    for x in graph.inputs:
        made = rng.integers(-9, 9, x.shape) if x.dtype.is_int else rng.standard_normal(x.shape)
        out[x.attrs["name"]] = made.astype(x.dtype.numpy)
    return out


def compiled(graph: Graph, device: Any) -> Program:
    """Compiled, and read back from its file."""
    program = compile_graph(graph, device.caps)
    back = serial.loads(serial.dumps(program))
    assert back.steps == program.steps
    return back


@pytest.mark.parametrize("vendor", [CUBLASLT, HIPBLASLT], ids=lambda v: v.name)
@pytest.mark.parametrize("name", GRAPHS)
def test_products(name: str, vendor: blas_api.Vendor) -> None:
    """The library's result, its kernel's, and float64's agree; its kernel is not even loaded."""
    graph = GRAPHS[name]()
    device = fake.blas_device(vendor)
    program = compiled(graph, device)
    assert [type(s) for s in program.steps] == [Library]
    values = values_for(graph)
    session = Session(program, device)
    (got,) = session.run(values)
    assert not device.driver.fake.wrong and session.products == {0: vendor.name}
    assert "load" not in device.driver.names() and "product" in device.driver.names()
    (want,) = ops.evaluate(graph, values)  # rounds a dot of bf16 to bf16, whatever comes after
    loose = 1e-2 if graph.inputs[0].dtype in (BF16, F16) else 1e-5
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got64, want64, rtol=loose, atol=loose * 8)
    tight = 1e-2 if got.dtype.itemsize == 2 else 1e-5
    reference = InterpDevice(device.caps)
    results = check_program(program, device, reference, values, rtol=tight, atol=tight * 8)
    assert all(r.ok for r in results), results


def test_what_the_library_is_asked() -> None:
    device = fake.blas_device()
    session = Session(compiled(part(), device), device)
    session.run(values_for(part()))
    (asked,) = device.driver.fake.asked
    assert asked == {
        "MAX_WORKSPACE_BYTES": 1 << 12, "REDUCTION_SCHEME_MASK": 0,
        "MIN_ALIGNMENT_A_BYTES": 256, "MIN_ALIGNMENT_B_BYTES": 128,  # the slice starts at K floats
        "MIN_ALIGNMENT_C_BYTES": 256, "MIN_ALIGNMENT_D_BYTES": 256,
    }  # fmt: skip
    again = Session(compiled(part(), device), device)
    again.run(values_for(part()))
    assert len(device.driver.fake.asked) == 1  # once per product


def test_recordings_hold_products() -> None:
    """The second run is recorded, later ones replay it; other buffers are another recording."""
    device = fake.blas_device()
    graph = with_bias()
    session = Session(compiled(graph, device), device)
    driver, values = device.driver, values_for(graph)
    want = values["a"] @ values["b"].T + values["bias"]
    for n in range(4):
        values["bias"] = values["bias"] + 1
        (got,) = session.run(values)
        np.testing.assert_allclose(got, want + n + 1, rtol=1e-4, atol=1e-4)
        del got
    assert driver.names().count("product") == 2 and driver.names().count("replay") == 3
    moved = {k: _placed(device, v) for k, v in values.items()}
    values["bias"] = np.zeros(N, np.float32)
    device.write(moved["bias"], values["bias"])
    for _ in range(3):
        (got,) = session.run(moved)
        np.testing.assert_allclose(got, values["a"] @ values["b"].T, rtol=1e-4, atol=1e-4)
    assert not driver.fake.wrong


def _placed(device: Any, value: np.ndarray) -> Any:
    buffer = device.alloc(value.nbytes)
    device.write(buffer, value)
    return buffer


def test_tf32_only_where_asked() -> None:
    driver = fake.BlasDriver(CUBLASLT)
    seen = []
    for tf32 in (False, True):
        made = blas.Blas(CUBLASLT, driver.fake, _direct, fake.STREAM, driver, tf32, 1 << 12)
        for dtype in (F32, BF16):
            found = made.product(gemm(dtype), (0, 0, 0))
            assert isinstance(found, blas.Product)
            seen.append((found.library, driver.fake.live[found.desc.value][1]["compute"]))
        made.close()
    plain, rounded = "cuBLASLt", "cuBLASLt (tf32)"
    assert seen == [(plain, 68), (plain, 68), (rounded, 77), (rounded, 68)]


def _direct(function: Any, *args: Any) -> Any:
    return function(*args)


def gemm(dtype: dt.DType = F32, **fields: Any) -> Gemm:
    a = Matrix(0, dtype, 0, (0, K, 1))
    b = Matrix(1, dtype, 0, (0, N, 1))
    c = Matrix(2, dtype, 0, (M * N, N, 1))
    return Gemm(M, N, K, 1, a, b, c, **fields)


@pytest.mark.parametrize("vendor", [CUBLASLT, HIPBLASLT], ids=lambda v: v.name)
def test_everything_is_given_back(vendor: blas_api.Vendor) -> None:
    driver = fake.BlasDriver(vendor)
    made = blas.Blas(vendor, driver.fake, _direct, fake.STREAM, driver, workspace=1 << 12)
    assert isinstance(made.product(gemm(), (0, 0, 0)), blas.Product)
    driver.fake.supported = False
    assert "NOT_SUPPORTED" in str(made.product(gemm(BF16), (0, 0, 0)))
    kinds = sorted(kind for kind, _ in driver.fake.live.values())
    assert kinds == ["", "MatmulDesc", *["MatrixLayout"] * 4]  # of the product that is kept
    assert len(driver.live) == 1  # one workspace
    made.close()
    assert not driver.fake.live and not driver.live and not driver.fake.wrong


@pytest.mark.parametrize("failing", [n for n in blas_api.FUNCTIONS if "Destroy" not in n])
def test_failures_are_told(failing: str) -> None:
    """A library that does not start or refuses leaves the kernel, and says why; one that fails at
    a run names the step. Nothing stays behind."""
    device = fake.blas_device()
    driver, graph = device.driver, heads()
    driver.fake.fail[failing] = 13
    session = Session(compiled(graph, device), device)
    values = values_for(graph)
    if failing == "Matmul":
        with pytest.raises(DeviceError, match="main, matmul: cublasLtMatmul failed: EXEC"):
            session.run(values)
    else:
        why = f"own kernel: cublasLt{failing} failed: EXECUTION_FAILED (13)"
        assert session.products == {0: why}
    (got,) = session.run(values)
    want = values["a"].transpose(1, 0, 2) @ values["b"].transpose(1, 0, 2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert not driver.fake.wrong
    assert ("launch" in driver.names()) == (failing != "Matmul")


def test_a_device_without_the_library() -> None:
    device = fake.blas_device(none="cuBLASLt is not found: pip install nvidia-cublas")
    session = Session(compiled(with_bias(), device), device)
    session.run(values_for(with_bias()))
    assert device.library() == device.driver.none
    assert session.products == {0: f"own kernel: {device.driver.none}"}
    other = InterpDevice(PRESETS["cuda"])
    assert Session(compiled(with_bias(), other), other).products == {0: "own kernel"}


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake.BlasDriver(CUBLASLT)
    monkeypatch.setattr(blas_api, "find", lambda vendor: fake.FakeBlas(vendor, driver))

    def opened(vendor: blas_api.Vendor) -> blas.Blas:
        return blas.open_blas(vendor, _direct, fake.STREAM, driver)

    assert opened(CUBLASLT).name == "cuBLASLt"
    with pytest.raises(DeviceError, match="hipBLASLt may sum in another order"):
        opened(HIPBLASLT)
    for wish, tf32 in (("on", False), ("tf32", True)):
        monkeypatch.setenv("WEFT_BLAS", wish)
        assert opened(HIPBLASLT).tf32 == tf32
    monkeypatch.setenv("WEFT_BLAS", "off")
    with pytest.raises(DeviceError, match="WEFT_BLAS=off"):
        opened(CUBLASLT)
    monkeypatch.setenv("WEFT_BLAS", "fast")
    with pytest.raises(UsageError, match=r'WEFT_BLAS=.fast.; use "on"'):
        opened(CUBLASLT)


def test_a_library_that_lacks_a_function() -> None:
    with pytest.raises(DeviceError, match="too old: it has no cublasLtCreate"):
        blas_api.functions(CUBLASLT, object())


def test_a_library_that_is_not_there() -> None:
    vendor = blas_api.Vendor(**{
        **{f: getattr(CUBLASLT, f) for f in CUBLASLT.__dataclass_fields__},
        "name": "noBLAS", "prefix": "noSuchBlas", "files": ("libnosuchblas.so",),
    })  # fmt: skip
    with pytest.raises(DeviceError, match="noBLAS is not found: pip install"):
        blas_api.find(vendor)


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


def test_what_is_read_stays_in_its_memory() -> None:
    """Whatever stands in a file's Gemm: it is refused by name, or touches its arguments only."""
    device = fake.blas_device()
    program, values = compile_graph(with_residual(), device.caps), values_for(with_residual())
    honest = serial._gemm(program.steps[0].gemm)  # type: ignore[union-attr]
    places = [(i,) for i in range(5)] + [(i, j) for i in range(5, 10) for j in range(6)]
    played = 0
    for at in places:
        for value in (-1, 0, 1, 2, 3, 16, N, 1 << 31, 1.5, True, None, "float16", [], "x"):
            try:
                read = read_with(program, changed(honest, at, value))
            except FileFormatError:
                continue
            except (TypeError, ValueError, DTypeError):
                continue  # what reading a file calls damaged
            Session(read, device).run(values)
            played += 1
    assert played > 5 and not device.driver.fake.wrong


def test_a_copy_has_no_product() -> None:
    with pytest.raises(FileFormatError, match="more to it"):
        serial._read_step(["copy", [0, 0, 4], [0, 4, 4], "", []])


# -- the true library -----------------------------------------------------------------------------


def test_descriptors_of_the_true_library() -> None:
    """cuBLASLt itself reads back what weft sets: descriptors need no GPU. (Run with cuBLASLt 13.1
    of the wheel nvidia-cublas 13.10 on a machine without one.)"""
    try:
        true = blas_api.find(CUBLASLT)
    except DeviceError as error:
        pytest.skip(str(error))
    driver = fake.BlasDriver(CUBLASLT)
    seen: list[list[int]] = []

    def ask(
        handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, *_: Any
    ) -> int:
        seen.append([
            *(_read(true, "MatmulDesc", desc, i) for i in (0, 1, 3, 4, 7)),
            *(_read(true, "MatrixLayout", x, i) for x in (a, b, c, d) for i in range(7)),
            *(_read(true, "MatmulPreference", preference, i) for i in (1, 3, 5, 6, 7, 8)),
        ])  # fmt: skip
        return 15

    class Mixed:
        """The true library's descriptors; the rest, which needs a GPU, is the stand-in's."""

        def __getattr__(self, name: str) -> Any:
            if name in ("cublasLtCreate", "cublasLtDestroy", "cublasLtMatmul"):
                return getattr(driver.fake, name)
            if name == "cublasLtMatmulAlgoGetHeuristic":
                types = blas_api.FUNCTIONS["MatmulAlgoGetHeuristic"]
                self.kept = ctypes.CFUNCTYPE(ctypes.c_int, *types)(ask)
                return self.kept
            return getattr(true, name)

    made = blas.Blas(CUBLASLT, Mixed(), _direct, fake.STREAM, driver, workspace=1 << 12)
    bias = Matrix(3, BF16, 0, (0, 0, 1))
    found = made.product(gemm(BF16, bias=bias, gelu=True), (0, 0, 0, 0))
    assert "NOT_SUPPORTED (15)" in str(found)
    transposed = Gemm(
        M, N, K, 5, Matrix(0, F32, 3, (M * K, 1, M)), Matrix(1, F32, 0, (0, 1, K)),
        Matrix(2, F32, 0, (M * N, N, 1)),
    )  # fmt: skip
    made.product(transposed, (0, 0, 0))
    assert seen == [
        [68, 0, 0, 0, 36, *[14, 0, N, K, N, 1, 0], *[14, 0, K, M, K, 1, 0],
         *[14, 0, N, M, N, 1, 0] * 2, 1 << 12, 0, 256, 256, 256, 256],
        [68, 0, 1, 1, 1, *[0, 0, K, N, K, 5, 0], *[0, 0, M, K, M, 5, M * K],
         *[0, 0, N, M, N, 5, M * N] * 2, 1 << 12, 0, 256, 4, 256, 256],
    ]  # fmt: skip
    made.close()


def _read(true: Any, kind: str, what: int, attribute: int) -> int:
    """An attribute, as many bytes as it has."""
    get = getattr(true, f"cublasLt{kind}GetAttribute")
    at = ctypes.c_void_p
    get.argtypes = (at, ctypes.c_int, at, ctypes.c_size_t, at)
    value, size = ctypes.c_uint64(0), ctypes.c_size_t(0)
    assert get(what, attribute, None, 0, ctypes.byref(size)) == 0
    assert get(what, attribute, ctypes.byref(value), size.value, ctypes.byref(size)) == 0
    return value.value
