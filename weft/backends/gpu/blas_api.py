"""cuBLASLt and hipBLASLt as data: the same dozen C functions under two names, and the numbers that
their headers give to attributes.

Sources: NVIDIA, cublasLt.h and cublas_api.h of CUDA 13.1; AMD, hipblaslt.h and hipblas-common.h of
ROCm 6.4. cudaDataType and hipDataType agree in all types used here.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DeviceError

_AT, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SET = (_AT, _INT, _AT, _SIZE)

# Arguments of each function, its vendor's prefix left out; all give a status.
FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "Create": (_AT,),
    "Destroy": (_AT,),
    "MatmulDescCreate": (_AT, _INT, _INT),
    "MatmulDescSetAttribute": _SET,
    "MatmulDescDestroy": (_AT,),
    "MatrixLayoutCreate": (_AT, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "MatrixLayoutSetAttribute": _SET,
    "MatrixLayoutDestroy": (_AT,),
    "MatmulPreferenceCreate": (_AT,),
    "MatmulPreferenceSetAttribute": _SET,
    "MatmulPreferenceDestroy": (_AT,),
    "MatmulAlgoGetHeuristic": (*[_AT] * 7, _INT, _AT, _AT),
    "Matmul": (*[_AT] * 14, _SIZE, _AT),
}

TYPES = {dt.float32: 0, dt.float16: 2, dt.int8: 3, dt.int32: 10, dt.bfloat16: 14}
DEFAULT, BIAS, GELU = 1, 4, 32  # epilogues; they combine but for the first

Attribute = tuple[int, Any]  # its number and its C type


@dataclass(frozen=True)
class Vendor:
    """The differences between the two libraries. `compute` maps the dtype of sums to a compute
    type; `operations` are "plain" and "transposed". `desc`, `layout` and `preference` hold the
    attributes that weft sets, by weft's names. `state` is the place of the status in a heuristic's
    result, None where it is not fixed. `ordered` is true if the library can be told to sum in the
    same order in every run; a library that cannot is used only on request."""

    name: str
    prefix: str
    files: tuple[str, ...]
    install: str
    statuses: Mapping[int, str]
    compute: Mapping[str, int]
    operations: tuple[int, int]
    desc: Mapping[str, Attribute]
    layout: Mapping[str, Attribute]
    preference: Mapping[str, Attribute]
    state: int | None
    ordered: bool


_U32, _U64, _I32, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64

CUBLASLT = Vendor(
    "cuBLASLt",
    "cublasLt",
    ("libcublasLt.so.13", "libcublasLt.so.12"),
    "pip install nvidia-cublas",
    {
        1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
        11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED",
        16: "LICENSE_ERROR",
    },
    {"float32": 68, "tf32": 77, "int32": 72},
    (0, 1),
    {"left": (3, _I32), "right": (4, _I32), "epilogue": (7, _U32), "bias": (8, _AT)},
    {"batch": (5, _I32), "stride": (6, _I64)},
    {
        "workspace": (1, _U64), "reduction": (3, _U32), "align_left": (5, _U32),
        "align_right": (6, _U32), "align_added": (7, _U32), "align_result": (8, _U32),
    },
    72,
    True,
)  # fmt: skip

HIPBLASLT = Vendor(
    "hipBLASLt",
    "hipblasLt",
    ("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"),
    "it is part of ROCm",
    {
        1: "NOT_INITIALIZED", 2: "ALLOC_FAILED", 3: "INVALID_VALUE", 4: "MAPPING_ERROR",
        5: "EXECUTION_FAILED", 6: "INTERNAL_ERROR", 7: "NOT_SUPPORTED", 8: "ARCH_MISMATCH",
        9: "HANDLE_IS_NULLPTR", 10: "INVALID_ENUM", 11: "UNKNOWN",
    },
    {"float32": 2, "tf32": 6, "int32": 9},
    (111, 112),
    {"left": (0, _I32), "right": (1, _I32), "epilogue": (2, _U32), "bias": (3, _AT),
     "bias_type": (4, _I32)},
    {"batch": (0, _I32), "stride": (1, _I64)},
    {"workspace": (1, _U64)},
    None,
    False,
)  # fmt: skip


def compute_type(vendor: Vendor, dtype: DType, tf32: bool) -> tuple[int, int]:
    """(compute type, type of alpha and beta) for operands of `dtype`."""
    if dtype is dt.int8:
        return vendor.compute["int32"], TYPES[dt.int32]
    kind = "tf32" if tf32 and dtype is dt.float32 else "float32"
    return vendor.compute[kind], TYPES[dt.float32]


def find(vendor: Vendor) -> Any:
    """The vendor's library, loaded. Raises DeviceError saying what to install."""
    for name in (_by_pathfinder(vendor), *vendor.files):
        try:
            if name:
                return ctypes.CDLL(name)
        except OSError:
            continue
    found = ctypes.util.find_library(vendor.prefix) or ctypes.util.find_library(
        vendor.prefix.lower()
    )
    if found:
        try:
            return ctypes.CDLL(found)
        except OSError as error:
            raise DeviceError(f"{vendor.name} does not load: {error}") from None
    raise DeviceError(f"{vendor.name} is not found: {vendor.install}")


def _by_pathfinder(vendor: Vendor) -> str:
    """Returns the path of NVIDIA's library as its own search finds it (wheels, conda, the toolkit),
    or ""."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
        return str(finder.load_nvidia_dynamic_lib(vendor.prefix).abs_path)
    except (ImportError, RuntimeError, OSError, ValueError):
        return ""


def functions(vendor: Vendor, library: Any) -> dict[str, Any]:
    """The functions by their names without the prefix, typed. Raises DeviceError for one that the
    library does not have."""
    found = {}
    for name, arguments in FUNCTIONS.items():
        try:
            function = getattr(library, vendor.prefix + name)
        except AttributeError:
            raise DeviceError(
                f"this {vendor.name} is too old: it has no {vendor.prefix}{name}"
            ) from None
        function.argtypes, function.restype = arguments, ctypes.c_int
        found[name] = function
    return found
