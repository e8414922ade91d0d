"""PyTorch's rules for the dtype in which operands meet."""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import DType, promote
from weft.importers.aten.numbers import KINDS
from weft.torch.tensor import common, function_only


@function_only
def promote_types(type1: DType, type2: DType) -> DType:
    """The smallest dtype that both cast to."""
    return promote(type1, type2)


@function_only
def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype in which an operation on two tensors or numbers computes."""
    return common(tensor1, tensor2)


@function_only
def can_cast(from_: DType, to: DType) -> bool:
    """True unless the kind of number is lost: floats to integers, numbers to bools."""
    return KINDS[from_.kind] <= KINDS[to.kind]
