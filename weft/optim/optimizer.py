"""The base of the optimisers: parameter groups, the step count, learning rates, saved state.

A step is tensor ops and assignments, so the same code runs eagerly and inside `weft.compile`, where
parameters and state are updated in place by the Program that computed the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import GradientError, ModelError, ShapeError, UsageError
from weft.optim.finite import all_finite
from weft.tensor.autograd import no_grad
from weft.tensor.base import CURRENT, place
from weft.tensor.core import Tensor
from weft.tensor.create import zeros
from weft.tensor.guards import Noted, Watched
from weft.tensor.pointwise import Pointwise

Write = Callable[[Tensor, Tensor], Tensor]  # (tensor, its new value) -> its value from here on
Update = Callable[..., tuple[Tensor, ...]]  # the new parameter and its state
Schedule = Callable[[Tensor], Tensor]  # steps done so far (int32 []) -> learning rate (float32 [])

MANY = 512  # parameters whose updates would be most of a program
SMALL = 1 << 14  # elements of a parameter whose update need not share a kernel with its gradient


class Group(Watched):
    """Parameters that share options. `params` are (name, tensor) pairs; options are read as
    `group["weight_decay"]` and may be set between steps."""

    def __init__(self, params: list[tuple[str, Tensor]], options: dict[str, Any], lr: Any):
        self.params = tuple(params)
        self._options = Noted(options)
        self._schedule: Schedule | None = None
        self._rate = Tensor(np.zeros((), np.float32), "lr")
        self.lr = lr

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._options:
            known = ", ".join(self._options)
            raise UsageError(f"optimiser group: no option {name!r}; known: {known} (and .lr)")
        self._options[name] = value

    @property
    def lr(self) -> float | Schedule:
        """The learning rate: a number, or a function of the number of steps done."""
        return self._rate.item() if self._schedule is None else self._schedule

    @lr.setter
    def lr(self, value: float | Schedule) -> None:
        if callable(value):
            self._schedule = value
            return
        if not 0.0 <= float(value) < float("inf"):
            raise UsageError(f"lr: {value} is not a learning rate; give a finite number >= 0")
        self._schedule = None
        self._rate.assign(Tensor(np.array(value, np.float32)).to(self._rate.device))

    def __repr__(self) -> str:
        rate = self._schedule or ("traced" if CURRENT.trace is not None else self._rate.item())
        lr = getattr(rate, "__qualname__", f"{rate:.6g}" if isinstance(rate, float) else rate)
        shown = "".join(f", {name}={value!r}" for name, value in self._options.items())
        count = len(self.params)
        return f"Group({count} parameter{'s' if count != 1 else ''}, lr={lr}{shown})"

    def rate(self, count: Tensor) -> Tensor:
        """The learning rate of the next step, float32 []."""
        return self._rate if self._schedule is None else self._schedule(count).cast(dt.float32)

    def prepare(self, count: Tensor) -> None:
        """Before a step: the rate goes where the count is (a Program moves what it updates)."""
        if CURRENT.trace is None:
            self._rate.to_(count.device)
            return
        if self._schedule is None:
            self._rate.assign(self._rate)  # state: another number is written into its buffer


class States(Noted):
    """The state of each parameter by name; `state[parameter]` finds it too, as in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[str, Tensor]] = []

    def __missing__(self, key: Any) -> Any:
        for name, p in self.pairs:
            if p is key:
                return self[name]
        raise UsageError(f"optimiser state: no parameter {key!r:.60}; give one of the optimiser's")


