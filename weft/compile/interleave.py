"""Weights of products in the order that a CPU's lanes read them: a kept interleaved order.

Checkpoints hold a linear layer as w[N, K]. Lanes of a product are rows of w (core.order), which are
K apart there. If no node writes a weight, its product reads a copy in which `lanes` rows are
interleaved, w[N / lanes, K, lanes]: one stream, no shuffle. Rows of zeros fill the last band up.
Other readers of the weight (a gather of embeddings) read the checkpoint's order.
"""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.packed import Form
from weft.graph.ir import Graph, Node
from weft.ops import functions as f
from weft.ops.packed import dequantize, form_of
from weft.ops.quantize import BLOCK, run_of
from weft.templates.product.bands import BYTES, step_of
from weft.templates.product.packed_rows import fits
from weft.templates.view import views
from weft.transform.rebuild import remake, rewrite

_PAIRS = {"dot2_bf16", "mma_bf16"}  # features whose instructions take neighbours along K directly


def interleave(graph: Graph, caps: Caps) -> Graph:
    """The graph whose dots read interleaved weights, where `graph.meta["frozen"]` promises that
    weights never change and the target gains. Packed ones that a target's products read as they are
    have "packed" among their attributes."""
    if caps.is_cpu and (not graph.meta.get("frozen") or caps.lanes < 2):
        return graph
    made: dict[int, Node] = {}  # operand -> what a product reads in its place
    lanes = caps.lanes if caps.is_cpu else 1

    def kept(weight: Node, part: str = "") -> Node:
        if id(weight) not in made:
            made[id(weight)] = _kept(weight, lanes, part)
        return made[id(weight)]

    def integers(x: Node) -> Node:
        """The left operand, its `rescale` left to the product."""
        if id(x) not in made:
            if x.op != "call":
                made[id(x)] = remake(x, (integers(x.inputs[0]),))
            else:
                attrs = {**x.attrs, "params": {"whole": True}}
                made[id(x)] = Node("call", x.inputs, attrs, x.shape, x.dtype, x.body, x.where)
        return made[id(x)]

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        weight = _weight(node.inputs[1], caps) if node.op == "dot" else None
        if weight is None:
            return remake(node, inputs)
        form, left = form_of(weight), inputs[0]
        if form is not None:
            parts = dict(zip(form.parts, map(kept, weight.inputs, form.parts)))
            rows = _first(dequantize(form, parts), weight.shape[0])
            if _takes_integers(node.inputs[0], form, weight.shape[1], caps):
                left = integers(left)
        else:
            rows = _first(kept(weight), math.prod(weight.shape[:-1]))
        return remake(node, (left, _over(inputs[1], rows)))

    return rewrite(graph, visit, lambda node: node.op == "dot")


def _takes_integers(x: Node, form: Form, k: int, caps: Caps) -> bool:
    """True if a product by weights of a form reads its other operand as integers. The operand must
    be a `rescale` by whole blocks of contiguous rows, and a kernel must be allowed enough buffers
    for all parts."""
    *_, view = views(x)
    *rows, step = view.strides
    if view.node.op != "call" or view.node.attrs["name"] != "rescale" or not run_of(form, k):
        return False
    fits = len(view.node.inputs) + len(form.parts) < caps.max_bindings
    return fits and step == 1 and not any(n % BLOCK for n in (*rows, view.offset))


def _kept(weight: Node, lanes: int, part: str) -> Node:
    """The weight, or a part of a packed one, in another order: codes word by word."""
    shape = weight.shape
    if len(shape) == 3:
        shape = shape[0] * shape[1], shape[2]
    attrs = {"part": (0, shape[0]), "whole": shape, **weight.attrs}
    attrs |= {"packed": True} if part else {}
    if lanes > 1:
        attrs |= {"interleave": lanes} | ({"item": BYTES} if part in ("codes", "high") else {})
    padded = -(-shape[0] // lanes) * lanes
    return Node("input", (), attrs, (padded, shape[1]), weight.dtype)


def _first(weight: Node, rows: int) -> Node:
    """The first rows of a weight; what fills its last band up is not read."""
    found: Node = f.slice_(weight, (0, 0), (rows, weight.shape[1]))
    return found


def _over(node: Node, weight: Node) -> Node:
    """A product's operand, `weight` in the place of the one that it moves."""
    if node.op == "input" or form_of(node) is not None:
        stacked: Node = f.reshape(weight, node.shape)
        return stacked
    return remake(node, (_over(node.inputs[0], weight), *node.inputs[1:]))


def _weight(node: Node, caps: Caps) -> Node | None:
    """The weight w[N, K] of which `node` is the transpose, or w[E, N, K] or w[E * N, K] of whose E
    matrices it picks some, where it can be interleaved."""
    *_, view = views(node, picks=True)
    at, found = view.node, view.strides
    if len(at.shape) not in (2, 3) or not _readable(at, caps):
        return None
    depth, rows = at.shape[-1], node.shape[-1]
    by = 0 if view.pick is None else view.pick.by  # 0 too where there is one matrix to pick
    whole = by // max(depth, 1) if by else math.prod(at.shape[:-1])
    plain = (node.shape[-2], rows) == (depth, whole) and not (view.offset or any(found[:-2]))
    whole_bands = not caps.is_cpu or rows % caps.lanes == 0
    fills = view.pick is None and (rows >= caps.lanes or form_of(at) is not None)
    fits_ = rows and (whole_bands or fills) and depth > 1
    return at if plain and found[-2:] == (1, depth) and fits_ else None


def _readable(weight: Node, caps: Caps) -> bool:
    """True if products can read such a weight, plain or packed, interleaved."""
    form = form_of(weight)
    if form is not None:
        depth = weight.shape[-1]
        able = step_of(form, depth) > 0 if caps.is_cpu else fits(form, depth)
        # A GPU's may be ranges of rows, which stay in their order.
        return able and all(_whole(x) if caps.is_cpu else _is_weight(x) for x in weight.inputs)
    if not caps.is_cpu:
        return False
    pairs = weight.dtype == dt.bfloat16 and caps.features & _PAIRS
    return _whole(weight) and weight.dtype.is_float and not pairs


def _whole(node: Node) -> bool:
    """True if a weight is bound as the checkpoint has it."""
    return _is_weight(node) and "part" not in node.attrs


def _is_weight(node: Node) -> bool:
    return node.op == "input" and node.attrs["role"] == "weight"
