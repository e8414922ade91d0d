"""From GGUF's blocks to float32: one function per block type.

Each takes blocks [n], an array of the type's layout (gguf_blocks names the fields), and gives
float32 [n, elements]. Multiplications and additions come in the order of ggml, so the bits are its.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # E2M1, doubled
_IQ4: F32 = np.array(IQ4, np.float32)
_FP4: F32 = np.array(FP4, np.float32)


def f32(values: np.ndarray) -> F32:
    return values.astype(np.float32)


def column(values: np.ndarray) -> F32:
    """float32 [..., 1], to scale what has one axis more."""
    return f32(values)[..., None]


def split(packed: np.ndarray, bits: int) -> np.ndarray:
    """[..., k] to [..., 8 / bits, k]: the lowest bits of every byte first, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def in_turn(packed: np.ndarray, bits: int) -> np.ndarray:
    """[..., k] to [..., k * 8 / bits]: byte after byte, its lowest bits first."""
    fields = split(packed, bits).swapaxes(-1, -2)
    return fields.reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def halves(packed: np.ndarray) -> np.ndarray:
    """[..., k] to [..., 2k]: all low nibbles, then all high ones."""
    return split(packed, 4).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def plain(b: np.ndarray) -> np.ndarray:
    return f32(b["x"])[:, None]


def bf16(b: np.ndarray) -> np.ndarray:
    return (b["x"].astype(np.uint32) << 16).view(np.float32)[:, None]


def q4_0(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * (f32(halves(b["qs"])) - 8)


def q4_1(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * f32(halves(b["qs"])) + column(b["m"])


def q5_0(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * (_five_bits(b) - 16)


def q5_1(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * _five_bits(b) + column(b["m"])


def _five_bits(b: np.ndarray) -> F32:
    return f32(halves(b["qs"]) | in_turn(b["qh"], 1) << 4)


def q8(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * f32(b["qs"])


def q1_0(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * (2 * f32(in_turn(b["qs"], 1)) - 1)


def q2_0(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * (f32(in_turn(b["qs"], 2)) - 1)


def _two_bits(b: np.ndarray) -> np.ndarray:
    """uint8 [n, 16, 16]: 16 sub-blocks; each half of the bytes holds 4 runs of 32."""
    return split(b["qs"].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)


def q2_k(b: np.ndarray) -> np.ndarray:
    scale = column(b["d"]) * f32(b["scales"] & 15)
    low = column(b["dmin"]) * f32(b["scales"] >> 4)
    return flat(scale[..., None] * f32(_two_bits(b)) - low[..., None])


def q3_k(b: np.ndarray) -> np.ndarray:
    packed = b["scales"]
    scale = halves(packed[:, :8]) | split(packed[:, 8:], 2).reshape(-1, 16) << 4
    scale = column(b["d"]) * (f32(scale) - 32)
    high = split(b["hmask"], 1).reshape(-1, 16, 16)
    return flat(scale[..., None] * (f32(_two_bits(b) | high << 2) - 4))


def six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima, uint8 [n, 8], from 12 bytes. Bytes 0-7 hold the first four of both in
    their low six bits. Bytes 8-11 hold the low nibbles of the last four; their high bits are at the
    top of bytes 0-7."""
    first, second, third = np.ascontiguousarray(packed).view("<u4").T
    low, high, six = np.uint32(0x0F0F0F0F), np.uint32(0x30303030), np.uint32(0x3F3F3F3F)
    scales = np.stack([first & six, third & low | first >> 2 & high], axis=-1)
    lows = np.stack([second & six, third >> 4 & low | second >> 2 & high], axis=-1)
    return scales.view(np.uint8), lows.view(np.uint8)


def q4_k(b: np.ndarray) -> np.ndarray:
    return _with_minima(b, halves(b["qs"].reshape(-1, 4, 32)))


def q5_k(b: np.ndarray) -> np.ndarray:
    low = halves(b["qs"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _with_minima(b, low | split(b["qh"], 1) << 4)


def _with_minima(b: np.ndarray, codes: np.ndarray) -> np.ndarray:
    scales, lows = (column(v) for v in six_bits(b["scales"]))
    scales, lows = column(b["d"])[..., None] * scales, column(b["dmin"])[..., None] * lows
    return flat(scales * f32(codes).reshape(-1, 8, 32) - lows)


def q6_k(b: np.ndarray) -> np.ndarray:
    low = halves(b["ql"].reshape(-1, 2, 64))  # [n, 2, 128]
    high = split(b["qh"].reshape(-1, 2, 32), 2).reshape(-1, 2, 128)
    codes = f32(low | high << 4).reshape(-1, 16, 16) - 32
    scale = column(b["d"]) * f32(b["scales"])
    return flat(scale[..., None] * codes)


def iq4_nl(b: np.ndarray) -> np.ndarray:
    levels: F32 = _IQ4[halves(b["qs"])]
    return column(b["d"]) * levels


def iq4_xs(b: np.ndarray) -> np.ndarray:
    high = b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = column(b["d"]) * (f32(in_turn(b["scales_l"], 4) | high << 4) - 32)
    return flat(scale[..., None] * _IQ4[halves(b["qs"].reshape(-1, 8, 16))])


def tq1_0(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * (f32(trits(b)) - 1)


def trits(b: np.ndarray) -> np.ndarray:
    """uint8 [n, 256]: five digits of base 3 to a byte, as a fraction of 256 (four to each byte of
    qh)."""
    runs = [(b["qs"][:, :32], 5), (b["qs"][:, 32:], 5), (b["qh"], 4)]
    return np.concatenate([flat(_base_3(packed, count)) for packed, count in runs], axis=1)


def _base_3(packed: np.ndarray, count: int) -> np.ndarray:
    """[n, k] to the first `count` digits, [n, count, k]: each is what passes 256 when the fraction
    is tripled."""
    powers = (3 ** np.arange(count)).astype(np.uint8)[:, None]
    fraction = packed[:, None, :] * powers  # modulo 256
    return (fraction.astype(np.uint16) * 3 >> 8).astype(np.uint8)


def tq2_0(b: np.ndarray) -> np.ndarray:
    return column(b["d"]) * (f32(flat(split(b["qs"].reshape(-1, 2, 32), 2))) - 1)


def mxfp4(b: np.ndarray) -> np.ndarray:
    scale = np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128)  # 127, and the doubled codes
    levels: F32 = _FP4[halves(b["qs"])]
    return column(scale) * levels


def nvfp4(b: np.ndarray) -> np.ndarray:
    return flat(column(unsigned_e4m3(b["e"]) / 2) * _FP4[halves(b["qs"].reshape(-1, 4, 8))])


def _every_unsigned_e4m3() -> F32:
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    value: np.ndarray = np.where(
        exponent == 0, np.ldexp(fraction, -9), np.ldexp(8.0 + fraction, exponent - 10)
    )
    value[127] = 0
    return value.astype(np.float32)


_E4M3 = _every_unsigned_e4m3()


def unsigned_e4m3(byte: np.ndarray) -> np.ndarray:
    """float32 of bytes: four bits of exponent, three of fraction; the top bit is not looked at,
    127 (NaN) counts as 0."""
    value: F32 = _E4M3[byte]
    return value
