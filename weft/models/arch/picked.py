"""Products of rows with matrices that each row picks, as traced experts have them."""

from __future__ import annotations

from weft import ops
from weft.core.order import STREAM_ROWS
from weft.models.arch.feed_forward import pair_blocks
from weft.models.arch.layers import Pass, Value, rounded


def picked_rows(p: Pass, role: str, x: Value, chosen: Value) -> Value:
    """Returns x[N, C, K] times the matrix `role`[chosen[N, C]] of each pair: float32 [N, C, M].
    Many rows are grouped by matrix first (`feed_forward.pair_blocks`)."""
    n, used, depth = ops.aval(x).shape
    if n <= STREAM_ROWS:
        rows = rounded(p.c, f"{role}.w", ops.reshape(x, (n, used, 1, depth)))
        out = p.pick(role, rows, chosen)
        return ops.reshape(out, (n, used, -1))
    numbers, pair, slot = pair_blocks(p.c, chosen, p.real)
    flat = ops.reshape(ops.transpose(x, (1, 0, 2)), (used * n, depth))
    out = p.pick(role, rounded(p.c, f"{role}.w", flat, lambda v: ops.gather(v, pair)), numbers)
    return ops.gather(ops.reshape(out, (-1, ops.aval(out).shape[-1])), slot)
