"""PyTorch's own table of operators (op_db) and its samples, run by PyTorch and by weft.torch."""

from __future__ import annotations

import functools
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

import weft.torch
from weft.core.errors import WeftError
from weft.torch.lacking import Absent

if "expecttest" not in sys.modules:  # PyTorch's tests subclass it; no sample needs it
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stub

from results import (
    DRAWN,
    DTYPES,
    NEAR,
    SYMMETRIC,
    TESTED,
    THEIRS,
    TIED,
    Foreign,
    array,
    difference,
    tensors,
)
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

# For each sample it searches the stack, with its source text, for a TestCase. There is none here.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

# That import forbids changes of torch.backends' flags, which other tests in the process make.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True


@dataclass
class Outcome:
    """What the samples of one name did: how many agreed, were refused, gave something else."""

    passed: int = 0
    foreign: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.passed + len(self.refused) + len(self.wrong)

    def add(self, other: Outcome) -> None:
        self.passed += other.passed
        self.foreign += other.foreign
        self.refused += other.refused
        self.wrong += other.wrong


@cache
def operators() -> dict[str, list[Any]]:
    """Name -> the table's entries (variants)."""
    found: dict[str, list[Any]] = {}
    for op in op_db:
        found.setdefault(op.name, []).append(op)
    return dict(sorted(found.items()))


