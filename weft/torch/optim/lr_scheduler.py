"""torch.optim.lr_scheduler over weft.optim.lr_scheduler, with PyTorch's signatures."""

from __future__ import annotations

from typing import Any

from weft.core.errors import UsageError
from weft.host.boundary import guard_calls
from weft.optim import lr_scheduler as mine
from weft.optim.lr_scheduler import (
    LRScheduler as LRScheduler,
    ReduceLROnPlateau as ReduceLROnPlateau,
)


def _made(kind: Any) -> Any:
    def __init__(
        self: Any, optimizer: Any, *args: Any, last_epoch: int = -1, **kwargs: Any
    ) -> None:
        if last_epoch != -1:
            raise UsageError(
                f"{kind.__name__}: last_epoch is {last_epoch}; load_state_dict goes on from a state"
            )
        kind.__init__(self, optimizer, *args, **kwargs)

    names = {"__init__": __init__, "__doc__": kind.__doc__, "__module__": __name__}
    made = type(kind.__name__, (kind,), names)
    guard_calls({"": made}, [""], deep="lr_lambda" not in kind.__init__.__code__.co_varnames)
    return made


class OneCycleLR(mine.OneCycleLR):
    """Up to max_lr and down again; momentum (or the first beta) goes the other way, unless
    cycle_momentum is False."""

    def __init__(
        self, optimizer: Any, max_lr: float, total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float = 0.85,
        max_momentum: float = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if three_phase or last_epoch != -1:
            raise UsageError("OneCycleLR: three_phase and last_epoch are not supported")
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise UsageError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        self._span = (base_momentum, max_momentum) if cycle_momentum else None
        super().__init__(
            optimizer, max_lr, total_steps, pct_start, anneal_strategy, div_factor, final_div_factor
        )

    def _set(self) -> None:
        super()._set()
        if self._span is None:
            return
        low, high = self._span
        epoch = self.last_epoch
        if epoch <= self.top:
            value = self._between(high, low, epoch / self.top)
        else:
            value = self._between(low, high, (epoch - self.top) / (self.total_steps - 1 - self.top))
        for group in self.optimizer.groups:
            if "betas" in group._options:
                group["betas"] = (value, group["betas"][1])
            elif "momentum" in group._options:
                group["momentum"] = value
            else:
                raise UsageError("OneCycleLR: no momentum to cycle; give cycle_momentum=False")


_OWN = ("LRScheduler", "ReduceLROnPlateau", "OneCycleLR")
for _name, _kind in list(vars(mine).items()):
    if isinstance(_kind, type) and issubclass(_kind, LRScheduler) and _name not in _OWN:
        globals()[_name] = _made(_kind)


guard_calls(globals(), ["OneCycleLR"], deep=True)


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    kinds = (n for n, v in globals().items() if isinstance(v, type) and n[0] != "_")
    return sorted(n for n in kinds if n != "UsageError")
