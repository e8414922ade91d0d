"""Products of matrices, and weights of few bits in them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.core.packed import Form
from weft.importers.foreign import LinearWeight, dequantized
from weft.importers.onnx.graph import OnnxGraph, OnnxNode
from weft.importers.onnx.table import MICROSOFT, NodeCall, Rule, Value, op
from weft.tensor.core import Tensor


@op("MatMul", either=True)
def matmul(call: NodeCall, a: Value, b: Value) -> Value:
    return product(a, b) if isinstance(a, Tensor) else np.matmul(a, b)


def product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product in the operands' type; integers as int32."""
    if a.dtype.is_int and a.dtype.itemsize > 1:
        wide = (a.unsqueeze(-1) if a.ndim > 1 else a.reshape(1, -1, 1)) * b.unsqueeze(
            -3 if b.ndim > 1 else 0
        )
        if a.ndim > 1 and b.ndim > 1:
            return wide.sum(-2).cast(a.dtype)
    return a @ b


def scaled_product(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """alpha a b, of which a b may be beyond the range of narrow floats."""
    if alpha == 1.0:
        return product(a, b)
    if dt.compute_dtype(a.dtype) is a.dtype:
        return product(a, b) * alpha
    return (a.matmul(b, out_dtype=dt.float32) * alpha).cast(a.dtype)


@op("Gemm")
def gemm(call: NodeCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha A B + beta C, with A and B transposed if the node says so."""
    if a.ndim != 2 or b.ndim != 2:
        raise ShapeError(f"{list(a.shape)} by {list(b.shape)}; expected two matrices")
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    out = scaled_product(a, b, alpha)
    if c is not None and np.broadcast_shapes(out.shape, c.shape) != out.shape:
        raise ShapeError(f"C {list(c.shape)} does not broadcast to {list(out.shape)}")
    if c is None or beta == 0.0:
        return out
    return out + (c if beta == 1.0 else c * beta).cast(out.dtype)


@op("Einsum")
def einsum(call: NodeCall, *operands: Tensor) -> Tensor:
    equation = call.need("equation").replace(" ", "")
    if operands[0].dtype.is_int:
        return _einsum_of_integers(equation, operands)
    return weft.einsum(equation, *operands).cast(operands[0].dtype)


def _einsum_of_integers(equation: str, operands: tuple[Tensor, ...]) -> Tensor:
    """The sum of products over all labels at once: devices multiply no matrices of 32-bit
    integers, and floats would be inexact beyond 2^24."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"{len(terms)} terms for {len(operands)} operands")
    extra = {t: x.ndim - len(t) + 3 for t, x in zip(terms, operands) if "..." in t}
    dots = "".join(map(chr, range(0x100, 0x100 + max(extra.values(), default=0))))
    terms = [t.replace("...", dots[len(dots) - extra.get(t, 0) :]) for t in terms]
    if any(len(set(t)) < len(t) or len(t) != x.ndim for t, x in zip(terms, operands)):
        raise UsageError(f"an Einsum of integers with the equation {equation!r:.80}")
    labels = "".join(sorted(set("".join(terms))))
    once = [c for c in labels if sum(c in t for t in terms) == 1 and c not in dots]
    out = right.replace("...", dots) if arrow else dots + "".join(once)
    total = None
    for term, x in zip(terms, operands):
        x = x.permute([term.index(c) for c in labels if c in term])
        sizes = iter(x.shape)
        x = x.reshape([next(sizes) if c in term else 1 for c in labels])
        total = x if total is None else total * x
    assert total is not None
    gone = tuple(i for i, c in enumerate(labels) if c not in out)
    made = total.sum(gone) if gone else total
    rest = [c for c in labels if c in out]
    return made.permute([rest.index(c) for c in out]).cast(operands[0].dtype)


@op("Det")
def det(call: NodeCall, x: Tensor) -> np.ndarray:
    """Determinants: with row exchanges that depend on values, so on the host."""
    host = call.host(x, "the matrix")
    made: np.ndarray = np.asarray(np.linalg.det(host)).astype(host.dtype)
    return made


@op("Inverse", domain=MICROSOFT)
def inverse(call: NodeCall, x: Tensor) -> np.ndarray:
    """The inverses of matrices; those of singular ones are of NaN. On the host, as of Det."""
    host = call.host(x, "the matrix")
    if host.ndim < 2 or host.shape[-1] != host.shape[-2]:
        raise ShapeError(f"the inverse of {list(host.shape)}; expected square matrices")
    flat = host.reshape(-1, *host.shape[-2:]).astype(np.float64)
    made = np.full(flat.shape, np.nan)
    for i, matrix in enumerate(flat):
        with contextlib.suppress(np.linalg.LinAlgError):
            made[i] = np.linalg.inv(matrix)
    out: np.ndarray = made.reshape(host.shape).astype(host.dtype)
    return out


# -- weights of products, and packed ones in their place -------------------------------------------


def linear_weights(graph: OnnxGraph) -> list[LinearWeight]:
    """The module's tensors that MatMul and Gemm alone read, as their right operand and one way."""
    ways: dict[str, set[bool | None]] = {name: set() for name in graph.held}
    for node in graph.nodes:
        for name in node.reads:
            if name in ways:
                ways[name].add(_turned(node, name))
    for port in graph.outputs:
        ways.pop(port.name, None)
    inner = {name for g in graph.subgraphs() for name in g.free}
    return [
        LinearWeight(name, graph.held[name], way.pop() is True)
        for name, way in ways.items()
        if len(way) == 1 and way != {None} and name not in inner and name in graph.initial
    ]


def _turned(node: OnnxNode, name: str) -> bool | None:
    """True if a product reads a weight as [K, N], False for [N, K]; None if it is read in other
    ways."""
    if node.domain or node.inputs.count(name) != 1 or node.inputs[1:2] != (name,):
        return None
    if node.op == "Gemm":
        return not node.attrs.get("transB", 0)
    return True if node.op == "MatMul" else None


def with_packed(graph: OnnxGraph, forms: Mapping[str, tuple[LinearWeight, Form]]) -> OnnxGraph:
    """The graph with a node before each product that makes the matrix of its packed weight."""
    held = {n: d for n, d in graph.held.items() if n not in forms}
    nodes: list[OnnxNode] = []
    for node in graph.nodes:
        name = node.inputs[1] if len(node.inputs) > 1 else ""
        if name in forms and name in graph.held:
            weight, form = forms[name]
            parts = tuple(f"{name}.{part}" for part in form.parts)
            held |= {p: f"{weight.dotted}.{part}" for p, part in zip(parts, form.parts)}
            matrix = f"{name}@{len(nodes)}"
            rule = Rule(functools.partial(_matrix, form, weight.turned))
            nodes.append(OnnxNode("dequantize", "", name, parts, (matrix,), {}, parts, rule=rule))
            inputs = (node.inputs[0], matrix, *node.inputs[2:])
            reads = tuple(dict.fromkeys(matrix if n == name else n for n in node.reads))
            node = replace(node, inputs=inputs, reads=reads)
        nodes.append(node)
    made = replace(graph, nodes=nodes, held=held)
    made.mark_dead()
    return made


def _matrix(form: Form, turned: bool, call: NodeCall, *parts: Tensor) -> Tensor:
    found = dequantized(form, *parts)
    return found.T if turned else found
