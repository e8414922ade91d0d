"""Averages of weights over training, as in torch.optim.swa_utils: equal (stochastic weight
averaging, Izmailov et al., arXiv:1803.05407) or exponential (EMA)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import CallError, ModelError, UsageError
from weft.nn.module import Module
from weft.nn.norm import _BatchNorm
from weft.optim.lr_scheduler import LRScheduler
from weft.optim.optimizer import Optimizer
from weft.program.device import HOST
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor

AvgFn = Callable[[Tensor, Tensor, Tensor], Tensor]  # (average, new, count of averaged) -> average
# (averages, which it writes, new values, count of averaged)
MultiAvgFn = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


def get_swa_avg_fn() -> AvgFn:
    """Returns the rule of the equal average.

    >>> optim.get_swa_avg_fn()(weft.tensor(1.0), weft.tensor(4.0), weft.tensor(2)).item()
    2.0
    """
    return lambda average, new, count: average + (new - average) / (count.cast(new.dtype) + 1.0)


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """Returns the rule of the exponential average. Raises UsageError for a decay beyond 0..1.

    >>> optim.get_ema_avg_fn(0.5)(weft.tensor(1.0), weft.tensor(4.0), weft.tensor(2)).item()
    2.5
    """
    if not 0.0 <= decay <= 1.0:
        raise UsageError(f"get_ema_avg_fn: decay is {decay}; give a number in 0..1")
    return lambda average, new, count: average * decay + new * (1.0 - decay)


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """The rule of the exponential average for all parameters at once.

    >>> averages = [weft.tensor(1.0)]
    >>> optim.get_ema_multi_avg_fn(0.5)(averages, [weft.tensor(4.0)], weft.tensor(2))
    >>> averages[0].item()
    2.5
    """
    return _of_all(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """The rule of the equal average for all parameters at once; see `get_ema_multi_avg_fn`."""
    return _of_all(get_swa_avg_fn())


def _of_all(rule: AvgFn) -> MultiAvgFn:
    def update(averages: Sequence[Tensor], new: Sequence[Tensor], count: Tensor) -> None:
        with no_grad():
            for average, value in zip(averages, new, strict=True):
                average.assign(rule(average, value, count).cast(average.dtype))

    return update


class AveragedModel(Module):
    """A copy of a model whose parameters are an average of the model's, which `update_parameters`
    takes on, eagerly or in a compiled step. The first one is a copy. `avg_fn` or `multi_avg_fn` is
    the rule (the equal average by default); with `use_buffers` buffers of floats are averaged as
    well, else copied.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = optim.AveragedModel(model)
    >>> for value in (1.0, 2.0):
    ...     with weft.no_grad():
    ...         _ = model.weight.assign(weft.tensor([[value]]))
    ...     average.update_parameters(model)
    >>> average(weft.ones(1)).tolist()
    [1.5]
    """

    def __init__(
        self, model: Module, device: Any = None, avg_fn: AvgFn | None = None,
        multi_avg_fn: MultiAvgFn | None = None, use_buffers: bool = False,
    ):  # fmt: skip
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.multi_avg_fn = multi_avg_fn or _of_all(avg_fn or get_swa_avg_fn())
        self.use_buffers = use_buffers
        here = next((p.device for p in self.module.parameters()), HOST)
        self.register_buffer("n_averaged", Tensor(np.zeros((), np.int32)).to(here))

    n_averaged: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the averaged model."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Takes the model's parameters into the average. Raises ModelError for another model."""
        mine, new = dict(self.module.named_parameters()), dict(model.named_parameters())
        if mine.keys() != new.keys():
            raise ModelError("AveragedModel: the model has other parameters than the average")
        buffers = dict(model.named_buffers())
        with no_grad():
            pairs: list[tuple[Tensor, Tensor]] = [(p, new[name]) for name, p in mine.items()]
            for name, b in self.module.named_buffers():
                if self.use_buffers and b.dtype.is_float:
                    pairs.append((b, buffers[name]))
                else:
                    b.assign(buffers[name].to(b.device) if not b.is_traced else buffers[name])
            values = [value.detach() for _, value in pairs]
            self.multi_avg_fn([average for average, _ in pairs], values, self.n_averaged)
            first = self.n_averaged == 0
            for (average, _), value in zip(pairs, values):
                average.assign(first.where(value.cast(average.dtype), average))
            self.n_averaged.assign(self.n_averaged + 1)


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recomputes the running statistics of the model's batch norms as averages over the batches of
    `loader` (tensors, or tuples whose first part is the input).

    >>> model = nn.Sequential(nn.BatchNorm1d(1, momentum=0.5))
    >>> optim.update_bn([weft.tensor([[1.0], [3.0]]), weft.tensor([[3.0], [5.0]])], model)
    >>> model[0].running_mean.tolist()
    [3.0]
    """
    if not isinstance(model, Module):
        raise CallError(f"update_bn takes a loader and a module, not {type(model).__name__}")
    norms: list[Any] = [
        m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
    ]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    modes = [(m, m.training) for m in model.modules()]
    try:
        model.train()
        with no_grad():
            for norm in norms:
                norm.momentum = None
                norm.running_mean.assign(norm.running_mean * 0.0)
                norm.running_var.assign(norm.running_var * 0.0 + 1.0)
                norm.num_batches_tracked.assign(norm.num_batches_tracked * 0)
            for batch in loader:
                x = batch[0] if isinstance(batch, list | tuple) else batch
                model(x if device is None else x.to(device))
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, mode in modes:
            module._training = mode


class SWALR(LRScheduler):
    """From a group's rate to `swa_lr` in `anneal_epochs`, by a cosine ("cos") or a line ("linear"),
    and constant afterwards."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: float, anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
    ) -> None:  # fmt: skip
        if anneal_strategy not in ("cos", "linear") or anneal_epochs < 0:
            raise UsageError(
                f'SWALR: anneal_strategy {anneal_strategy!r} ("cos" or "linear"), anneal_epochs '
                f"{anneal_epochs} (>= 0)"
            )
        self.swa_lr, self.anneal_epochs, self._way = swa_lr, anneal_epochs, anneal_strategy
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        """The rate of a group whose first rate is `base`, after `epoch` steps."""
        done = min(1.0, epoch / self.anneal_epochs) if self.anneal_epochs else 1.0
        share = done if self._way == "linear" else (1.0 - np.cos(np.pi * done)) / 2.0
        return float(base + (self.swa_lr - base) * share)


__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_swa_avg_fn", "update_bn",
]  # fmt: skip
