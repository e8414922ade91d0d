"""Library steps on a GPU: what the library is asked and computes, and what may go wrong."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from gpu_bindings import install, opened
from gpu_blas import FakeBlas, blas_device, blas_of
from gpu_machine import STREAM
from gpu_products import (
    BF16,
    F16,
    F32,
    GRAPHS,
    K,
    M,
    N,
    compiled,
    gemm,
    heads,
    part,
    values_for,
    with_bias,
)
from rows import covering
from stepwise import check_program

from weft import ops
from weft.backends import registry
from weft.backends.gpu import blas, blas_api
from weft.backends.gpu.blas_api import CUBLASLT, HIPBLASLT
from weft.backends.interp import InterpDevice
from weft.bench.profile import profile
from weft.cli import explain, explained
from weft.compile import compile_graph, library
from weft.conform.gpt import GptSizes, Trainer
from weft.core.caps import PRESETS
from weft.core.errors import DeviceError, UsageError
from weft.program.gemm import Gemm, Matrix
from weft.program.program import Library
from weft.program.session import Session


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are worth a call here; the environment wishes nothing."""
    monkeypatch.setattr(library, "WORK", 1)
    monkeypatch.delenv("WEFT_BLAS", raising=False)


@pytest.mark.parametrize(
    "name,vendor", covering(GRAPHS, [CUBLASLT, HIPBLASLT]), ids=lambda x: getattr(x, "name", x)
)
def test_products(name: str, vendor: blas_api.Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's result, its kernel's, and float64's agree; its kernel is not even loaded."""
    graph = GRAPHS[name]()
    device = blas_device(monkeypatch, vendor)
    program = compiled(graph, device)
    assert [type(s) for s in program.steps] == [Library]
    values = values_for(graph)
    session = Session(program, device)
    (got,) = session.run(values)
    assert not blas_of(device).wrong and session.products == {0: vendor.name}
    assert not device.gpu.kernels and "Matmul" in blas_of(device).calls
    (want,) = ops.evaluate(graph, values)  # rounds a dot of bf16 to bf16, whatever comes after
    loose = 1e-2 if graph.inputs[0].dtype in (BF16, F16) else 1e-5
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got64, want64, rtol=loose, atol=loose * 8)
    tight = 1e-2 if got.dtype.itemsize == 2 else 1e-5
    reference = InterpDevice(device.caps)
    results = check_program(program, device, reference, values, rtol=tight, atol=tight * 8)
    assert all(r.ok for r in results), results


def test_what_the_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    device = blas_device(monkeypatch)
    session = Session(compiled(part(), device), device)
    session.run(values_for(part()))
    (asked,) = blas_of(device).asked
    assert asked == {
        "MAX_WORKSPACE_BYTES": blas.WORKSPACE, "REDUCTION_SCHEME_MASK": 0,
        "MIN_ALIGNMENT_A_BYTES": 256, "MIN_ALIGNMENT_B_BYTES": 128,  # the slice starts at K floats
        "MIN_ALIGNMENT_C_BYTES": 256, "MIN_ALIGNMENT_D_BYTES": 256,
    }  # fmt: skip
    again = Session(compiled(part(), device), device)
    again.run(values_for(part()))
    assert len(blas_of(device).asked) == 1  # once per product


