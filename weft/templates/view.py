"""Movement ops as index transformations, and values that are strided views of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.ops.packed import form_of
from weft.ops.picks import counted
from weft.ops.quantize import takes_integers
from weft.templates import affine
from weft.templates.affine import Affine, Sym
from weft.templates.group import Group
from weft.transform.rebuild import uniform

Index = tuple[Affine, ...]
PURE = ("reshape", "transpose", "broadcast", "slice")


def source_index(node: Node, index: Sequence[Affine]) -> Index:
    """The index in node.inputs[0] of the element at `index` of a reshape, transpose, broadcast or
    slice node."""
    source = node.inputs[0].shape
    if node.op == "reshape":
        return affine.reshape_index(index, node.shape, source)
    if node.op == "transpose":
        back = [affine.ZERO] * len(source)
        for i, axis in enumerate(node.attrs["perm"]):
            back[axis] = index[i]
        return tuple(back)
    if node.op == "broadcast":
        tail = index[len(index) - len(source) :]
        return tuple(affine.ZERO if d == 1 else i for i, d in zip(tail, source))
    assert node.op == "slice", node.op
    steps = node.attrs.get("steps") or (1,) * len(source)
    return tuple(i * k + a for i, a, k in zip(index, node.attrs["starts"], steps))


@dataclass(frozen=True)
class Pick:
    """A matrix chosen at run time: `by` elements further for each unit of the int32 value `index`.
    Axis j of `index` is at `at[j]`, affine in the view's axes except the last two. With `count`,
    only the first `count` matching rows are read (ops/picks)."""

    index: Node
    at: Index
    by: int
    count: Node | None = None


@dataclass(frozen=True)
class OperandView:
    """Element (i0, i1, ...) of the viewed value is element offset + i0 * strides[0] + ... of
    `node`'s row-major storage. A load yields `dtype`, which a widening cast may have hidden.

    Along the last axis elements may come in runs: the one at i is i % run beyond the one at
    i - i % run (an interleaved weight, see compile/interleave).

    With a `form`, `node` is a `dequantize` that is not in memory itself: what it is made of is.
    So with `whole`, where it is the `rescale` of integers that a product takes as they are.
    With a `pick` it lies further on by what that says."""

    node: Node
    offset: int
    strides: tuple[int, ...]
    run: int = 1
    form: Form | None = None
    whole: bool = False
    pick: Pick | None = None

    @property
    def parted(self) -> bool:
        """True if the parts of `node` are read in its place."""
        return self.form is not None or self.whole

    @property
    def stored(self) -> tuple[Node, ...]:
        """The values that must be in memory."""
        return self.node.inputs if self.parted else (self.node,)

    @property
    def dtype(self) -> DType:
        return self.node.dtype


def exact_cast(node: Node) -> bool:
    """True for a cast of f16 or bf16 to f32."""
    narrow = (dt.float16, dt.bfloat16)
    return node.op == "cast" and node.dtype == dt.float32 and node.inputs[0].dtype in narrow


def views(node: Node, picks: bool = False) -> Iterator[OperandView]:
    """Yields `node` as a view of itself, then as a view of the operand of each movement op or exact
    cast under it, as long as strides (in elements, one per axis) describe it.

    With `picks` it also passes a gather of whole matrices whose index cannot be outside. An exact
    cast is one of f16 or bf16 to f32: a template loads the narrow value and widens it. Under a
    `dequantize` whose parts products read directly (see compile/interleave) is the view of the
    parts.
    """
    syms = [Sym(f"axis{i}", "var", max(d, 1)) for i, d in enumerate(node.shape)]
    index: Index = tuple(affine.symbol(s) for s in syms)
    chosen: tuple[Sym, Node, Index] | None = None
    while True:
        linear = affine.flatten(index, affine.contiguous(node.shape))
        if any(s.kind != "var" for s, _ in linear.terms):
            return
        run = node.attrs.get("interleave", 1)
        strides = (linear.coefficient(s) for s in syms)
        pick = None
        if chosen is not None:
            number, count = counted(chosen[1])
            pick = Pick(number, chosen[2], linear.coefficient(chosen[0]), count)
        steps = tuple(run if s == 1 else s for s in strides)
        yield (view := OperandView(node, linear.const, steps, run, pick=pick))
        if (form := form_of(node)) is not None:
            if all(x.attrs.get("packed") for x in node.inputs):
                yield replace(view, form=form, run=node.inputs[0].attrs.get("interleave", 1))
            return
        if takes_integers(node):
            yield replace(view, whole=True)
            return
        if node.op in PURE:
            index = source_index(node, index)
        elif picks and chosen is None and _picks(node, index, syms[-2:]):
            rank, sym = len(node.inputs[1].shape), Sym("chosen", "var", node.inputs[0].shape[0])
            chosen, index = (sym, node.inputs[1], index[:rank]), (affine.symbol(sym), *index[rank:])
        elif not exact_cast(node):
            return
        node = node.inputs[0]


def _picks(node: Node, index: Index, inner: Sequence[Sym]) -> bool:
    """True if `node` takes matrices by an index that holds only valid numbers and does not depend
    on the axes `inner`."""
    if node.op != "gather" or node.attrs["axis"] != 0:
        return False
    at = index[: len(node.inputs[1].shape)]
    if any(s.kind != "var" or s in inner for x in at for s, _ in x.terms):
        return False
    numbers, _ = counted(node.inputs[1])
    while numbers.op in PURE:
        numbers = numbers.inputs[0]
    if numbers.op == "remainder":
        by = uniform(numbers.inputs[1])
        return by is not None and 0 < int(by) <= node.inputs[0].shape[0]
    if numbers.op == "const":
        given = numbers.attrs["value"]
        return bool(given.size and given.min() >= 0 and given.max() < node.inputs[0].shape[0])
    order = numbers.op == "sort" and numbers.attrs["indices"]
    return order and numbers.shape[numbers.attrs["axis"]] <= node.inputs[0].shape[0]


def view_of(group: Group, node: Node, picks: bool = False) -> OperandView | None:
    """Returns the view of `node` in one of the group's inputs, or None."""
    materialised = {id(n) for n in group.inputs}
    found = views(node, picks)
    return next((v for v in found if all(id(x) in materialised for x in v.stored)), None)


def operand(group: Group, node: Node, picks: bool = False) -> OperandView:
    """Returns `view_of`, or raises a CompileError that names the operand."""
    view = view_of(group, node, picks)
    if view is None:
        raise CompileError(f"operand {node!r} of {group.kind} is not a strided view of an input")
    return view
