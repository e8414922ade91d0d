"""The text of tensors, laid out as PyTorch lays it out, and the options for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError


@dataclass(frozen=True)
class Options:
    """Digits after the point, elements above which a tensor is summarised, elements shown at each
    edge then, characters per line, and if powers of ten are used (None: where numbers need it)."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": Options(),
    "short": Options(precision=2, edgeitems=2),
    "full": Options(threshold=math.inf),
}


class _Chosen:
    options = Options()


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Sets how tensors are printed: see `Options`. `profile` is "default", "short" or "full"."""
    if profile is not None and profile not in _PROFILES:
        raise UsageError(f"set_printoptions: profile {profile!r}; use {', '.join(_PROFILES)}")
    given = {
        "precision": precision, "threshold": threshold, "edgeitems": edgeitems,
        "linewidth": linewidth,
    }  # fmt: skip
    start = _Chosen.options if profile is None else _PROFILES[profile]
    changes: Any = {name: value for name, value in given.items() if value is not None}
    _Chosen.options = replace(start, **changes, sci_mode=sci_mode)


class _Numbers:
    """The format that all elements of an array share."""

    def __init__(self, array: np.ndarray, options: Options) -> None:
        self.floats, self.digits = array.dtype.kind == "f", options.precision
        self.whole, self.powers, self.width = False, False, 1
        if not self.floats:
            self.width = max(len(str(v)) for v in array.ravel().tolist())
            return
        seen = array[np.isfinite(array) & (array != 0)].astype(np.float64)
        self.whole = bool((seen == np.ceil(seen)).all())
        if seen.size:
            least, most = np.abs(seen).min(), np.abs(seen).max()
            small = not self.whole and least < 1e-4
            self.powers = bool(most / least > 1000 or most > 1e8 or small)
        if options.sci_mode is not None:
            self.powers = options.sci_mode
        self.width = max([1, *(len(self._text(v)) for v in seen.tolist())])

    def _text(self, value: Any) -> str:
        if not self.floats:
            return str(value)
        if self.powers:
            return f"{value:.{self.digits}e}"
        if self.whole:
            return f"{value:.0f}" + ("." if math.isfinite(value) else "")
        return f"{value:.{self.digits}f}"

    def text(self, value: Any) -> str:
        """An element, as wide as the others."""
        return self._text(value).rjust(self.width)


def body(array: np.ndarray, indent: int) -> str:
    """The elements of an array, of which the first bracket comes after `indent` characters."""
    options = _Chosen.options
    if not array.size:
        return "[]"
    cut = array.size > options.threshold
    shown = _edges(array, options.edgeitems) if cut else array
    return _nested(array, indent, cut, _Numbers(shown, options), options)


def _edges(array: np.ndarray, n: int) -> np.ndarray:
    """The elements that a summary shows."""
    for axis, size in enumerate(array.shape):
        if size > 2 * n:
            array = np.take(array, [*range(n), *range(size - n, size)], axis)
    return array


def _nested(array: np.ndarray, indent: int, cut: bool, numbers: _Numbers, options: Options) -> str:
    if not array.ndim:
        return numbers.text(array.item())
    n = options.edgeitems
    summarised = cut and len(array) > 2 * n
    at = [*range(n), *range(len(array) - n, len(array))] if summarised else range(len(array))
    if array.ndim == 1:
        parts = [numbers.text(array[i].item()) for i in at]
        if summarised:
            parts[n:n] = [" ..."]
        each = max(1, (options.linewidth - indent) // (numbers.width + 2))
        lines = [", ".join(parts[i : i + each]) for i in range(0, len(parts), each)]
        return "[" + f",\n{' ' * (indent + 1)}".join(lines) + "]"
    rows = [_nested(array[i], indent + 1, cut, numbers, options) for i in at]
    if summarised:
        rows[n:n] = ["..."]
    return "[" + f",{chr(10) * (array.ndim - 1)}{' ' * (indent + 1)}".join(rows) + "]"


def shown(t: Any, array: np.ndarray, default: dt.DType) -> str:
    """The text of a tensor whose content is `array`; `default` is the dtype of floats that needs no
    mention."""
    prefix = "tensor("
    text = prefix + body(array, len(prefix))
    width, last = _Chosen.options.linewidth, len(text) - text.rfind("\n") + 1
    for fact in _facts(t, default):
        if last + len(fact) + 2 > width:
            text += f",\n{' ' * len(prefix)}{fact}"
            last = len(prefix) + len(fact)
        else:
            text += f", {fact}"
            last += len(fact) + 2
    return text + ")"


def _facts(t: Any, default: dt.DType) -> Iterator[str]:
    if t.device.type != "cpu":
        yield f"device='{t.device}'"
    empty = not np.prod(t.shape)
    if empty and t.ndim != 1:
        yield f"size={tuple(t.shape)}"
    usual = (default,) if empty else (default, dt.int64, dt.bool_)
    if t.dtype not in usual:
        yield f"dtype=torch.{t.dtype.name}"
    if t.grad_fn is not None:
        yield f"grad_fn=<{t.grad_fn.name()}>"
    elif t.requires_grad:
        yield "requires_grad=True"