def test_recordings_hold_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run is recorded, later ones replay it; other buffers are another recording."""
    device = blas_device(monkeypatch)
    graph = with_bias()
    session = Session(compiled(graph, device), device)
    fake, values = blas_of(device), values_for(graph)
    want = values["a"] @ values["b"].T + values["bias"]
    for n in range(4):
        values["bias"] = values["bias"] + 1
        (got,) = session.run(values)
        np.testing.assert_allclose(got, want + n + 1, rtol=1e-4, atol=1e-4)
        del got
    assert fake.calls.count("Matmul") == 2 and device.gpu.shorts().count("replay") == 3
    moved = {k: _placed(device, v) for k, v in values.items()}
    values["bias"] = np.zeros(N, np.float32)
    device.write(moved["bias"], values["bias"])
    for _ in range(3):
        (got,) = session.run(moved)
        np.testing.assert_allclose(got, values["a"] @ values["b"].T, rtol=1e-4, atol=1e-4)
    assert not fake.wrong


def _placed(device: Any, value: np.ndarray) -> Any:
    buffer = device.alloc(value.nbytes)
    device.write(buffer, value)
    return buffer


def test_tf32_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, driver = alone(monkeypatch, CUBLASLT)
    seen = []
    for tf32 in (False, True):
        made = blas.Blas(CUBLASLT, fake, _direct, STREAM, driver, tf32, 1 << 12)
        for dtype in (F32, BF16):
            found = made.product(gemm(dtype), (0, 0, 0))
            assert isinstance(found, blas.Product)
            seen.append((found.library, fake.live[found.desc.value][1]["compute"]))
        made.close()
    plain, rounded = "cuBLASLt", "cuBLASLt (tf32)"
    assert seen == [(plain, 68), (plain, 68), (rounded, 77), (rounded, 68)]


def alone(monkeypatch: pytest.MonkeyPatch, vendor: blas_api.Vendor) -> tuple[FakeBlas, Any]:
    """The library without a device, and a driver for its memory."""
    gpu = install(monkeypatch, "cuda")
    return FakeBlas(vendor, gpu), opened(gpu)


def _direct(function: Any, *args: Any) -> Any:
    return function(*args)


@pytest.mark.parametrize("vendor", [CUBLASLT, HIPBLASLT], ids=lambda v: v.name)
def test_everything_is_given_back(vendor: blas_api.Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, driver = alone(monkeypatch, vendor)
    made = blas.Blas(vendor, fake, _direct, STREAM, driver, workspace=1 << 12)
    assert isinstance(made.product(gemm(), (0, 0, 0)), blas.Product)
    fake.supported = False
    assert "NOT_SUPPORTED" in str(made.product(gemm(BF16), (0, 0, 0)))
    kinds = sorted(kind for kind, _ in fake.live.values())
    assert kinds == ["", "MatmulDesc", *["MatrixLayout"] * 4]  # of the product that is kept
    assert len(fake.gpu.blocks) == 1  # one workspace
    made.close()
    driver.sync()
    assert not fake.live and not fake.gpu.blocks and not fake.wrong


def test_a_bias_that_is_not_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preferences have no word for it, and an algorithm that reads 16 bytes at a time faults."""
    fake, driver = alone(monkeypatch, CUBLASLT)
    made = blas.Blas(CUBLASLT, fake, _direct, STREAM, driver, workspace=1 << 12)
    for offset, start, fits in ((0, 0, True), (8, 0, True), (1, 0, False), (8, 8, False)):
        found = made.product(gemm(BF16, bias=Matrix(3, BF16, offset, (0, 0, 1))), (0, 0, 0, start))
        assert isinstance(found, blas.Product) == fits
    made.close()


