"""The quantisation schemes, and the form of packed weights that each gives."""

from __future__ import annotations

import re

from weft.core.dtypes import DType, float16, float32
from weft.core.errors import UsageError
from weft.core.packed import Form

GROUPS = (32, 64, 128)
EXAMPLES = "int8, int8-channel, int5, int4, int4-g64, int4-zero-g128, nf4, fp8, q4_k, q5_k, q6_k"
_NAME = re.compile(r"(int4|int5|int8|nf4|fp8)(-zero)?(?:-(channel|g\d+))?")
SUPER = 256  # weights in a block of a K type
# GGUF's K types, and the schemes for rows that are not whole blocks of 256
K_TYPES = {
    "q4_k": (Form(4, 32, shift="low", super_group=SUPER), "int4"),
    "q5_k": (Form(5, 32, shift="low", super_group=SUPER), "int5"),
    "q6_k": (Form(6, 16, offset=32, super_group=SUPER), "int8"),
}


class Scheme:
    """A quantisation scheme, by name. Raises UsageError for an unknown name.

    `int4`, `int5` and `int8` have groups of 32 (`-g64`, `-g128`, or `-channel`: one scale per row);
    `-zero` adds a zero point per group. `nf4` has groups of 64 (Dettmers et al., arXiv:2305.14314).
    `fp8` is E4M3 with one scale per row. `q4_k`, `q5_k` and `q6_k` have a scale of scales for each
    256 weights.
    """

    def __init__(self, name: str) -> None:
        self.k_type = K_TYPES[name][0] if name in K_TYPES else None
        self._name(K_TYPES[name][1] if name in K_TYPES else name)
        self.name = name

    def _name(self, name: str) -> None:
        found = _NAME.fullmatch(name)
        kind, zero, group = found.groups() if found else ("", None, None)
        sizes = {f"g{g}": g for g in GROUPS}
        plain = kind in ("int4", "int8") or (kind == "int5" and not zero)
        if not found or (group and group != "channel" and group not in sizes) or (
            zero and not plain
        ):  # fmt: skip
            raise UsageError(f"no scheme is called {name!r}; there are, among others, {EXAMPLES}")
        self.kind, self.zero = kind, bool(zero)
        usual = {"nf4": 64, "fp8": 0}.get(kind, 32)
        self.group = 0 if group == "channel" else sizes[group] if group else usual

    @property
    def scale_dtype(self) -> DType:
        """The dtype of scales."""
        return float32 if self.group == 0 else float16

    def form(self, depth: int) -> Form | None:
        """Returns the form for rows of `depth` weights, with the largest group that divides the
        row, at most the scheme's. Returns None if a group of 8 does not divide it."""
        if self.k_type is not None and depth % SUPER == 0:
            return self.k_type
        group = self.group or depth
        while depth % group:
            group //= 2
        if group < 8 or depth % 8:
            return None
        if self.kind == "nf4":
            return Form(4, group, "nf4")
        if self.kind == "fp8":
            return Form(8, group, "e4m3")
        bits = int(self.kind[-1])
        if self.zero:
            return Form(bits, group, shift="zero")
        return Form(bits, group, offset=1 << (bits - 1))


def bits_per_weight(form: Form, scale: DType = float16) -> float:
    """Returns the bits that one weight takes, with its share of scales and zeros."""
    wide = 8 * scale.itemsize
    if form.super_group:  # six bits per scale, or eight; lows take the same
        inner, count = (6, 2) if form.shift == "low" else (8, 1)
        return form.bits + count * (inner / form.group + wide / form.super_group)
    extra = wide + (form.bits if form.shift == "zero" else 0)
    return form.bits + extra / form.group


def better(scheme: str, gguf: bool) -> tuple[str, ...]:
    """Returns the schemes for layers that lose most in a mixed plan, from few bits to many."""
    if scheme in K_TYPES:
        return (*[k for k in K_TYPES if k > scheme], "int8")
    return ("int5", "int8") if gguf else ("int8",)