class Optimizer(Watched):
    """The base of all optimisers. `params`: tensors, (name, tensor) pairs, or dicts with "params"
    and the options of that group. `count` (int32 []) is the number of steps taken. All parameters
    share it, also those without a gradient in some step."""

    SLOTS: tuple[str, ...] = ()  # the state tensors of each parameter

    def __init__(self, params: Iterable[Any], lr: float | Schedule, options: dict[str, Any]):
        self.count = Tensor(np.zeros((), np.int32), "opt.count")
        self.groups: tuple[Group, ...] = ()
        self.state: dict[str, dict[str, Tensor]] = States()
        self._defaults: dict[str, Any] = {"lr": lr, **options}
        for given in _grouped(params):
            self._add(given)
        if not self.state:
            raise UsageError(f"{type(self).__name__}: no parameters; give at least one tensor")
        self._join()

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Adds a group: its "params" and the options that differ. A compiled step follows. Raises
        UsageError for an unknown option, or a parameter that another group has."""
        for given in _grouped([dict(param_group)]):
            self._add(given)
        self._join()

    def _add(self, given: dict[str, Any]) -> None:
        known = {k: given.pop(k, v) for k, v in self._defaults.items()}
        rate = known.pop("lr")
        pairs = _named(given.pop("params"), len(self.state))
        if given:
            raise UsageError(
                f"{type(self).__name__}: no option {', '.join(map(str, given))}; known: "
                f"{', '.join(self._defaults)}"
            )
        met = {x for g in self.groups for name, p in g.params for x in (name, id(p))}
        for name, p in pairs:
            if name in met or id(p) in met:
                raise UsageError(f"{type(self).__name__}: parameter {name!r} is given twice")
            met |= {name, id(p)}
        group = Group(pairs, known, rate)
        self.groups += (group,)
        if isinstance(self.state, States):
            self.state.pairs += pairs
        for name, p in pairs:
            slots = ((s, _slot(s, name, p, self._shape(s, p))) for s in self._slots(group))
            self.state[name] = Noted(slots)

    def _join(self) -> None:
        for t in (self.count, *(g._rate for g in self.groups)):
            t.to_(self.parameters()[0].device)

    def __repr__(self) -> str:
        name = type(self).__name__
        if len(self.groups) == 1:
            return name + repr(self.groups[0]).removeprefix("Group")
        return "\n".join((f"{name}(", *(f"  {group!r}" for group in self.groups), ")"))

    def _slots(self, group: Group) -> tuple[str, ...]:
        return self.SLOTS

    def _shape(self, slot: str, p: Tensor) -> tuple[int, ...]:
        """The shape of a parameter's state tensor, which starts as zeros."""
        return p.shape

    # -- learning rate

    @property
    def lr(self) -> float:
        """The learning rate of the next step (of the first group), as a number. Setting it, to a
        number or a schedule, sets that of all groups."""
        return self.groups[0].rate(self.count.cpu()).item()

    @lr.setter
    def lr(self, value: float | Schedule) -> None:
        for group in self.groups:
            group.lr = value

    # -- one step

    def step(self, unless: Tensor | None = None) -> None:
        """Updates every parameter that has a gradient. `unless` (bool []): where it holds,
        parameters, state and count stay as they are (LossScaler skips a step with it)."""
        with no_grad():
            for group in self.groups:
                group.prepare(self.count)
                self._step(group, group.rate(self.count), _Writer(unless))
            _Writer(unless)(self.count, self.count + 1)

    def finite(self) -> dict[str, Tensor]:
        """By parameter, whether the step that these gradients give leaves it and its state finite
        (bool []). Changes nothing: `step(unless=...)` may be kept from writing anything else."""
        largest: dict[str, Tensor] = {}
        with no_grad():
            for group in self.groups:
                owner = {id(t): name for name, p in group.params for t in self._written(name, p)}

                def note(tensor: Tensor, new: Tensor, owner: dict[int, str] = owner) -> Tensor:
                    name, new = owner[id(tensor)], new.cast(tensor.dtype)
                    size = new.abs()
                    largest[name] = largest[name].maximum(size) if name in largest else size
                    return new

                group.prepare(self.count)
                self._step(group, group.rate(self.count), note)
            return {name: all_finite([size]) for name, size in largest.items()}

    def _written(self, name: str, p: Tensor) -> list[Tensor]:
        return [p, *self.state[name].values()]

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        raise NotImplementedError

    def _gradients(self, group: Group) -> Iterable[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        """Yields each parameter with a gradient (as float32 at least), its gradient and its state;
        "param" in the state is the parameter itself."""
        for name, p in group.params:
            if p.grad is not None:
                wide = dt.compute_dtype(p.dtype)
                grad: Any = p.grad.cast(wide)  # type: ignore[attr-defined]
                yield p.cast(wide), grad, {**self.state[name], "param": p}

    def _each(self, group: Group, update: Update, beside: Sequence[Tensor], write: Write) -> None:
        """Writes what `update(parameter, gradient, *beside, *state)` gives: the new parameter and
        state, element by element. `beside` are 0-d; of many small parameters each update is one
        node of a trace."""
        one = Pointwise(update) if len(group.params) >= MANY else update
        for p, g, state in self._gradients(group):
            slots = [state[slot] for slot in self._slots(group)]
            new, *others = (one if p.size <= SMALL else update)(p, g, *beside, *slots)
            for slot, other in zip(slots, others):
                write(slot, other)
            write(state["param"], new)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients; with set_to_none=False they become zeros in place (a compiled
        function that adds to gradients keeps them as state of its Program)."""
        with no_grad():
            for p in self.parameters():
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.assign(0)  # type: ignore[attr-defined]

    def parameters(self) -> list[Tensor]:
        """The parameters of all groups, in order."""
        return [p for group in self.groups for _, p in group.params]

    # -- place, saved state

    def to(self, device: Any) -> Optimizer:
        """Moves the state to a device, after the parameters were; returns self."""
        for t in (*self._tensors().values(), *(g._rate for g in self.groups)):
            t.to_(device)
        return self

    def _tensors(self) -> dict[str, Tensor]:
        found = {"count": self.count}
        for name, slots in self.state.items():
            found |= {f"{slot}.{name}": t for slot, t in slots.items()}
        return found | {
            f"lr.{i}": g._rate for i, g in enumerate(self.groups) if g._schedule is None
        }

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of everything that a later run needs to go on exactly: "count", "<slot>.<name>"
        per parameter, "lr.<group>" where it is a number. Options and schedules are the caller's."""
        return {name: np.array(t.numpy()) for name, t in self._tensors().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave. Raises ModelError naming what is missing or unknown,
        ShapeError naming what has another shape."""
        mine = self._tensors()
        missing, unknown = mine.keys() - state.keys(), state.keys() - mine.keys()
        if missing or unknown:
            raise ModelError(
                f"optimiser state: missing {_some(missing)}; unexpected {_some(unknown)}"
            )
        for name, t in mine.items():
            if np.shape(state[name]) != t.shape:
                raise ShapeError(
                    f"optimiser state: {name} is {list(np.shape(state[name]))}, expected "
                    f"{list(t.shape)}"
                )
        with no_grad():
            for name, t in mine.items():
                t.assign(_like(np.asarray(state[name]), t))


class _Writer:
    """Assigns new values, or the old ones again where a step is to be skipped."""

    def __init__(self, unless: Tensor | None):
        self.unless = unless

    def __call__(self, tensor: Tensor, new: Tensor) -> Tensor:
        """The tensor's value from here on."""
        new = new.cast(tensor.dtype)
        if self.unless is not None:
            new = self.unless.where(tensor, new)
        tensor.assign(new)
        return new


def _grouped(params: Iterable[Any]) -> list[dict[str, Any]]:
    if isinstance(params, Tensor | dict):
        raise UsageError("optimiser: give a list of tensors, of (name, tensor) or of groups")
    given = list(params)
    if given and all(isinstance(p, dict) for p in given):
        if any("params" not in p for p in given):
            raise UsageError('optimiser: each group is a dict with "params" and options')
        return [dict(p) for p in given]
    return [{"params": given}]


def _named(params: Iterable[Any], start: int) -> list[tuple[str, Tensor]]:
    """(name, tensor) pairs; a tensor without a name is called by its number."""
    out: list[tuple[str, Tensor]] = []
    for i, p in enumerate([params] if isinstance(params, Tensor) else params, start):
        name, t = p if isinstance(p, tuple) and len(p) == 2 else (None, p)
        if not isinstance(t, Tensor):
            raise UsageError(f"optimiser: {type(t).__name__} is not a tensor to optimise")
        if not t.dtype.is_float or t._tape is not None:
            raise GradientError(f"optimiser: cannot optimise {t._known()}: not a leaf of floats")
        out.append((str(name or t.name or i), t))
    return out


def _slot(slot: str, name: str, p: Tensor, shape: tuple[int, ...]) -> Tensor:
    out = zeros(shape, dt.compute_dtype(p.dtype), place(p))
    out.name = f"{slot}.{name}"
    return out


def _like(array: np.ndarray, t: Tensor) -> Tensor:
    """An array as a tensor of t's dtype where t is."""
    return Tensor(array.astype(t.dtype.numpy)).to(t.device)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return (", ".join(listed[:6]) or "nothing") + rest
