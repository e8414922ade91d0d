"""In the tracing process: a model as a function of token ids and positions."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from weft.models.zoo.eager import Eager
from weft.models.zoo.operators import HOST


class Logits(torch.nn.Module):
    """The model as a function of token ids and positions, int64 [rows, length] both; without
    positions it does what it does by itself."""

    def __init__(self, model: Any, eager: Eager | None = None) -> None:
        super().__init__()
        self.model, self.offset, self.eager = model, 0, eager
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(self, input_ids: Any, position_ids: Any = None) -> Any:
        if self.eager is None:
            return self._logits(input_ids, position_ids)
        with self.eager.over(input_ids, position_ids):
            return self._logits(input_ids, position_ids)

    def _logits(self, input_ids: Any, position_ids: Any) -> Any:
        if position_ids is None:
            return self._called(input_ids)
        positions = position_ids + self.offset
        if self.takes_positions:
            return self._called(input_ids, position_ids=positions)
        hooks = []
        for module in self.model.modules():
            if "position_ids" in inspect.signature(module.forward).parameters:
                before = functools.partial(_placed, positions)
                after = functools.partial(_shaped, positions)
                hooks += [
                    module.register_forward_pre_hook(before, with_kwargs=True),
                    module.register_forward_hook(after, with_kwargs=True),
                ]
        try:
            return self._called(input_ids)
        finally:
            for hook in hooks:
                hook.remove()

    def _called(self, input_ids: Any, **more: Any) -> Any:
        with _Scalars():
            return self.model(input_ids=input_ids, use_cache=False, **more).logits


def _given(module: Any, args: Any, kwargs: Any) -> Any:
    """Returns the positions that a call of a module has, or None."""
    at = list(inspect.signature(module.forward).parameters).index("position_ids")
    return args[at] if len(args) > at else kwargs.get("position_ids")


def _placed(positions: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """Gives a module of the model the positions, where its caller gives none, or counts along one
    sequence: then those of all sequences in a row."""
    found = _given(module, args, kwargs)
    if found is not None and found.ndim != 1:
        return args, kwargs
    wanted = positions if found is None else positions.reshape(-1)
    at = list(inspect.signature(module.forward).parameters).index("position_ids")
    if len(args) > at:
        return (*args[:at], wanted, *args[at + 1 :]), kwargs
    return args, {**kwargs, "position_ids": wanted}


def _shaped(positions: Any, module: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """Gives what a module made of positions the shape of the sequences, where they were in a row,
    or where it took them for those of one sequence and put an axis before them."""
    if not isinstance(out, torch.Tensor):
        return out
    in_a_row = _given(module, args, kwargs).ndim == 1
    within = out.ndim == 4 and isinstance(module, torch.nn.Embedding)
    return out.reshape(*positions.shape, -1) if in_a_row or within else out


class _Scalars(TorchFunctionMode):
    """Numbers that the model makes tensors of while it runs keep their content."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__ and isinstance(args[1], tuple):
            at = (torch.tensor(i, device=HOST) if isinstance(i, list) else i
                  for i in args[1])  # fmt: skip
            args = (args[0], tuple(at))
        if func in (torch.tensor, torch.as_tensor, torch.scalar_tensor):
            kwargs = {**kwargs, "device": HOST}
        return func(*args, **kwargs)
