"""Why names of PyTorch's table have no counterpart in weft.torch, or lack some samples."""

from __future__ import annotations

import fnmatch

_COMPLEX = "weft has no complex numbers"
_SPARSE = "weft has no sparse tensors"
_REASONS = {
    "fft.*": _COMPLEX, "stft": _COMPLEX, "istft": _COMPLEX, "cdouble": _COMPLEX,
    "cfloat": _COMPLEX, "chalf": _COMPLEX, "complex": _COMPLEX, "imag": _COMPLEX,
    "polar": _COMPLEX, "view_as_complex": _COMPLEX, "view_as_real": _COMPLEX,
    "linalg.eig": _COMPLEX, "linalg.eigvals": _COMPLEX,
    "sparse.*": _SPARSE, "to_sparse": _SPARSE,
    "jiterator_*": "kernels written in CUDA's C++; weft has `weft.kernel`",
    "torch._scaled_mm*": "products of 8-bit floats, which weft lacks",
    "torch.ops.aten._*_attention_forward": "kernels behind scaled_dot_product_attention",
    "special.airy_ai": "Airy functions",
    "igamma*": "the incomplete gamma function",
    "linalg.ldl_*": "LDL factors", "linalg.lu*": "LU factors", "lu*": "LU factors",
    "geqrf": "LAPACK's packed form of QR", "ormqr": "LAPACK's packed form of QR",
    "linalg.householder_product": "LAPACK's packed form of QR",
    "hash_tensor": "a checksum of bits", "histogramdd": "histograms of several dimensions",
    "_*": "internal to PyTorch",
    "native_*": "internal to PyTorch", "*_backward": "internal to PyTorch",
}  # fmt: skip

PARTLY: dict[str, str] = {}


def reason(name: str) -> str:
    """The reason why a name has no counterpart."""
    for pattern, why in _REASONS.items():
        if fnmatch.fnmatchcase(name, pattern):
            return why
    return "not written yet"