def counterpart(op: Any) -> Callable[..., Any] | None:
    """weft.torch's function of an entry; None if there is none."""
    home: Any = weft.torch
    for part in op.name.removeprefix("torch.").split("."):
        home = getattr(home, part, None)
    home = None if isinstance(home, Absent) else home  # it is there to be refused
    wrapped = isinstance(op.op, types.FunctionType) and "testing" in op.op.__module__
    inner = op.name.startswith("_")
    if (
        home is None
        and not inner
        and isinstance(op.op, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    ):
        home = weft.torch.ops
        for part in str(op.op).split("."):
            home = getattr(home, part, None)
    if wrapped and home is None:  # a form of a method in place
        home = getattr(weft.torch.Tensor, f"{op.name}_", None)
    if home is None and wrapped is False:
        home = getattr(weft.torch.Tensor, op.name, None)
    if wrapped and (home is not None or hasattr(weft.torch.Tensor, op.name)):
        return _with_weft(op.op)
    return home if callable(home) else None


def _with_weft(function: types.FunctionType) -> Callable[..., Any]:
    """A function of PyTorch's tests, in which the name torch means weft.torch."""
    names = {**function.__globals__, "torch": weft.torch}
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def mine(value: Any, leaves: list[tuple[Any, Any]]) -> Any:
    """PyTorch's arguments as weft's; tensors that require gradients are noted in `leaves`."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.dtype not in DTYPES:
            raise Foreign(str(value.dtype))
        made = weft.torch.Tensor(array(value))
        if value.requires_grad:
            made.requires_grad_()
            leaves.append((value, made))
        return made
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise Foreign(str(value))
        return getattr(weft.torch, DTYPES[value])
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.nn.PairwiseDistance):
        distance = weft.torch.nn.functional.pairwise_distance
        return functools.partial(distance, p=value.norm, eps=value.eps, keepdim=value.keepdim)
    if isinstance(value, complex):
        raise Foreign("complex")
    if isinstance(value, list | tuple):
        parts = [mine(v, leaves) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: mine(v, leaves) for k, v in value.items()}
    return value


def samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """The table's samples of an entry, with gradients where PyTorch has them."""
    wanted = dtype == torch.float32 and op.supports_autograd
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from op.sample_inputs("cpu", dtype, requires_grad=wanted)


def dtypes(op: Any) -> list[torch.dtype]:
    return [d for d in TESTED if d in op.dtypes]


def run(op: Any, dtype: torch.dtype, most: int | None = None) -> Outcome:
    """The samples of an entry in one dtype (the first `most` of them) under both libraries."""
    out, function = Outcome(), counterpart(op)
    assert function is not None
    for i, sample in enumerate(samples(op, dtype)):
        if i == most:
            break
        text = f"{op.name}{op.variant_test_name and '/' + op.variant_test_name} {DTYPES[dtype]} {i}"
        try:
            found = _one(op, function, sample)
        except Foreign:
            out.foreign += 1
        except (WeftError, AttributeError, TypeError) as error:
            out.refused.append(f"{text}: {type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            if found:
                out.wrong.append(f"{text}: {found}")
            else:
                out.passed += 1
    return out


def _one(op: Any, function: Callable[..., Any], sample: Any) -> str:
    if op.variant_test_name == "partial_views":
        raise Foreign("memory around a view")
    leaves: list[tuple[Any, Any]] = []
    args = mine((sample.input, *sample.args), leaves)
    kwargs = mine(sample.kwargs, leaves)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            want = op.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:  # PyTorch refuses its own sample on this machine
            raise Foreign("refused by PyTorch") from error
        if isinstance(want, torch.Tensor) and want.layout != torch.strided:
            raise Foreign("sparse")
        got = function(*args, **kwargs)
        process = sample.output_process_fn_grad
        if isinstance(process, types.FunctionType) and "testing" in process.__module__:
            got, want = _with_weft(process)(got), process(want)
        drawn = op.name in DRAWN or bool(sample.kwargs.get("dropout_p"))
        if op.name in TIED:
            got, want = (_with_values(op.name, x, sample) for x in (got, want))
        said = difference(got, want, drawn, step=NEAR.get(op.name, 0))
        if said and sample.input is not None and "float32" not in said and not leaves:
            said = _wide(op, sample, got) or ""
        if said or drawn or not leaves or f"{op.name}/{op.variant_test_name}".rstrip("/") in THEIRS:
            return said
        return _gradients(op, sample, got, want, leaves)


def _wide(op: Any, sample: Any, got: Any) -> str:
    """What distinguishes a result in a narrow float from PyTorch's in float32, rounded once."""

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            return value.float()
        if isinstance(value, list | tuple):
            return type(value)(map(wide, value))
        return {k: wide(v) for k, v in value.items()} if isinstance(value, dict) else value

    want = op.op(wide(sample.input), *wide(sample.args), **wide(sample.kwargs))
    names = {name: dtype for dtype, name in DTYPES.items()}
    pairs = zip(tensors(got), tensors(want))
    rounded = [y.to(names[x.dtype.name]) if isinstance(y, torch.Tensor) else y for x, y in pairs]
    return difference(got, rounded, False)


def _with_values(name: str, found: Any, sample: Any) -> Any:
    """A result with the elements at its indices in the place of these."""
    parts = list(found) if isinstance(found, tuple) else [found]
    last = parts[-1]
    if (isinstance(found, tuple) and len(parts) == 2) or str(last.dtype).endswith("int64"):
        given = [a for a in sample.args if isinstance(a, int) and not isinstance(a, bool)]
        given = given[1:] if name in ("topk", "kthvalue") else given  # k
        dim = sample.kwargs.get("dim", next(iter(given), -1))
        x = array(sample.input.float() if sample.input.dtype == torch.bfloat16 else sample.input)
        at = last.numpy()
        if x.ndim and x.ndim == at.ndim:
            picked = np.take_along_axis(x, at, dim)
            parts[-1] = torch.from_numpy(picked) if isinstance(last, torch.Tensor) else (
                weft.torch.Tensor(picked))  # fmt: skip
        else:
            parts.pop()
    return parts


def _exact(op: Any, sample: Any, seeds: list[np.ndarray]) -> list[torch.Tensor] | None:
    """PyTorch's gradients in float64, rounded; None where it has none."""
    given: list[torch.Tensor] = []

    def double(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            made = value.detach().double()
            if value.requires_grad:
                given.append(made.requires_grad_())
            return made
        if isinstance(value, list | tuple):
            return type(value)(map(double, value))
        return {k: double(v) for k, v in value.items()} if isinstance(value, dict) else value

    try:
        args = double((sample.input, *sample.args))
        out = [y for y in tensors(op.op(*args, **double(sample.kwargs))) if y.requires_grad]
        seeded = [torch.from_numpy(s).to(y.dtype) for s, y in zip(seeds, out)]
        found = torch.autograd.grad(out, given, seeded, allow_unused=True)
    except (RuntimeError, TypeError):
        return None
    return [torch.zeros_like(x).float() if g is None else g.float() for x, g in zip(given, found)]


def _gradients(op: Any, sample: Any, got: Any, want: Any, leaves: list[tuple[Any, Any]]) -> str:
    pairs = [
        (x, y) for x, y in zip(tensors(got), tensors(want))
        if isinstance(y, torch.Tensor) and y.requires_grad and y.dtype in DTYPES
    ]  # fmt: skip
    if not pairs:
        return ""
    rng, seeds = np.random.default_rng(0), []
    for _, y in pairs:
        seeds.append(rng.uniform(-1, 1, tuple(y.shape)).astype(np.float32))
    try:
        theirs = torch.autograd.grad(
            [y for _, y in pairs], [t for t, _ in leaves],
            [torch.from_numpy(s).to(y.dtype) for s, (_, y) in zip(seeds, pairs)],
            allow_unused=True,
        )  # fmt: skip
    except RuntimeError:  # PyTorch has no derivative of this sample
        return ""
    total = None
    for (x, _), seed in zip(pairs, seeds):
        if not x.requires_grad:
            continue  # as a gradient of zeros
        part = (x * weft.torch.Tensor(seed).to(x.dtype)).sum()
        total = part if total is None else total + part
    if total is not None:
        total.backward()
    for place, ((_, m), t) in enumerate(zip(leaves, theirs)):
        if t is None and m.grad is None:
            continue
        have = weft.torch.zeros_like(m) if m.grad is None else m.grad
        want_grad = torch.zeros(m.shape, dtype=torch.float32) if t is None else t
        if op.name in SYMMETRIC or op.variant_test_name == "hermitian":
            have, want_grad = have + have.mT, want_grad + want_grad.mT
        said = difference(have, want_grad, False, 20)
        if said:
            exact = _exact(op, sample, seeds)
            said = exact is None or difference(have, exact[place], False, 20)
        if said:
            return f"gradient: {said}"
    return ""


def whole(name: str) -> Outcome:
    """All samples of a name in all dtypes."""
    out = Outcome()
    for op in operators()[name]:
        if counterpart(op) is not None:
            for dtype in dtypes(op):
                out.add(run(op, dtype))
    return out
