"""Einstein's summation: every pair of operands becomes one (batched) matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.tensor.core import Tensor
from weft.tensor.create import eye
from weft.tensor.elementwise import as_tensor


def einsum(equation: str, *operands: Any) -> Tensor:
    """The sum of products that `equation` names, as numpy.einsum: "bij,bjk->bik". An ellipsis means
    leading axes that broadcast; a letter used twice in one operand means its diagonal. Operands are
    joined from left to right. Raises UsageError for an equation that cannot be parsed, ShapeError
    for operands that do not fit it.

    >>> matrix, vector = weft.tensor([[1, 2], [3, 4]]), weft.tensor([1, 10])
    >>> weft.einsum("ij,j->i", matrix, vector).tolist()
    [21, 43]
    """
    terms, out = _parse(equation, [as_tensor(x) for x in operands])
    label, value = terms[0]
    for i, (other, tensor) in enumerate(terms[1:], 2):
        later = {c for names, _ in terms[i:] for c in names} | {*out}
        label, value = _join(label, value, other, tensor, later)
    value = _reduced(label, value, {*out})
    label = "".join(c for c in label if c in out)
    missing = [c for c in out if c not in label]
    if missing:
        raise UsageError(f"einsum: {equation!r}: output {missing[0]!r} is in no operand")
    return value.permute([label.index(c) for c in out])


def _parse(equation: str, tensors: Sequence[Tensor]) -> tuple[list[tuple[str, Tensor]], str]:
    """Each operand with one letter per axis (diagonals taken), and the letters of the output."""
    text = "".join(equation.split())
    left, arrow, out = text.partition("->")
    names = left.split(",")
    if len(names) != len(tensors):
        raise UsageError(f"einsum: {equation!r} takes {len(names)} operands, got {len(tensors)}")
    wide = max((t.ndim - len(n.replace("...", "")) for n, t in zip(names, tensors)), default=0)
    extra = "".join(chr(0x10000 + i) for i in range(max(wide, 0)))  # letters for an ellipsis
    terms, sizes = [], dict[str, int]()
    for name, tensor in zip(names, tensors):
        count = tensor.ndim - len(name.replace("...", ""))
        full = name.replace("...", extra[len(extra) - count :] if count > 0 else "", 1)
        if not _readable(name) or len(full) != tensor.ndim:
            raise ShapeError(f"einsum: {name!r} does not name the axes of {list(tensor.shape)}")
        for c, n in zip(full, tensor.shape):
            if sizes.setdefault(c, n) != n and 1 not in (n, sizes[c]):
                raise ShapeError(f"einsum: {equation!r}: axis {c!r} has sizes {sizes[c]} and {n}")
            sizes[c] = max(sizes[c], n) if 0 not in (n, sizes[c]) else 0
        terms.append(_diagonal(full, tensor))
    if not arrow:
        once = sorted(c for c in sizes if left.count(c) == 1)
        out = "".join([*(["..."] if "..." in left else []), *once])
    result = out.replace("...", extra, 1)
    if not _readable(out) or len({*result}) != len(result):
        raise UsageError(f"einsum: {equation!r}: the output names an axis twice, or no letter")
    return [(n, _stretched(n, t, sizes)) for n, t in terms], result


def _readable(name: str) -> bool:
    plain = name.replace("...", "", 1)
    return not plain or (plain.isascii() and plain.isalpha())


def _stretched(name: str, x: Tensor, sizes: dict[str, int]) -> Tensor:
    """Axes of size 1 broadcast to what the other operands have."""
    shape = tuple(sizes[c] for c in name)
    return x if shape == x.shape else x.expand(shape)


def _diagonal(name: str, x: Tensor) -> tuple[str, Tensor]:
    """Axes that share a letter as one."""
    for c in name:
        while name.count(c) > 1:
            i = name.index(c)
            j = name.index(c, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ShapeError(f"einsum: axes {c!r} of one operand: {x.shape[i]}, {x.shape[j]}")
            rest = [a for a in range(x.ndim) if a not in (i, j)]
            x = x.permute([*rest, i, j])
            mask = eye(x.shape[-1], dtype="bool", device=None if x.is_traced else x.device)
            x = mask.expand(x.shape).where(x, 0).sum(-1, dtype=x.dtype)
            name = "".join(name[a] for a in rest) + c
    return name, x


def _reduced(name: str, x: Tensor, wanted: set[str]) -> Tensor:
    axes = [i for i, c in enumerate(name) if c not in wanted]
    return x.sum(axes, dtype=x.dtype) if axes else x


def _join(a: str, x: Tensor, b: str, y: Tensor, later: set[str]) -> tuple[str, Tensor]:
    """Two operands as one: letters in both and wanted later are batches, in both and not wanted
    summed by the product, in one and not wanted summed before it."""
    x, y = _reduced(a, x, {*b} | later), _reduced(b, y, {*a} | later)
    a = "".join(c for c in a if c in b or c in later)
    b = "".join(c for c in b if c in a or c in later)
    batch = [c for c in a if c in b and c in later]
    summed = [c for c in a if c in b and c not in later]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    size = {**dict(zip(a, x.shape)), **dict(zip(b, y.shape))}

    def matrix(t: Tensor, name: str, *groups: list[str]) -> Tensor:
        t = t.permute([name.index(c) for group in groups for c in group])
        sizes = [math.prod(size[c] for c in group) for group in groups[1:]]
        return t.reshape([size[c] for c in batch] + sizes)

    product = matrix(x, a, batch, rows, summed) @ matrix(y, b, batch, summed, columns)
    names = [*batch, *rows, *columns]
    return "".join(names), product.reshape([size[c] for c in names])
