"""weft.torch takes the dtypes that PyTorch's operators take, gives theirs, and refuses the rest."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import operators
import pytest
import torch
from rows import few

import weft.torch
from weft.core.errors import WeftError

GIVEN = (torch.bool, torch.uint8, torch.int64, torch.float64)
COVERED = [n for n, ops in operators.operators().items() if any(map(operators.counterpart, ops))]
# what PyTorch takes and weft.torch refuses: by the size or the form of a sample, PyTorch's kernel
# differs (no elements, 0-d, a number for a tensor), or the result means nothing
EMPTY = """__rmatmul__ matmul mm nn.functional.linear tensordot searchsorted linalg.pinv bernoulli
linalg.solve_triangular masked.amax masked.amin masked.logsumexp masked.median
nn.functional.adaptive_avg_pool1d nn.functional.conv3d nn.functional.hardtanh nn.functional.unfold
nn.functional.hinge_embedding_loss nn.functional.poisson_nll_loss index_reduce"""
# what weft.torch takes and PyTorch refuses, with a result that means what it says
WIDER = """cov geometric index_fill native_group_norm native_layer_norm round
torch.ops.aten._safe_softmax.default clamp index_reduce"""
# internal functions, and results of mixed dtypes whose dtype PyTorch leaves to a kernel
LOOSE = """addr lu_unpack native_group_norm native_layer_norm
nn.functional.binary_cross_entropy_with_logits nn.functional.hinge_embedding_loss
masked.logaddexp"""


def cast(value: Any, old: torch.dtype, new: torch.dtype, left: list[int]) -> Any:
    """A sample's tensors of one dtype in another, as many as `left` says."""
    if isinstance(value, torch.Tensor):
        if value.dtype != old or not left[0]:
            return value
        left[0] -= 1
        x = value.detach()
        if new == torch.bool:
            return x > 0
        return x.to(new) if new.is_floating_point else x.abs().nan_to_num(0, 0, 0).to(new)
    if isinstance(value, list | tuple):
        parts = [cast(v, old, new, left) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: cast(v, old, new, left) for k, v in value.items()}
    return value


def dtype_names(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return [dtype_names(x) for x in found]
    return str(getattr(found, "dtype", type(found).__name__)).removeprefix("torch.")


def differences(name: str) -> list[str]:
    """Where both libraries differ in what they take, or in the dtypes of results."""
    said = []
    for op in operators.operators()[name]:
        function = operators.counterpart(op)
        old = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), None)
        if function is None or old is None:
            continue
        sample = next(iter(op.sample_inputs("cpu", old)), None)
        for new in GIVEN if sample is not None else ():
            for count in (99, 1):  # all tensors, and the first one alone
                given = (sample.input, sample.args, sample.kwargs)
                first, args, kwargs = cast(given, old, new, [count])
                theirs, ours = both(op, function, (first, *args), kwargs)
                text = f"{name}/{op.variant_test_name} {new} {count}: {theirs}, here {ours}"
                if theirs == "refused" and ours != "refused":
                    said += [text] * (name not in WIDER.split())
                elif ours == "refused" and theirs != "refused":
                    said += [text] * (name not in EMPTY.split())
                elif theirs != ours and name not in LOOSE.split():
                    said.append(text)
    return said


def both(op: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    try:
        mine = operators.mine(args, []), operators.mine(kwargs, [])
    except operators.Foreign:
        return None, None
    found: list[Any] = []
    for call, given in ((op.op, (args, kwargs)), (function, mine)):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found.append(dtype_names(call(*given[0], **given[1])))
        except WeftError as error:
            assert str(error).count("\n") < 2 and "fault in weft" not in str(error)
            found.append("refused")
        except Exception:
            assert call is op.op, op.name
            found.append("refused")
    return found[0], found[1]


@pytest.mark.parametrize("name", few(COVERED, *COVERED[::6]))
def test_the_dtypes_each_operator_takes(name: str) -> None:
    said = differences(name)
    assert not said, "\n".join(said)


def test_the_first_tensors_of_losses_are_promoted() -> None:
    x, y = [1, 0, 3], [0.5, 2.0, 1.0]
    for module in ("MSELoss", "L1Loss", "SmoothL1Loss"):
        want = getattr(torch.nn, module)()(torch.tensor(x), torch.tensor(y))
        got = getattr(weft.torch.nn, module)()(weft.torch.tensor(x), weft.torch.tensor(y))
        assert got.item() == pytest.approx(want.item()), module
