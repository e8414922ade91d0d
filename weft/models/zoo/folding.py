"""In the tracing process: calls on constants alone are computed, by PyTorch itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from weft.core.dtypes import DType
from weft.importers.ports import Ref
from weft.importers.torch_export.graph import CallNode
from weft.models.zoo.form import refs_of
from weft.models.zoo.operators import HOST

LARGE = 1 << 20  # elements of a result that is not kept


def folded(calls: list[CallNode], constants: dict[str, Any]) -> Iterator[CallNode]:
    """Yields the calls, less those on constants alone, whose results become constants."""
    for call in calls:
        reads = refs_of(call)
        known = all(torch.is_tensor(constants.get(r)) and not constants[r].is_meta for r in reads)
        made = _computed(call, constants) if reads and known else None
        if made is None:
            yield call
            continue
        outs = (call.out,) if isinstance(call.out, str) else call.out
        results = (made,) if isinstance(call.out, str) else made
        constants |= {name: value for name, value in zip(outs, results) if name}


def _computed(call: CallNode, constants: dict[str, Any]) -> Any:
    """Returns the results of an ATen operator; None if it is none, or its results are large."""
    space, _, rest = call.target.partition(".")
    name, _, overload = rest.partition(".")
    if space != "aten":
        return None
    operator = getattr(getattr(torch.ops.aten, name), overload)
    args = _torch(call.args, constants)
    if call.target == "aten.to.device":
        args[1] = HOST
    made = operator(*args, **_torch(call.kwargs, constants))
    tensors = made if isinstance(made, tuple | list) else [made]
    whole = all(torch.is_tensor(x) and x.numel() <= LARGE for x in tensors)
    return made if whole else None


def _torch(value: Any, constants: dict[str, Any]) -> Any:
    """Returns nested arguments with constants for Refs and PyTorch's dtypes."""
    if isinstance(value, Ref):
        return constants[value.name]
    if isinstance(value, list | tuple):
        return [_torch(x, constants) for x in value]
    if isinstance(value, dict):
        return {k: _torch(x, constants) for k, x in value.items()}
    return getattr(torch, value.name) if isinstance(value, DType) else value
