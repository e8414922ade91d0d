"""WGSL helper functions that kernels pull in by name, one copy per lane count.

In a template, $F $I $U $B are f32, i32, u32, bool of the lane count and $n is the count. Everything
is standard WGSL, independent of any implementation's habits. NaN is tested on bits. Narrow floats
are rounded to nearest even by integer arithmetic, because WGSL leaves the rounding of its own
conversions open.
"""

from __future__ import annotations

import re

_NAN = """
fn w_nan$n(x: $F) -> $B {
  return (bitcast<$U>(x) & $U(0x7fffffffu)) > $U(0x7f800000u);
}"""

_MIN = """
fn w_min$n(a: $F, b: $F) -> $F {
  return select(select(min(a, b), a, w_nan$n(b)), b, w_nan$n(a));
}"""

_MAX = """
fn w_max$n(a: $F, b: $F) -> $F {
  return select(select(max(a, b), a, w_nan$n(b)), b, w_nan$n(a));
}"""

# Saturating: WGSL clamps to the largest float that fits, which is not the largest integer.
_F2I = """
fn w_f2i$n(x: $F) -> $I {
  let low = select($I(x), $I(-2147483647 - 1), x <= $F(-2147483648.0f));
  return select(select(low, $I(2147483647), x >= $F(2147483648.0f)), $I(0), w_nan$n(x));
}"""

_F2U = """
fn w_f2u$n(x: $F) -> $U {
  let low = select($U(x), $U(0u), x <= $F(0.0f));
  return select(select(low, $U(4294967295u), x >= $F(4294967296.0f)), $U(0u), w_nan$n(x));
}"""

_F2I8 = """
fn w_f2i8_$n(x: $F) -> $I {
  return select($I(clamp(x, $F(-128.0f), $F(127.0f))), $I(0), w_nan$n(x));
}"""

_F2U8 = """
fn w_f2u8_$n(x: $F) -> $U {
  return select($U(clamp(x, $F(0.0f), $F(255.0f))), $U(0u), w_nan$n(x));
}"""

# f32 to binary16, nearest even. Below 2^-14 the sum with 0.5 rounds at the subnormals' unit (an
# f32 in [0.5, 1) has units of 2^-24); above, the carry of the rounding runs into the exponent and
# so reaches infinity by itself.
_F16_BITS = """
fn w_f16_bits$n(x: $F) -> $U {
  let bits = bitcast<$U>(x);
  let a = bits & $U(0x7fffffffu);
  let small = bitcast<$U>(bitcast<$F>(a) + $F(0.5f)) - $U(0x3f000000u);
  let normal = (a + $U(0xc8000fffu) + ((a >> $U(13u)) & $U(1u))) >> $U(13u);
  let large = select($U(0x7c00u), $U(0x7e00u), a > $U(0x7f800000u));
  let half = select(select(normal, small, a < $U(0x38800000u)), large, a >= $U(0x47800000u));
  return half | ((bits >> $U(16u)) & $U(0x8000u));
}"""

_BF16_BITS = """
fn w_bf16_bits$n(x: $F) -> $U {
  let bits = bitcast<$U>(x);
  let even = (bits + $U(0x7fffu) + ((bits >> $U(16u)) & $U(1u))) >> $U(16u);
  return select(even, (bits >> $U(16u)) | $U(0x40u), w_nan$n(x));
}"""

_BF16_VALUE = """
fn w_bf16_value$n(half: $U) -> $F {
  return bitcast<$F>(half << $U(16u));
}"""

_F16_VALUE = {
    1: """
fn w_f16_value1(half: u32) -> f32 {
  return unpack2x16float(half).x;
}""",
    2: """
fn w_f16_value2(half: vec2<u32>) -> vec2<f32> {
  return unpack2x16float(half.x | (half.y << 16u));
}""",
    4: """
fn w_f16_value4(half: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(half.x | (half.y << 16u)),
                   unpack2x16float(half.z | (half.w << 16u)));
}""",
}

_I8 = """
fn w_i8_$n(x: $I) -> $I {
  return (x << $U(24u)) >> $U(24u);
}"""

TEMPLATES = {
    "w_nan": _NAN,
    "w_min": _MIN,
    "w_max": _MAX,
    "w_f2i": _F2I,
    "w_f2u": _F2U,
    "w_f2i8_": _F2I8,
    "w_f2u8_": _F2U8,
    "w_f16_bits": _F16_BITS,
    "w_bf16_bits": _BF16_BITS,
    "w_bf16_value": _BF16_VALUE,
    "w_i8_": _I8,
}


def vec(base: str, n: int) -> str:
    """A WGSL type: f32 or vec4<f32>."""
    return base if n == 1 else f"vec{n}<{base}>"


def _function(name: str, n: int) -> str:
    if name == "w_f16_value":
        return _F16_VALUE[n]
    text = TEMPLATES[name]
    for token, base in (("$F", "f32"), ("$I", "i32"), ("$U", "u32"), ("$B", "bool")):
        text = text.replace(token, vec(base, n))
    return text.replace("$n", str(n))


def functions(used: set[tuple[str, int]]) -> str:
    """Returns the text of the helpers in `used` ((name, lanes) pairs) and of the helpers they
    call."""
    calls_nan = re.compile(r"w_(min|max|bf16_bits|f2)")
    todo = used | {("w_nan", n) for name, n in used if calls_nan.match(name)}
    return "".join(_function(name, n) + "\n" for name, n in sorted(todo))
