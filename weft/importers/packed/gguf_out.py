"""Packed weights as GGUF's blocks: the reverse of `gguf`, for the types that weft writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.core.errors import DTypeError
from weft.core.packed import Form, Packed, codes_of
from weft.importers.gguf_blocks import BY_NAME
from weft.importers.packed.gguf import FORMS

Fields = dict[str, np.ndarray]


def _together(values: np.ndarray, bits: int) -> np.ndarray:
    """[..., 8 / bits, k] to [..., k]: the first of each in the lowest bits of a byte."""
    out = values[..., 0, :].copy()
    for i in range(1, values.shape[-2]):
        out |= values[..., i, :] << np.uint8(bits * i)
    return out


def _halves(codes: np.ndarray) -> np.ndarray:
    """[..., 2k] to [..., k]: the second half above the first."""
    return _together((codes & 15).reshape(*codes.shape[:-1], 2, -1), 4)


def _q4_0(codes: np.ndarray) -> Fields:
    return {"qs": _halves(codes)}


def _q5_0(codes: np.ndarray) -> Fields:
    return {"qh": np.packbits(codes >> 4, axis=-1, bitorder="little"), "qs": _halves(codes)}


def _q8_0(codes: np.ndarray) -> Fields:
    return {"qs": (codes ^ 128).view(np.int8)}


def _q4_k(codes: np.ndarray) -> Fields:
    return {"qs": _halves(codes.reshape(-1, 4, 64)).reshape(-1, 128)}


def _q5_k(codes: np.ndarray) -> Fields:
    return {**_q4_k(codes), "qh": _together(codes.reshape(-1, 8, 32) >> 4, 1)}


def _q6_k(codes: np.ndarray) -> Fields:
    low = _halves(codes.reshape(-1, 2, 128)).reshape(-1, 128)
    return {"ql": low, "qh": _together(codes.reshape(-1, 2, 4, 32) >> 4, 2).reshape(-1, 64)}


_WRITERS: dict[str, Callable[[np.ndarray], Fields]] = {
    "Q4_0": _q4_0, "Q5_0": _q5_0, "Q8_0": _q8_0, "IQ4_NL": _q4_0,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip
KINDS: dict[Form, str] = {FORMS[name][0]: name for name in _WRITERS}


def _six_bits(scales: np.ndarray, lows: np.ndarray) -> np.ndarray:
    """Scales and lows [n, 8] of six bits as 12 bytes. For the last four of each, the bits above the
    nibbles are above the first four."""
    whole = np.stack([scales[:, :4], lows[:, :4]], axis=1)
    split = np.stack([scales[:, 4:], lows[:, 4:]], axis=1)
    first = (whole | split >> 4 << 6).reshape(-1, 8)
    return np.concatenate([first, _together(split & 15, 4)], axis=1)


def blocks_of(weight: Packed) -> np.ndarray:
    """The bytes uint8 [N, bytes of a row] of a packed matrix, in the block type that `KINDS` names
    for its form. Raises DTypeError for another form."""
    form, parts = weight
    if form not in KINDS:
        raise DTypeError(f"weft writes no block type of {form}; it writes {', '.join(_WRITERS)}")
    kind = BY_NAME[KINDS[form]]
    n, k = weight.shape
    out = np.empty(n * k // kind.elements, kind.layout)
    for field, value in _WRITERS[kind.name](codes_of(form, parts).reshape(len(out), -1)).items():
        out[field] = value
    if not form.super_group:
        out["d"] = parts["scales"].reshape(-1)
        return out.view(np.uint8).reshape(n, -1)
    scales = parts["scales"].reshape(len(out), -1)
    out["d"] = parts["super_scales"].reshape(-1)
    if form.shift == "low":
        out["scales"] = _six_bits(scales, parts["lows"].reshape(len(out), -1))
        out["dmin"] = -parts["super_lows"].reshape(-1)
    else:
        out["scales"] = scales
    return out.view(np.uint8).reshape(n, -1)
