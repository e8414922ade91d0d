"""Facts about single nodes for grouping: where values live, the cost of recomputing them, operands
that are strided views, and how a run-time bound on rows travels through ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.graph.ir import Graph, Node, Shape, results
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import PRIMITIVES
from weft.templates.group import Group
from weft.templates.view import views
from weft.transform.rebuild import kind_of

FUSIBLE = ("elementwise", "movement", "gather")
LOOSE = frozenset(("source", *FUSIBLE))  # kinds of the nodes that need no kernel of their own
EPILOGUES = ("dot", "reduce", "call")  # anchors that take elementwise work after them


def is_buffer(node: Node) -> bool:
    """A source that lives in a buffer of its own: an input, state, weight or non-scalar const."""
    if node.op == "input":
        return bool(node.attrs["role"] != "scalar")
    return node.op == "const" and node.shape != ()


def is_inline(node: Node) -> bool:
    """A source that kernels compute or hold themselves: 0-d consts, iotas, runtime scalars."""
    return kind_of(node) == "source" and not is_buffer(node)


def is_anchor(node: Node) -> bool:
    return kind_of(node) not in LOOSE


def takes_epilogue(node: Node) -> bool:
    """True if a kernel can end in elementwise work on the node's value; the node is an anchor with
    one output."""
    one = node.body is None or len(node.body.outputs) == 1
    return one and kind_of(node) in EPILOGUES and is_anchor(node)


def written(anchor: Node, users: Mapping[int, Sequence[Node]]) -> tuple[Node, ...]:
    """Returns the nodes that an anchor's kernel writes, including a call's unused outputs."""
    if anchor.body is None:
        return (anchor,)
    read = {x.attrs["index"]: x for x in users[id(anchor)] if x.op == "result"}
    if len(read) == len(anchor.body.outputs) - 1:
        return (anchor, *(read[i + 1] for i in range(len(read))))
    return tuple(read.get(i, x) for i, x in enumerate(results(anchor)))


def base(node: Node) -> Node:
    """The value whose buffer `node` could share: what is left without reshapes."""
    while node.op == "reshape" and not is_inline(node.inputs[0]):
        node = node.inputs[0]
    return node


def carried(node: Node) -> tuple[int, int]:
    """(operand, output) of a call that `carries` the one over into the other; -1 of others."""
    name = node.attrs["name"] if node.op == "call" else ""
    carries = COMPOSITES[name].carries if name in COMPOSITES else None
    return (carries[0] % len(node.inputs), carries[1]) if carries else (-1, -1)


def own_cost(node: Node) -> int:
    """Rough operations per element of the node alone."""
    return PRIMITIVES[node.op].cost


def kind_for(anchor: Node, claimed: str | None, few: int) -> str:
    """The template kind of an anchor; a product of up to `few` rows streams."""
    if anchor.op == "call":
        assert claimed is not None
        return claimed
    if anchor.op == "dot":
        return "matvec" if anchor.inputs[0].shape[-2] <= few else "matmul"
    return kind_of(anchor)


def label_of(node: Node) -> str:
    """The op, or the name of the composite; of a user's kernel its own name."""
    if kind_of(node) == "own":
        return str(node.attrs["params"]["kernel"]).rpartition("_")[0]
    return str(node.attrs.get("name")) if node.op == "call" else node.op


def group_name(kind: str, nodes: list[Node], anchor: Node | None, buffers: set[int]) -> str:
    """A readable name: the anchor and the elementwise ops around it, e.g. "matmul+add+tanh"."""
    ops: dict[str, None] = {}
    for node in reversed(nodes):
        computed = id(node) not in buffers and kind_of(node) in FUSIBLE
        if computed and node.op not in ("reshape", "broadcast", "transpose") and node is not anchor:
            ops[node.op] = None
    head = kind
    if anchor is not None and kind not in ("matmul", "matvec"):
        head = label_of(anchor)
    return "+".join([head, *list(ops)[:6]])


def strided_bases(node: Node, picks: bool = False) -> tuple[Node, ...]:
    """Returns the nodes that must be in memory for a template to read `node` as a strided view: the
    furthest one that strides reach, and the index (and counts) where it `picks` matrices. An inline
    source is never in memory; the result is then `node` itself."""
    *_, furthest = views(node, picks)
    found = (node,) if is_inline(furthest.node) else furthest.stored
    pick = furthest.pick
    beside = (
        () if pick is None else (pick.index,) if pick.count is None else (pick.index, pick.count)
    )
    return (*found, *(y for x in beside for y in strided_bases(x)))