@pytest.mark.parametrize("failing", [n for n in blas_api.FUNCTIONS if "Destroy" not in n])
def test_failures_are_told(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that does not start or refuses leaves the kernel, and says why; one that fails at
    a run names the step. Nothing stays behind."""
    device = blas_device(monkeypatch)
    fake, graph = blas_of(device), heads()
    fake.fail[failing] = 13
    session = Session(compiled(graph, device), device)
    values = values_for(graph)
    if failing == "Matmul":
        with pytest.raises(DeviceError, match=r"main, .*matmul.*: cublasLtMatmul failed: EXEC"):
            session.run(values)
    else:
        why = f"own kernel: cublasLt{failing} failed: EXECUTION_FAILED (13)"
        assert session.products == {0: why}
    (got,) = session.run(values)
    want = values["a"].transpose(1, 0, 2) @ values["b"].transpose(1, 0, 2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert not fake.wrong
    assert bool(device.gpu.launches) == (failing != "Matmul")


def test_a_device_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    none = "cuBLASLt is not found: pip install nvidia-cublas"
    device = blas_device(monkeypatch, none=none)
    session = Session(compiled(with_bias(), device), device)
    session.run(values_for(with_bias()))
    assert device.library() == none
    assert session.products == {0: f"own kernel: {none}"}
    other = InterpDevice(PRESETS["cuda"])
    assert Session(compiled(with_bias(), other), other).products == {0: "own kernel"}


def test_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weft explain` names the library that is there, a profile the one that ran."""
    for none, shown in (("", "cuBLASLt"), ("not found", "not found")):
        device = blas_device(monkeypatch, none=none)
        program = compile_graph(with_bias(), device.caps)
        goal, report = explained.of_device(device), program.meta["report"]
        assert explain._report(program, report, goal, False).endswith(f"library here: {shown}")
        assert explain._report(program, report, goal, True)["library"] == shown
        session = Session(program, device)
        session.run(values_for(with_bias()))
        (step,) = profile(session, [], 1)
        kernel = program.kernels[0].name
        assert step.kernel == (kernel if none else f"cuBLASLt for {kernel}")


def test_training_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of a transformer, products in bf16 and their gradients by the library, the second
    recorded and the third replayed: the losses of the CPU."""
    shape = GptSizes(layers=1, heads=2, width=32, context=16, vocab=48, batch=2)
    cpu = Trainer(shape, "cpu", BF16)
    want = [cpu.step() for _ in range(3)]
    device = blas_device(monkeypatch)
    get = registry.get
    monkeypatch.setattr(registry, "get", lambda s, *a: device if s == "cuda:0" else get(s, *a))
    trainer = Trainer(shape, device, BF16)  # type: ignore[arg-type]
    np.testing.assert_allclose([trainer.step() for _ in range(3)], want, rtol=1e-4)
    (session,) = trainer.compiled.sessions()
    assert isinstance(session, Session) and not blas_of(device).wrong
    assert list(session.products.values()).count("cuBLASLt") >= 10
    assert "replay" in device.gpu.shorts()


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = install(monkeypatch, "cuda")
    driver = opened(gpu)
    monkeypatch.setattr(blas_api, "find", lambda vendor: FakeBlas(vendor, gpu))

    def chosen(vendor: blas_api.Vendor) -> blas.Blas:
        return blas.open_blas(vendor, _direct, STREAM, driver)

    assert chosen(CUBLASLT).name == "cuBLASLt"
    with pytest.raises(DeviceError, match="hipBLASLt may sum in another order"):
        chosen(HIPBLASLT)
    for wish, tf32 in (("on", False), ("tf32", True)):
        monkeypatch.setenv("WEFT_BLAS", wish)
        assert chosen(HIPBLASLT).tf32 == tf32
    monkeypatch.setenv("WEFT_BLAS", "off")
    with pytest.raises(DeviceError, match="WEFT_BLAS=off"):
        chosen(CUBLASLT)
    monkeypatch.setenv("WEFT_BLAS", "fast")
    with pytest.raises(UsageError, match=r'WEFT_BLAS=.fast.; use "on"'):
        chosen(CUBLASLT)


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


def test_the_driver_gives_the_library_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handle and workspace, before it closes itself."""
    device = blas_device(monkeypatch)
    session = Session(compiled(with_bias(), device), device)
    session.run(values_for(with_bias()))
    del session
    gc.collect()
    device.close()
    assert device.gpu.left() == [] and not blas_of(device).live and not blas_of(device).wrong


# -- the true library -----------------------------------------------------------------------------


def test_descriptors_of_the_true_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt itself reads back what weft sets: descriptors need no GPU. (Run with cuBLASLt 13.1
    of the wheel nvidia-cublas 13.10 on a machine without one.)"""
    try:
        true = blas_api.find(CUBLASLT)
    except DeviceError as error:
        pytest.skip(str(error))
    fake, driver = alone(monkeypatch, CUBLASLT)
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
                return getattr(fake, name)
            if name == "cublasLtMatmulAlgoGetHeuristic":
                types = blas_api.FUNCTIONS["MatmulAlgoGetHeuristic"]
                self.kept = ctypes.CFUNCTYPE(ctypes.c_int, *types)(ask)
                return self.kept
            return getattr(true, name)

    made = blas.Blas(CUBLASLT, Mixed(), _direct, STREAM, driver, workspace=1 << 12)
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
