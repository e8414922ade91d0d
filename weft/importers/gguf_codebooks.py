"""GGUF's types with a codebook (IQ1, IQ2, IQ3): a code names a point of a grid, 4 or 8 weights.

A grid is a set of points, sorted, so it is kept as one: a bit for every point that could be. Point
p has its coordinates in the digits of p, the lowest first. Which points were chosen is ggml's
(https://github.com/ggml-org/ggml, MIT licence); nothing derives them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from weft.core.packed import TABLES
from weft.importers.gguf_decode import column, f32, flat, in_turn

_VALUES = {
    "IQ2_XXS": (8, 25, 43),
    "IQ2_XS": (8, 25, 43),
    "IQ2_S": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
    "IQ1_S": (-1, 0, 1),
}
_POINTS = {  # zlib in base 85
    "IQ2_XXS": (
        "cmV~$!HEMw5Ckwal>cp*%cll5fc-fCR8IQ+o!>t9%6TkOM<Kl1`!y$hQ_E+08OlBBIfM`(3vjZl@|9Vw0TZxkN?@"
        "_51^A3md;tauP8jn6yWj=T%M^+z07?Y}05IU)=kCslRpg<iHFOQuk_8Na6FVTV6Cj9vUdS*644?oy3_xHY8w4mI0"
        "4~E&C{QeX0XQH400RI3pqEgj0tmo)tU?ehQ3eHI02qMG28==h1EL0i0RR9C1^_^?1OpHN1ONa4ARqt$@DIja6(a"
    ),
    "IQ2_XS": (
        "cmV~$L5jmb5Ckw4^xQjO|EC8scQ3^M|H?}5`~JOW-zUHKea`L`zrUVc63=_~edj9A*;cBUtrx?*>vL7w%!*=~s6g"
        "lU{yk^Uir-()CXeT12%fW@bTONNQ3R}|hT;PXFyMWAHc?NT)@Xv_yG_8L8Z83!P7$qu7SiyI=RNyfpQ}7)Tk$osG"
        "XZm-T&2ZI7mUO-xJoBMHQQhSJZJZcVs=?z&|p@o^pFjvq0v;083;WAfMGW277qZlLSz7x4m1D_1Qejqjk#Cu^6=b"
        "IT@Zzdef_jC6aqs*=u+gO3IK(!>J=qIGy+hDFLnbOE)W0;3Ia45PO3m)8goS>3IhWGU?}5&=>is55cvmAuqjC"
    ),
    "IQ2_S": (
        "c${sKL8@gj2n9<pa|32S243b7;{LbNgWTKyeY%|<tQ;#<m9=WLUX^>5x8Wykm(siKT2(d9%3bAEe$t|pblpab>Q!"
        "kX(MmsQ5g=~OfZ$Z-sxi_})vD3T**>Q>T-oafI9gqxH*v)vD)pp=z>N&l6hi?{j+{-UbM}mOw~SPQ#;5!@umerdy"
        "WE{^5HJ(~3^V`@VOOoH;h)^A+S70jP1g-kRi|>V$&L1W8wQx)NQILY6C}71z+N?~{3QRJ?7;ih7m%ksTwox40SyB"
        "P_^i>=HH;XKLqi2c0LgEl8TPsWjBSquxmw;)fQYfWpKeoFxBMjfc(ypz_nNeylZ9>U2R?-+K!kw2bcGfmtL)k8&N"
        "ky|2tfSDVYk0$$He4%1zt^e0(!S&04n!`0n>2cBjf{=cpUz^nRtuJLsJNGc{Ke2xx7{$"
    ),
    "IQ3_XXS": (
        "cmV~$F>V4e5CFj0)vjb+WeR$W3gs0?k)Hg>qC&hPWuBRt>!-80AAReb;+p;OvR=I)40~?(7p1^r^23mhKCV0HY;b"
        "f2szshoHwd^m$pxSU`uNVmS7-2!e)Wz;Ucd#*VAzrgaGWe;AH=E_`NR>6Qqlm#rXGrg>14nl%<b13z$A8f*jSj56"
        "U!g~Rtr!h@o=&*6{=t$-cUsX2$%{?PZNn`!-NOG#DW3?h6I116r2KzRm3s~q(qwl0RaCNx)k;"
    ),
    "IQ3_S": (
        "cmV~$L249H6ac__kJs?0SHFi5x1G)iaZb^ZWT9??AYNw@A|%;O@BpF_!Cca+zu(T=pK*A8d;Yj|Oa1=1OfRENTZT"
        "`4I4<$9txbxZ>-Njq)=?_?#&t9C_I3E;ChPN*n;cxm%T${=>UncFrHYH4@oFMBIY>CU!8qicDqg=n4Ts_Qet6t(D"
        "|t5F=7a6K+>I5hJDYv7?^(xa;=5!{bFR^X`d5b^+49gwA+DlgC&=k3o@T9ms8o|2=IX0vB{3RinCes+;(n~NwlJP"
        "$i(^F}hXn@x801fhqUi)@q9rwzQ?30_S*XZ%sc|1iJ?FL+wL-0oKw+nVgOLz!(J8&=is&i8tSK8hVMf3RoD6I9Qr"
        "TT#dzm3A_8LnI0!pDs2*7{3#wQ>"
    ),
    "IQ1_S": (
        "cwQ}1K}(!R7=CxE;dM-9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv(umM"
        "k2dT8mb2WdTox*h^v8VtnDuD#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm$a2YwJ@;"
        "QqccSPG~@n#@N5uBY$^gNY22s7}?HYgoxmY#Y+!Ajh1yxWA4l1OzVO1-XRyWBes^wA;LAoBq<x!%nuPhFWp9`{&R"
        "@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8vQn*?-$Ub(LsHW&@kYNcQ%|}dP%c;av8KJU^mWiJv*28-WD<$YEG%"
        "#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<CZ@9?{WdkSxbxSuMq|l64F4MqT|O(RS}O@H(bLXv"
        "Hn!_OntvSw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-6?{(2le%HQrc>Le(m#@Cb_P%)g$;r#{<KcsUbe#"
        "9?p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90?}vdY$)D1%>fQq-z{36HBT$I&mG*v%J#A~V%aSj@pZtCEAg}V1eou`2@"
        "uUxU_YQ=)6;l3U7EjmAKr#y2F0kdO91c}@u6ikZ68>90+)KINV7E3oVy0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8BcV}"
        "uIeIA*;9XR~L2uzcrHYS+2)y-rqrtcg6e{stpn$cM#il(dTBx(R&0u-;P1DmAvG}u@dX;b%ns9v~6p49X^c}lqEM"
        "lIFjzJBbrp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|4v2#Y&dpW2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1"
    ),
}
# Seven signs, and the eighth that makes the number of negative ones even.
_EVEN = np.array([i | (i.bit_count() & 1) << 7 for i in range(128)], np.uint8)


class Points(NamedTuple):
    """The content of blocks: steps uint8 [n, k] of a scale `d` float32 [n, 1], and for every weight
    the code of its value (in `packed.TABLES`), uint8 [n, 256]."""

    d: np.ndarray
    steps: np.ndarray
    codes: np.ndarray


@cache
def digits(name: str) -> np.ndarray:
    """The indices in `_VALUES` of the coordinates of every point, uint8 [count, 4 or 8]."""
    base = len(_VALUES[name])
    chosen = np.frombuffer(zlib.decompress(base64.b85decode(_POINTS[name])), np.uint8)
    point = np.flatnonzero(np.unpackbits(chosen, bitorder="little"))
    size = 4 if name.startswith("IQ3") else 8
    return (point[:, None] // base ** np.arange(size) % base).astype(np.uint8)


def grid(name: str) -> np.ndarray:
    """Its points, float32 [count, 4 or 8]."""
    points: np.ndarray = np.array(_VALUES[name], np.float32)[digits(name)]
    return points


def values(table: str, points: Points) -> np.ndarray:
    """float32 [n, 256]."""
    found = np.array(TABLES[table], np.float32)[points.codes]
    scale = points.d * f32(points.steps)
    return flat(scale[..., None] * found.reshape(*scale.shape, -1))


def _odd(steps: np.ndarray) -> np.ndarray:
    return (2 * steps + 1).astype(np.uint8)


def _signed(digits: np.ndarray, signs: np.ndarray, bits: int) -> np.ndarray:
    """Digits of points [n, ...] of `bits`; sign bits uint8 [n, 32], each for eight weights."""
    codes: np.ndarray = flat(digits) | in_turn(signs, 1) << np.uint8(bits)
    return codes


def _even_signs(words: np.ndarray) -> np.ndarray:
    """Sign bits [n, 32] of the low 28 bits of words [n, 8], seven for eight weights."""
    return flat(_EVEN[words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127])


def iq2_xxs(b: np.ndarray) -> Points:
    codes, words = b["pairs"][..., 0], b["pairs"][..., 1]  # four codes to a word
    found = digits("IQ2_XXS")[np.ascontiguousarray(codes).view(np.uint8)]
    codes = _signed(found, _even_signs(words), 2)
    return Points(column(b["d"]) / 8, _odd(words >> 28), codes)


def iq2_xs(b: np.ndarray) -> Points:
    codes = _signed(digits("IQ2_XS")[b["qs"] & 511], _EVEN[b["qs"] >> 9], 2)
    return Points(column(b["d"]) / 8, _odd(in_turn(b["scales"], 4)), codes)


def iq2_s(b: np.ndarray) -> Points:
    code = b["qs"] | in_turn(b["qh"], 2).astype(np.uint16) << 8
    codes = _signed(digits("IQ2_S")[code], b["signs"], 2)
    return Points(column(b["d"]) / 8, _odd(in_turn(b["scales"], 4)), codes)


def iq3_xxs(b: np.ndarray) -> Points:
    words = b["words"]
    codes = _signed(digits("IQ3_XXS")[b["qs"]], _even_signs(words), 3)
    return Points(column(b["d"]) / 4, _odd(words >> 28), codes)


def iq3_s(b: np.ndarray) -> Points:
    code = b["qs"] | in_turn(b["qh"], 1).astype(np.uint16) << 8
    codes = _signed(digits("IQ3_S")[code], b["signs"], 3)
    return Points(column(b["d"]), _odd(in_turn(b["scales"], 4)), codes)


def iq1_s(b: np.ndarray) -> Points:
    code = b["qs"] | flat(b["qh"][..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7) << 8
    codes = _moved(code, np.repeat(b["qh"] >> 15, 4, axis=-1))
    return Points(column(b["d"]), _odd(b["qh"] >> 12 & 7), codes)


def iq1_m(b: np.ndarray) -> Points:
    """The scale of the whole block is spread over the highest four bits of four words."""
    words = b["scales"]
    shifts = np.arange(4, dtype=np.uint16)
    d = np.bitwise_or.reduce((words >> 12) << 4 * shifts, axis=-1).view(np.float16)
    high = in_turn(b["qh"], 4)
    codes = _moved(b["qs"] | (high & 7).astype(np.uint16) << 8, high >> 3)
    return Points(column(d), _odd(flat(words[..., None] >> 3 * shifts & 7)), codes)


def _moved(code: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Codes of points and whether these are moved down, [n, 32]."""
    return flat(digits("IQ1_S")[code] | down.astype(np.uint8)[..., None] << np.uint8(2))


# type -> its reader of blocks, its values, and the number of weights per step of its scale
BOOKS: dict[str, tuple[Callable[[np.ndarray], Points], str, int]] = {
    "IQ2_XXS": (iq2_xxs, "iq2", 32),
    "IQ2_XS": (iq2_xs, "iq2", 16),
    "IQ2_S": (iq2_s, "iq2", 16),
    "IQ3_XXS": (iq3_xxs, "iq3_xxs", 32),
    "IQ3_S": (iq3_s, "iq3_s", 32),
    "IQ1_S": (iq1_s, "iq1", 32),
    "IQ1_M": (iq1_m, "iq1", 16),
}


def decoder(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """From blocks [n] of the type to float32 [n, 256]."""
    read, table, _ = BOOKS[name]
    return lambda blocks: values(table, read(blocks))