# -- row bounds ---------------------------------------------------------------------------------

Rows = tuple[str, int] | None  # the first scalar * factor rows of axis 0 are wanted


def scalar_names(graph: Graph) -> tuple[str, ...]:
    """The runtime scalars of a graph, in slot order: its scalar inputs, then row bounds that no
    input declares."""
    names = [x.attrs["name"] for x in graph.inputs if x.attrs["role"] == "scalar"]
    names += [x.attrs["rows"] for x in graph.inputs if x.attrs.get("rows")]
    return tuple(dict.fromkeys(names))


def row_bounds(order: Iterable[Node]) -> dict[int, Rows]:
    """id(node) -> how many rows of its axis 0 are wanted at run time (None: all)."""
    rows: dict[int, Rows] = {}
    for node in order:
        rows[id(node)] = _rows(node, [rows[id(x)] for x in node.inputs])
    return rows


def _rows(node: Node, given: list[Rows]) -> Rows:
    kind = kind_of(node)
    if node.op == "input":
        name = node.attrs.get("rows")
        return (name, 1) if name else None
    if not any(given):
        return None
    if kind == "elementwise":
        found = {r for r in given if r}
        return found.pop() if len(found) == 1 else None
    first, x = given[0], node.inputs[0]
    if kind == "scatter":
        return first
    if kind == "gather":
        return given[1] if node.attrs["axis"] == 0 else first
    if node.op == "dot":
        return first
    if kind == "reduce":
        axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
        return first if 0 not in axes else None
    if node.op == "sort":
        return first if node.attrs["axis"] != 0 else None
    if kind == "call":
        params = node.attrs["params"]
        if 0 in params.get("axes", (params.get("axis"),)):
            return None
        made = (y for i, y in enumerate(results(node)) if i != carried(node)[1])
        same = bool(x.shape) and all(y.shape[:1] == x.shape[:1] for y in made)
        if carried(node)[1] >= 0:  # rows that nobody wants must not change the state
            first = next((r for r, y in zip(given, node.inputs)
                          if r and y.shape[:1] == x.shape[:1]), None)  # fmt: skip
        return first if same else None
    if kind == "result":
        return first if node.attrs["index"] != carried(node.inputs[0])[1] else None
    return _movement_rows(node, x, given)


def _movement_rows(node: Node, x: Node, given: list[Rows]) -> Rows:
    first = given[0]
    if node.op == "concat":
        found = {r for r in given if r}
        return found.pop() if node.attrs["axis"] != 0 and len(found) == 1 else None
    if first is None or not node.shape:
        return None
    same = node.shape[0] == x.shape[0]
    if node.op == "reshape":
        return _reshaped_rows(first, x.shape, node.shape)
    if node.op == "transpose":
        return first if node.attrs["perm"][0] == 0 else None
    if node.op == "broadcast":
        return first if same and len(node.shape) == len(x.shape) else None
    if node.op == "slice":
        return first if same and node.attrs["steps"][0] == 1 else None
    return first if same else None  # pad


def _reshaped_rows(rows: tuple[str, int], old: tuple[int, ...], new: tuple[int, ...]) -> Rows:
    name, factor = rows
    if not old[0] or not new[0]:
        return None
    if new[0] % old[0] == 0:
        return name, factor * (new[0] // old[0])
    ratio = old[0] // new[0]
    return (name, factor // ratio) if old[0] % new[0] == 0 and factor % ratio == 0 else None


# -- reading in place -------------------------------------------------------------------------


def straight(group: Group, values: set[int], shape: Shape | None = None) -> bool:
    """True if the kernel reads the `values` (ids) only at the position that it writes: from outputs
    (of `shape`, if given) by elementwise work alone."""
    return not bent(group, values, shape)


def bent(group: Group, values: set[int], shape: Shape | None = None) -> set[int]:
    """Those of the `values` that the kernel reads at other positions too (see `straight`)."""
    stop = {id(x) for x in group.inputs} | values
    stack = [(root, shape is None or root.shape == shape) for root in group.outputs]
    seen = {(id(root), direct) for root, direct in stack}
    found: set[int] = set()
    while stack:
        at, direct = stack.pop()
        if id(at) in values and not direct:
            found.add(id(at))
        if id(at) in stop:
            continue
        direct = direct and kind_of(at) in ("elementwise", "pointwise", "result")
        fresh = [x for x in at.inputs if (id(x), direct) not in seen]
        seen.update((id(x), direct) for x in fresh)
        stack += [(x, direct) for x in fresh]
    return found
