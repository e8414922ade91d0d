"""PyTorch's schedulers: objects that set an optimiser's learning rates at each `step()`, once per
epoch or per step of a loop. (`optim.cosine` and the like are functions of the step count instead,
and a part of the compiled step.)"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.host.boundary import guard_calls
from weft.optim.optimizer import Optimizer
from weft.optim.schedules import want_counts, want_shares


class LRScheduler:
    """The base: `rate(base, epoch)` is the learning rate of a group whose first rate is `base`,
    after `epoch` steps. Raises UsageError for an optimiser whose rate is a schedule already."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.last_epoch = optimizer, 0
        rates = [group.lr for group in optimizer.groups]
        if any(callable(rate) for rate in rates):
            raise UsageError(
                f"{type(self).__name__}: the optimiser's lr is a schedule; give it a number"
            )
        self.base_lrs: list[float] = [float(rate) for rate in rates]  # type: ignore[arg-type]
        self._set()

    def rate(self, base: float, epoch: int) -> float:
        raise NotImplementedError

    def step(self) -> None:
        """Goes on by one epoch."""
        self.last_epoch += 1
        self._set()

    def _set(self) -> None:
        for i, group in enumerate(self.optimizer.groups):
            group.lr = self._rate_of(i, self.base_lrs[i])

    def _rate_of(self, group: int, base: float) -> float:
        return self.rate(base, self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """The rates that the groups have now."""
        return [self._rate_of(i, base) for i, base in enumerate(self.base_lrs)]

    def state_dict(self) -> dict[str, Any]:
        """Returns the numbers and lists that a later run needs to go on."""
        return {k: v for k, v in vars(self).items() if isinstance(v, int | float | list)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        vars(self).update(state)
        self._set()


class LambdaLR(LRScheduler):
    """base * lr_lambda(epoch); one function, or one per group."""

    def __init__(
        self, optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
    ) -> None:  # fmt: skip
        many = isinstance(lr_lambda, Sequence)
        given: Any = lr_lambda if many else [lr_lambda] * len(optimizer.groups)
        if len(given) != len(optimizer.groups) or not all(map(callable, given)):
            raise UsageError(
                f"{type(self).__name__}: {len(given)} of lr_lambda for {len(optimizer.groups)} "
                "groups; give one function, or one per group"
            )
        self._lambdas = given
        super().__init__(optimizer)

    def _rate_of(self, group: int, base: float) -> float:
        return float(base * self._lambdas[group](self.last_epoch))

    def state_dict(self) -> dict[str, Any]:
        """Returns the numbers that a later run needs to go on; it has the functions itself."""
        return {k: v for k, v in super().state_dict().items() if k != "_lambdas"}


class MultiplicativeLR(LambdaLR):
    """base times lr_lambda(1), lr_lambda(2), ... lr_lambda(epoch)."""

    def _rate_of(self, group: int, base: float) -> float:
        factor = self._lambdas[group]
        return float(base * math.prod(factor(i) for i in range(1, self.last_epoch + 1)))


class StepLR(LRScheduler):
    """base * gamma for every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        want_counts("StepLR", step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.gamma ** (epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """base * gamma for each milestone reached."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, epoch)


class ExponentialLR(LRScheduler):
    """base * gamma ** epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.gamma**epoch


class ConstantLR(LRScheduler):
    """base * factor for `total_iters` epochs, then base."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        want_shares("ConstantLR", factor=factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.factor if epoch < self.total_iters else base


class LinearLR(LRScheduler):
    """From base * start_factor to base * end_factor in `total_iters` epochs."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:  # fmt: skip
        want_shares("LinearLR", start_factor=start_factor or math.nan, end_factor=end_factor)
        want_counts("LinearLR", total_iters=total_iters)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        done = min(epoch, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class PolynomialLR(LRScheduler):
    """base * (1 - epoch / total_iters) ** power."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        want_counts("PolynomialLR", total_iters=total_iters)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        left = 1.0 - min(epoch, self.total_iters) / self.total_iters
        return float(base * left**self.power)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from base to eta_min in T_max epochs, and back (arXiv:1608.03983)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        want_counts("CosineAnnealingLR", T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        return _cosine(self.eta_min, base, epoch / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines from base to eta_min, of T_0 epochs and then T_mult times as many each time."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0
    ) -> None:
        want_counts("CosineAnnealingWarmRestarts", T_0=T_0, T_mult=T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        length = self.T_0
        while epoch >= length:
            epoch, length = epoch - length, length * self.T_mult
        return _cosine(self.eta_min, base, epoch / length)


class OneCycleLR(LRScheduler):
    """Up to max_lr and down again, each by half a cosine or a line (arXiv:1708.07120). Momentum
    stays as it is."""

    def __init__(
        self, optimizer: Optimizer, max_lr: float, total_steps: int, pct_start: float = 0.3,
        anneal_strategy: str = "cos", div_factor: float = 25.0, final_div_factor: float = 1e4,
    ) -> None:  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise UsageError(f'OneCycleLR: anneal_strategy {anneal_strategy!r}; "cos" or "linear"')
        want_counts("OneCycleLR", total_steps=total_steps)
        want_shares("OneCycleLR", pct_start=pct_start)
        self.max_lr, self.total_steps, self.top = max_lr, total_steps, pct_start * total_steps - 1
        self.first = max_lr / div_factor
        self.final, self._way = self.first / final_div_factor, anneal_strategy
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        if epoch > self.total_steps:
            raise UsageError(f"OneCycleLR: step {epoch} of {self.total_steps}")
        if epoch <= self.top:
            return self._between(self.first, self.max_lr, epoch / self.top)
        rest = self.total_steps - 1 - self.top
        return self._between(self.max_lr, self.final, (epoch - self.top) / rest)

    def _between(self, start: float, stop: float, done: float) -> float:
        if self._way == "linear":
            return start + (stop - start) * done
        return _cosine(stop, start, done)


class CyclicLR(LRScheduler):
    """Up from base_lr to max_lr by a line in `step_size_up` steps, down in `step_size_down`, again
    and again (arXiv:1506.01186). The height stays ("triangular"), halves each cycle
    ("triangular2"), or is gamma**step ("exp_range"). Momentum stays as it is."""

    def __init__(
        self, optimizer: Optimizer, base_lr: float, max_lr: float, step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
    ) -> None:  # fmt: skip
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise UsageError(f"CyclicLR: mode {mode!r}; triangular, triangular2 or exp_range")
        self.base_lr, self.max_lr, self.gamma, self._mode = base_lr, max_lr, gamma, mode
        want_counts("CyclicLR", step_size_up=step_size_up)
        self.up = step_size_up
        self.total = step_size_up + (step_size_up if step_size_down is None else step_size_down)
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        cycle, at = divmod(epoch, self.total)
        share = at / self.up if at <= self.up else (self.total - at) / (self.total - self.up)
        scale = {"triangular2": 0.5**cycle, "exp_range": self.gamma**epoch}.get(self._mode, 1.0)
        return self.base_lr + (self.max_lr - self.base_lr) * share * scale


class ChainedScheduler(LRScheduler):
    """Several schedulers at once: their factors multiply."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise UsageError("ChainedScheduler: no schedulers; give at least one")
        self._schedulers, owner = tuple(schedulers), optimizer or schedulers[0].optimizer
        for group, base in zip(owner.groups, schedulers[0].base_lrs, strict=True):
            group.lr = base
        super().__init__(owner)

    def _rate_of(self, group: int, base: float) -> float:
        for s in self._schedulers:
            s.last_epoch = self.last_epoch
            own = s.base_lrs[group]
            base = base * s._rate_of(group, own) / own if own else 0.0
        return base


class SequentialLR(LRScheduler):
    """One scheduler after another: the next one starts at each milestone."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise UsageError(
                f"SequentialLR: {len(schedulers)} schedulers and {len(milestones)} milestones; "
                "give one milestone fewer"
            )
        self._schedulers, self._starts = tuple(schedulers), (0, *milestones)
        for group, base in zip(optimizer.groups, schedulers[0].base_lrs, strict=True):
            group.lr = base
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        at = bisect_right(self._starts, epoch) - 1
        return self._schedulers[at].rate(base, epoch - self._starts[at])


class ReduceLROnPlateau:
    """Multiplies the rates by `factor` when a measure has not improved for `patience` epochs."""

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float = 0.0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs") or factor >= 1.0:
            raise UsageError(
                f"ReduceLROnPlateau: mode {mode!r} (min or max), threshold_mode "
                f"{threshold_mode!r} (rel or abs), factor {factor} (< 1)"
            )
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lr, self.eps = min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def step(self, metrics: float) -> None:
        """Takes the measure of an epoch."""
        value = float(metrics)
        if self._better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            for group in self.optimizer.groups:
                old = group.lr
                if (
                    not callable(old)
                    and old - (new := max(old * self.factor, self.min_lr)) > self.eps
                ):
                    group.lr = new
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        if math.isinf(self.best):
            return sign * value < sign * self.best
        bound = self.best * (1.0 - sign * self.threshold)
        return sign * value < sign * bound


def _cosine(low: float, high: float, done: float) -> float:
    return low + (high - low) * (1.0 + math.cos(math.pi * done)) / 2.0


_KINDS = [n for n, v in globals().items() if isinstance(v, type) and v.__module__ == __name__]
guard_calls(globals(), ["LambdaLR", "MultiplicativeLR"])  # they call a user's function
guard_calls(globals(), _KINDS, deep=True)
