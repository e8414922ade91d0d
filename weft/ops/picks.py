"""first_rows: numbers that choose matrices of a product, with a count of rows to compute for each.

It changes no number. A product may have a gather of matrices by first_rows(numbers, counts), both
int32 [B], as its right operand. It may then leave the rows from counts[i] on of entry i uncomputed,
and so skip entries without rows. Its users must not read those rows.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.graph.ir import Node
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval

NAME = "first_rows"


def first_rows(numbers: Value, counts: Value) -> Value:
    """The numbers, and the counts for the products that they choose matrices of."""
    return f.call(NAME, numbers, counts)


def counted(numbers: Node) -> tuple[Node, Node | None]:
    """The numbers of `first_rows` and their counts; others as they are, and None."""
    if numbers.op == "call" and numbers.attrs["name"] == NAME:
        return numbers.inputs[0], numbers.inputs[1]
    return numbers, None


def every_row(numbers: Value) -> Value:
    """The numbers of `first_rows` without their counts, for users that read all rows."""
    return counted(numbers)[0] if isinstance(numbers, Node) else numbers


def _abstract(numbers: Aval, counts: Aval) -> Aval:
    if numbers != counts or numbers.dtype is not dt.int32:
        raise ShapeError(f"{NAME}: expected two int32 values of one shape, got {numbers}, {counts}")
    return numbers


register_composite(Composite(NAME, _abstract, lambda x, _: x, {}, kind="movement"))
