"""The order in which every kernel takes its sums (docs/numerics.md, "One order of every sum").

A product's K is cut into spans of SPAN and these into chunks of CHUNK, from k = 0 on. Within a
chunk an element is one chain of fused multiply-adds from zero in ascending k. A span adds its
chunks' sums in ascending order, and the product its spans' sums in ascending order. A matrix unit
adds in its own order, so its part of a span is one chain of unit steps, without chunks.

A product of integers with scales (quantised rows, packed weights) adds up a run exactly: as many k
as share both scales, 32 or 16. A chunk is then one chain of fused multiply-adds over its runs, in
ascending order. Each adds the run's integer times the product of the scales and, where the weight
has lows, the sum of the run's x times its low.

Attention's keys are cut into spans of KEY_SPAN and these into blocks of KEYS, from position 0 on. A
span is an online softmax over its blocks, in ascending order; spans join in ascending order.

A row of at most ROW_SEGMENT elements is added up in ROW_STRANDS strands: strand i adds elements i,
i + ROW_STRANDS, ... in ascending order from zero. Strands fold by halves: i with i + 32, then i +
16, ... i + 1. A longer row is the row of its segments' sums. Elements that do not exist add
nothing. Several reduced axes that are not adjacent form one row, in which each run of the last axis
begins at a multiple of ROW_STRANDS. Sums over other axes than the last ones, column by column, are
chains of COLUMN_SEGMENT elements in ascending order from zero. A longer column is the column of its
chains' sums.
"""

from __future__ import annotations

from weft.core.caps import Caps

STREAM_ROWS = 16  # most rows, or sequences of a decode step, that stream the other operand
STEP_ROWS = 64  # the same where a step learns its number of rows at run time (`stream_rows`)
CHUNK = 256  # k of one chain of fused multiply-adds
SPAN = 2048  # k of one sum of chunks; a multiple of CHUNK
KEYS = 64  # keys under one running maximum
KEY_SPAN = 512  # keys of one online softmax; a multiple of KEYS
STRANDS = 16  # partial sums of a block's weights: strand i adds keys i, i + 16, ...
ROW_STRANDS = 64  # partial sums of a row: strand i adds elements i, i + 64, ...
ROW_SEGMENT = 1024  # elements of a row that one set of strands adds up
COLUMN_SEGMENT = 32  # elements of a column that one chain adds up


def stream_rows(caps: Caps, bounded: bool) -> int:
    """Returns the most rows for which a product streams the other operand, reading it once.

    `bounded` says that the number of rows is known only at run time. Most such steps are far from
    full, and one kernel on a CPU's vectors handles one row or sixty-four. Matrix registers hold
    sixteen.
    """
    vectors = caps.is_cpu and "mma_bf16" not in caps.features
    return STEP_ROWS if bounded and vectors else STREAM_ROWS
