"""Weight gradients with few blocks of results become products of slices of K, and their sum.

A GPU computes a block of results per group of threads. The gradient of a small weight has too few
of them for its cores, but K (the tokens of a batch) is long: slices of it are products of their
own, which a second kernel adds in ascending order. Only x transposed times g is split, where M and
N are the weight's axes: in other products M counts rows, and a row's sums must not depend on that.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.graph.ir import Graph, Node
from weft.transform.rebuild import make, remake, rewrite

GROUPS = 128  # groups of threads that keep a large GPU busy
BLOCK = 128  # rows and columns of results per group
DEPTH = 512  # of a slice at least: a shorter one is over before its partial products are stored
FEW_ROWS = 16  # so few rows are another template's business, which shares K among threads anyway


def split_k(graph: Graph) -> Graph:
    """The graph with each long product of a transposed value done in slices of K."""
    return rewrite(graph, lambda node, inputs: _split(remake(node, inputs)))


def slices(m: int, n: int, k: int) -> int:
    """Into how many slices to cut K; 1 where it is not worth it."""
    groups = -(-m // BLOCK) * -(-n // BLOCK)
    count = 1
    while groups * count * 2 <= 2 * GROUPS and k % (count * 2) == 0 and k // (count * 2) >= DEPTH:
        count *= 2
    return count


def _split(node: Node) -> Node:
    if node.op != "dot" or len(node.shape) != 2:
        return node
    a, b = node.inputs
    (m, k), n = a.shape, b.shape[1]
    if a.op != "transpose" or not a.dtype.is_float or m <= FEW_ROWS or min(m, n, k) == 0:
        return node
    count = slices(m, n, k)
    if count == 1:
        return node
    (x,) = a.inputs
    left = make("reshape", x, shape=(count, k // count, m))
    left = make("transpose", left, perm=(0, 2, 1))
    right = make("reshape", b, shape=(count, k // count, n))
    partial = make("dot", left, right, where=node.where, out_dtype=dt.float32)
    total = make("sum", partial, axes=(0,), where=node.where)
    return total if node.dtype == dt.float32 else make("cast", total, dtype=node.dtype)
