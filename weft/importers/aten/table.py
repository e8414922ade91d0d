"""The table: the name of an ATen overload -> a function with ATen's parameter names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.tensor.core import Tensor

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Entry:
    """The implementation of an overload. `results` is the number of its results (0: all): the
    others, which only PyTorch's own derivatives read, are None. `refuses` gives the reason why
    arguments are not supported ("": they are)."""

    run: Callable[..., Any]
    results: int = 0
    refuses: Callable[..., str] | None = None


TABLE: dict[str, Entry] = {}


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
            TABLE[full] = Entry(fn, results, refuses)
        return fn

    return add


def out_of_place(target: str) -> str:
    """The overload that computes what an in-place one writes: "aten.add_.Tensor" ->
    "aten.add.Tensor"; "" for a target that is not in place."""
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    if namespace != "aten" or not name.endswith("_") or name.startswith("__"):
        return ""
    return f"aten.{name[:-1]}.{overload}"


def entry(target: str) -> Entry | None:
    """The entry of an overload; of an in-place one, that of what it computes, cast and expanded to
    what it is written to."""
    found = TABLE.get(target)
    if found is not None or not (plain := out_of_place(target)):
        return found
    base = TABLE.get(plain)
    return None if base is None else Entry(_in_place(base.run), base.results, base.refuses)


@functools.cache
def _in_place(run: Callable[..., Any]) -> Callable[..., Any]:
    def written(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = run(self, *args, **kwargs).cast(self.dtype)
        return made if made.shape == self.shape else made.expand(self.shape)

    return written
