"""The primitives and composites: shape rule, NumPy meaning and scalar lowering of each.

Also functions to use them (`ops.add(x, y)`), and `bind`, which hands an op to the listener of its
arguments.
"""

from weft.ops import (  # noqa: F401  (importing registers the primitives)
    activations,
    attention,
    attention_grad,
    attention_parts,
    barrier,
    batching,
    binary,
    check,
    codes,
    composites,
    conv,
    conv_last,
    cross_entropy,
    functions,
    indexing,
    logcumsumexp,
    matmul,
    movement,
    packed,
    pointwise,
    pooling,
    quantize,
    recurrence,
    reduce,
    row_grads,
    scan_blocks,
    source,
    unary,
    windows,
    winograd,
)
from weft.ops.activations import log1p, softplus, swish
from weft.ops.composite import COMPOSITES, body_graph
from weft.ops.evaluate import evaluate
from weft.ops.functions import *  # noqa: F403
from weft.ops.graph_listener import as_node, input_node, make_node
from weft.ops.primitive import (
    PRIMITIVES,
    Aval,
    Primitive,
    aval,
    bind,
    building,
    register_listener,
    tracing,
)
from weft.ops.scan import prod, scan

__all__ = [
    *functions.__all__,
    "COMPOSITES", "PRIMITIVES", "Aval", "Primitive", "as_node", "aval", "bind", "body_graph",
    "building", "evaluate", "input_node", "log1p", "make_node", "prod", "register_listener", "scan",
    "softplus", "swish", "tracing",
]  # fmt: skip
