"""The schemes that weft quantises to, and the form of packed weights that each gives."""

from __future__ import annotations

import re

from weft.core.dtypes import DType, float16, float32
from weft.core.errors import UsageError
from weft.core.packed import Form

GROUPS = (32, 64, 128)
EXAMPLES = "int8, int8-channel, int5, int4, int4-g64, int4-zero-g128, nf4, fp8"
_NAME = re.compile(r"(int4|int5|int8|nf4|fp8)(-zero)?(?:-(channel|g\d+))?")


class Scheme:
    """A scheme by its name: `int4`, `int5` and `int8` by groups of 32 (`-g64`, `-g128`, or
    `-channel`: one scale a row), `-zero` with a zero point per group; `nf4` by groups of 64
    (Dettmers et al., arXiv:2305.14314); `fp8`, E4M3 with one scale a row. Raises UsageError for
    another name."""

    def __init__(self, name: str) -> None:
        found = _NAME.fullmatch(name)
        kind, zero, group = found.groups() if found else ("", None, None)
        sizes = {f"g{g}": g for g in GROUPS}
        plain = kind in ("int4", "int8") or (kind == "int5" and not zero)
        if not found or (group and group != "channel" and group not in sizes) or (
            zero and not plain
        ):  # fmt: skip
            raise UsageError(f"no scheme is called {name!r}; there are {EXAMPLES}")
        self.name, self.kind, self.zero = name, kind, bool(zero)
        usual = {"nf4": 64, "fp8": 0}.get(kind, 32)
        self.group = 0 if group == "channel" else sizes[group] if group else usual

    @property
    def scale_dtype(self) -> DType:
        """The dtype of scales."""
        return float32 if self.group == 0 else float16

    def form(self, depth: int) -> Form | None:
        """The form of a matrix with rows of `depth`: by the largest group that divides it, at most
        the scheme's; None where even 8 do not."""
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
    """Bits that one weight takes, its share of scales and zeros included."""
    extra = 8 * scale.itemsize + (form.bits if form.shift == "zero" else 0)
    return form.bits + extra / form.group
