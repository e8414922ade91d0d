"""torch.optim over weft.optim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from weft import optim
from weft.core.missing import nearest
from weft.host.boundary import guard_methods
from weft.optim import swa_utils as swa_utils
from weft.optim.optimizer import Group
from weft.tensor.autograd import enable_grad
from weft.torch.optim import lr_scheduler as lr_scheduler, states

_FASTER = ("foreach", "fused", "capturable", "differentiable")  # change no number


class _Options(MutableMapping[str, Any]):
    """A group of parameters as PyTorch shows it: a mapping of "params", "lr" and options."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            return [p for _, p in self._group.params]
        if name != "lr":
            return self._group[name]
        rate = self._group.lr
        return states.short(rate) if isinstance(rate, float) else rate

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "lr":
            self._group.lr = value
        else:
            for own in _of_ones_own([name], self._group._options):
                self._group._options[own] = value
            self._group[name] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"optimiser group: {name} cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(("params", "lr", *self._group._options))

    def __len__(self) -> int:
        return 2 + len(self._group._options)


def _of_ones_own(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The entries of a group that no optimiser reads, such as a name, or a factor for a schedule.
    Misspelt options are none of them."""
    known = list(known)
    return [n for n in names if n not in known and not nearest(str(n), known)]


class Optimizer(optim.Optimizer):
    """The base of all optimisers: see weft.optim."""

    @property
    def param_groups(self) -> list[_Options]:
        """The groups of parameters, with their options."""
        return [_Options(group) for group in self.groups]

    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, **options: Any
    ) -> Any:
        """Updates every parameter that has a gradient; `closure` computes them first."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        super().step(**options)
        return loss

    def _add(self, given: dict[str, Any]) -> None:
        known = ["params", *self._defaults]
        more = {name: given.pop(name) for name in _of_ones_own(given, known)}
        super()._add(given)
        self.groups[-1]._options.update(more)

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of a group that names none."""
        return dict(self._defaults)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the state, {number of a parameter: {"step", "exp_avg", ...}}, and of the
        groups' options, as in PyTorch. All parameters have a state once a step was done."""
        return states.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, here or in PyTorch, or weft.optim's. Raises ModelError or
        ShapeError for a state that does not fit."""
        if "param_groups" in state_dict:
            states.load_state_dict(self, state_dict)
        else:
            super().load_state_dict(state_dict)


def _made(kind: Any) -> Any:
    def __init__(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        for name in _FASTER:
            kwargs.pop(name, None)
        kind.__init__(self, params, *args, **kwargs)

    names = {"__init__": __init__, "__doc__": kind.__doc__, "__module__": __name__}
    if kind is optim.LBFGS:  # which steps by itself, and whose state is no array per parameter
        names |= {name: vars(kind)[name] for name in ("step", "state_dict", "load_state_dict")}
    made: Any = type(kind.__name__, (Optimizer, kind), names)
    guard_methods(made, but=("step",))
    return made


for _name in ("ASGD", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam",
              "RAdam", "RMSprop", "Rprop", "Muon", "LBFGS"):  # fmt: skip
    globals()[_name] = _made(getattr(optim, _name))


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    kinds = [n for n, v in globals().items() if isinstance(v, type) and n[0] != "_"]
    own = [
        n
        for n in kinds
        if getattr(globals()[n], "__module__", "").startswith("weft.") and n != "Group"
    ]
    return sorted([*own, "lr_scheduler", "swa_utils"])
