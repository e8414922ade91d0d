"""cuBLASLt and hipBLASLt as stand-ins behind their C functions: descriptors are decoded as the
vendors' headers number them, products computed by NumPy in float64 on the memory of gpu_bindings.

The numbers here were read from cublasLt.h (CUDA 13.1), hipblaslt.h and hipblas-common.h (ROCm 6.4),
apart from those in weft.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_bindings import Bindings, Taught, install
from gpu_machine import STREAM

from weft.backends.gpu import blas_api
from weft.backends.gpu.blas_api import Vendor
from weft.core.errors import DeviceError

_NUMPY = {0: np.float32, 2: np.float16, 3: np.int8, 10: np.int32, 14: ml_dtypes.bfloat16}

# header's name -> (number, bytes)
CUDA = {
    "TRANSA": (3, 4), "TRANSB": (4, 4), "EPILOGUE": (7, 4), "BIAS_POINTER": (8, 8),
    "BATCH_COUNT": (5, 4), "STRIDED_BATCH_OFFSET": (6, 8),
    "MAX_WORKSPACE_BYTES": (1, 8), "REDUCTION_SCHEME_MASK": (3, 4),
    "MIN_ALIGNMENT_A_BYTES": (5, 4), "MIN_ALIGNMENT_B_BYTES": (6, 4),
    "MIN_ALIGNMENT_C_BYTES": (7, 4), "MIN_ALIGNMENT_D_BYTES": (8, 4),
    "OP_N": 0, "OP_T": 1, "COMPUTE_32F": 68, "COMPUTE_32F_FAST_TF32": 77, "COMPUTE_32I": 72,
    "INVALID": 7, "FAILED": 13, "NOT_SUPPORTED": 15, "state": 72,
}  # fmt: skip
HIP = {
    "TRANSA": (0, 4), "TRANSB": (1, 4), "EPILOGUE": (2, 4), "BIAS_POINTER": (3, 8),
    "BIAS_DATA_TYPE": (4, 4),
    "BATCH_COUNT": (0, 4), "STRIDED_BATCH_OFFSET": (1, 8), "MAX_WORKSPACE_BYTES": (1, 8),
    "OP_N": 111, "OP_T": 112, "COMPUTE_32F": 2, "COMPUTE_32F_FAST_TF32": 6, "COMPUTE_32I": 9,
    "INVALID": 3, "FAILED": 5, "NOT_SUPPORTED": 7, "state": 32,
}  # fmt: skip
_KINDS = {
    "MatmulDesc": ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "BIAS_DATA_TYPE"),
    "MatrixLayout": ("BATCH_COUNT", "STRIDED_BATCH_OFFSET"),
    "MatmulPreference": (
        "MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK", "MIN_ALIGNMENT_A_BYTES",
        "MIN_ALIGNMENT_B_BYTES", "MIN_ALIGNMENT_C_BYTES", "MIN_ALIGNMENT_D_BYTES",
    ),
}  # fmt: skip


class FakeBlas:
    """One of the libraries, as an object whose attributes are its C functions. `fail` maps a
    function's name to the status that its next call gives; `wrong` collects what should not be."""

    def __init__(self, vendor: Vendor, gpu: Bindings) -> None:
        self.vendor, self.gpu = vendor, gpu
        self.numbers: dict[str, Any] = CUDA if vendor.prefix == "cublasLt" else HIP
        self.live: dict[int, tuple[str, dict[str, int]]] = {}
        self.calls: list[str] = []
        self.asked: list[dict[str, int]] = []  # the preferences of each heuristic
        self.fail: dict[str, int] = {}
        self.wrong: list[str] = []
        self.supported = True
        for name, arguments in blas_api.FUNCTIONS.items():
            function = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._entry(name))
            setattr(self, vendor.prefix + name, function)

    def _entry(self, name: str) -> Callable[..., int]:
        """The function `name`: `<Kind>Create`, `<Kind>Destroy`, ... share one method each."""
        ends = ("SetAttribute", "Destroy", "Create")
        end = next((e for e in ends if name.endswith(e)), "")
        method = getattr(self, "_" + (end or name).lower())
        kind = name.removesuffix(end)

        def entry(*args: Any) -> int:
            self.calls.append(name)
            if name in self.fail:
                return self.fail.pop(name)
            try:
                method(*((kind,) if end else ()), *args)
            except Refuse as refusal:
                return int(self.numbers[str(refusal)])
            except Exception as error:  # it cannot pass through C
                self.wrong.append(f"{name}: {error!r}")
                return int(self.numbers["INVALID"])
            return 0

        return entry

    # -- objects

    def _create(self, kind: str, out: int, *fields: int) -> None:
        address = 0x1000 + 16 * len(self.calls)
        names = {
            "MatmulDesc": ("compute", "scale"),
            "MatrixLayout": ("type", "rows", "columns", "ld"),
        }.get(kind, ())
        self.live[address] = kind, dict(zip(names, fields, strict=True))
        ctypes.c_void_p.from_address(out).value = address

    def _destroy(self, kind: str, what: int) -> None:
        found, _ = self.live.pop(what)
        assert found == kind, f"a {found} destroyed as a {kind}"
        assert kind or not self.live, "the handle goes last"

    def _setattribute(self, kind: str, what: int, number: int, value: int, size: int) -> None:
        found, fields = self.live[what]
        assert found == kind
        names = {self.numbers[n]: n for n in _KINDS[kind] if n in self.numbers}
        name = names[number, size]
        fields[name] = int.from_bytes(ctypes.string_at(value, size), "little", signed=True)

    def _fields(self, kind: str, what: int) -> dict[str, int]:
        found, fields = self.live[what]
        assert found == kind, f"a {found} given as a {kind}"
        return fields

    # -- products

    def _matmulalgogetheuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int,
        wanted: int, results: int, count: int,
    ) -> None:  # fmt: skip
        assert self.gpu.capture is None, "asked in a recording"
        assert self.live[handle][0] == "" and wanted == 1
        fields = self._fields("MatmulDesc", desc)
        assert not fields["EPILOGUE"] & 4 or fields["BIAS_POINTER"], "hipBLASLt wants one"
        for layout in (a, b, c, d):
            self._fields("MatrixLayout", layout)
        self.asked.append(dict(self._fields("MatmulPreference", preference)))
        if not self.supported:
            raise Refuse("NOT_SUPPORTED")
        ctypes.memset(results, 0, self.numbers["state"] + 4)
        ctypes.memmove(results, b"algorithm", 9)
        ctypes.c_int.from_address(count).value = 1

    def _matmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algorithm: int,
        workspace: int, nbytes: int, stream: int,
    ) -> None:  # fmt: skip
        assert self.live[handle][0] == "" and stream == STREAM
        assert ctypes.string_at(algorithm, 9) == b"algorithm"
        self.gpu.bytes_at(workspace, nbytes)
        fields = dict(self._fields("MatmulDesc", desc))
        places = [
            (x, dict(self._fields("MatrixLayout", layout)))
            for x, layout in ((a, a_layout), (b, b_layout), (c, c_layout), (d, d_layout))
        ]
        kind = ctypes.c_int32 if fields["scale"] == 10 else ctypes.c_float
        scale = [kind.from_address(x).value for x in (alpha, beta)]
        assert self.gpu.chosen.value is not None
        (queue,) = (h for h in self.gpu.live if h.what == "stream")
        self.gpu.enqueue(queue, lambda: self.compute(fields, places, scale))

    def matrices(self, place: tuple[int, dict[str, int]]) -> np.ndarray:
        """The matrices of a layout, [batch, rows, columns], in the device's memory."""
        address, f = place
        dtype = np.dtype(_NUMPY[f["type"]])
        batch, step = f.get("BATCH_COUNT", 1), f.get("STRIDED_BATCH_OFFSET", 0)
        assert f["ld"] >= f["rows"]
        last = (batch - 1) * step + (f["columns"] - 1) * f["ld"] + f["rows"] - 1
        whole = self.gpu.bytes_at(address, (last + 1) * dtype.itemsize).view(dtype)
        strides = [s * dtype.itemsize for s in (step, 1, f["ld"])]
        return np.lib.stride_tricks.as_strided(whole, (batch, f["rows"], f["columns"]), strides)

    def compute(self, f: dict[str, int], places: list[Any], scale: list[float]) -> None:
        """d = epilogue(alpha op(a) op(b) + beta c), as the library does."""
        a, b, c, d = map(self.matrices, places)
        sides = [np.asarray(x, np.float64) for x in (a, b)]
        for i, name in enumerate(("TRANSA", "TRANSB")):
            operation = f.get(name, self.numbers["OP_N"])
            assert operation in (self.numbers["OP_N"], self.numbers["OP_T"])
            if operation == self.numbers["OP_T"]:
                sides[i] = sides[i].transpose(0, 2, 1)
        integer = d.dtype == np.int32
        allowed = ("COMPUTE_32I",) if integer else ("COMPUTE_32F", "COMPUTE_32F_FAST_TF32")
        assert f["compute"] in [self.numbers[n] for n in allowed]
        value = scale[0] * (sides[0] @ sides[1])
        if scale[1]:
            value = value + scale[1] * np.asarray(c, np.float64)
        epilogue = f.get("EPILOGUE", 1)
        assert epilogue in (1, 4, 32, 36)
        if epilogue & 4:
            nbytes = d.shape[1] * d.dtype.itemsize
            bias = self.gpu.bytes_at(f["BIAS_POINTER"], nbytes).view(d.dtype)
            value = value + np.asarray(bias, np.float64)[:, None]
        if epilogue & 32:
            inner = np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3))
            value = 0.5 * value * (1 + inner)
        d[...] = value.astype(d.dtype)


class Refuse(Exception):
    """A status, by its name in the table of numbers."""


def blas_device(
    monkeypatch: pytest.MonkeyPatch, vendor: Vendor = blas_api.CUBLASLT, none: str = ""
) -> Taught:
    """A device whose vendor has this library (`blas_of`), or `none` as the reason why not."""
    monkeypatch.setenv("WEFT_BLAS", "on")
    gpu = install(monkeypatch, "cuda" if vendor is blas_api.CUBLASLT else "hip")
    gpu.memory, gpu.blas = 1 << 27, FakeBlas(vendor, gpu)

    def find(wanted: Vendor) -> FakeBlas:
        assert wanted is vendor
        if none:
            raise DeviceError(none)
        return blas_of(device)

    monkeypatch.setattr(blas_api, "find", find)
    device = Taught(gpu)
    return device


def blas_of(device: Taught) -> FakeBlas:
    library: FakeBlas = device.gpu.blas
    return library
