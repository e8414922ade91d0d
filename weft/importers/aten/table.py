"""The table: the name of an ATen overload -> a function with ATen's parameter names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.tensor.core import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_Parameter = inspect.Parameter


@dataclass(frozen=True, slots=True)
class AtenRule:
    """The implementation of an overload. `results` is the number of its results (0: all): the
    others, which only PyTorch's own derivatives read, are None. `refuses` gives the reason why
    arguments are not supported ("": they are)."""

    run: Callable[..., Any]
    results: int = 0
    refuses: Callable[..., str] | None = None


TABLE: dict[str, AtenRule] = {}


def aten(
    *names: str, results: int = 0, refuses: Callable[..., str] | None = None
) -> Callable[[F], F]:
    """Adds a function under "aten." + each name; one without an overload is the default one."""
    full = (f"aten.{n}" if "." in n else f"aten.{n}.default" for n in names)
    return named(*full, results=results, refuses=refuses)


def named(
    *names: str, results: int = 0, refuses: Callable[..., str] | None = None
) -> Callable[[F], F]:
    """Adds a function under whole names, for operators of other namespaces."""

    def add(fn: F) -> F:
        for full in names:
            assert full not in TABLE, full
            TABLE[full] = AtenRule(fn, results, refuses)
        return fn

    return add


# -- rows: overloads that differ from one of weft's functions in names alone ---------------------

HOW: dict[str, Callable[[Any], Any]] = {
    # no axes named: all of them
    "axes": lambda dim: None if dim is None or (not isinstance(dim, int) and not len(dim)) else dim,
    "count": len,
    "given": lambda window: window or None,
    "index": lambda at: at if at >= 0 else None,
    "reduction": ("none", "mean", "sum").__getitem__,
}


def rows(home: str, table: Mapping[str, tuple[Callable[..., Any], str]]) -> None:
    """Adds overloads as rows: names, and a function of weft's with the names of ATen's parameters.
    A parameter goes to the function's of that name, the others in order to the function's others;
    "name>own" names one, "-name" is dropped, and "name:how" passes through HOW. A parameter that a
    call leaves out has the function's default, which must be ATen's."""
    for names, (function, parameters) in table.items():
        aten(*names.split())(renamed(home, function, parameters.split()))


def renamed(home: str, function: Callable[..., Any], parameters: list[str]) -> Callable[..., Any]:
    """The function that takes these parameters for `function`, as `rows` has them."""
    own = inspect.signature(function).parameters
    parts = [text.partition(":")[::2] for text in parameters]
    told = {name.partition(">")[0]: name.partition(">")[2] for name, _ in parts}
    left = iter([n for n in own if n not in told and n not in told.values()])
    places: dict[str, tuple[str, Callable[[Any], Any] | None]] = {}
    needed = 0  # the number of parameters up to the last that has no default
    for at, (name, how) in enumerate(zip(told, (how for _, how in parts)), 1):
        target = told[name] or ("" if name[0] == "-" else name if name in own else next(left))
        needed = at if target and own[target].default is _Parameter.empty else needed
        places[name.removeprefix("-")] = target, HOW[how] if how else None
    shown = [
        _Parameter(name, _Parameter.POSITIONAL_OR_KEYWORD,
                   default=_Parameter.empty if at < needed else _shown(own, places[name][0]))
        for at, name in enumerate(places)
    ]  # fmt: skip
    lead = [n for n, p in own.items() if p.kind is _Parameter.POSITIONAL_ONLY]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(places, args)) | kwargs
        named = {
            target: given[name] if how is None else how(given[name])
            for name, (target, how) in places.items()
            if target and name in given
        }
        first = [named.pop(n) for n in lead if n in named]
        return function(*first, **named)

    run.__module__ = home
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return run


def _shown(own: Mapping[str, inspect.Parameter], target: str) -> Any:
    """The default of a parameter that goes to `target`; None for one that is dropped."""
    found = own[target].default if target else None
    return ... if found is _Parameter.empty else found


def out_of_place(target: str) -> str:
    """The overload that computes what an in-place one writes: "aten.add_.Tensor" ->
    "aten.add.Tensor"; "" for a target that is not in place."""
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    if namespace != "aten" or not name.endswith("_") or name.startswith("__"):
        return ""
    return f"aten.{name[:-1]}.{overload}"


def entry(target: str) -> AtenRule | None:
    """The entry of an overload; of an in-place one, that of what it computes, cast and expanded to
    what it is written to."""
    found = TABLE.get(target)
    if found is not None or not (plain := out_of_place(target)):
        return found
    base = TABLE.get(plain)
    return None if base is None else AtenRule(_in_place(base.run), base.results, base.refuses)


@functools.cache
def _in_place(run: Callable[..., Any]) -> Callable[..., Any]:
    def written(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = run(self, *args, **kwargs).cast(self.dtype)
        return made if made.shape == self.shape else made.expand(self.shape)

    return written
