"""`dataclass` as the standard library has it, made several times faster.

The standard library compiles six functions for each frozen class. weft has some hundred of them,
and a process makes them all before its first result. Here one is compiled for each class,
`__init__`; the others are shared code that reads the fields' names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(given: type | None = None, /, *, frozen=False, **options: Any) -> Any:
        """Makes a class a dataclass, as `dataclasses.dataclass` does with these options."""

        def made(cls: type) -> type:
            quick = frozen and options.keys() <= {"eq", "slots"}
            if not quick:
                return dataclasses.dataclass(cls, frozen=frozen, **options)
            return _frozen(cls, **options)

        return made if given is None else made(given)


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()  # the default of an argument that a factory makes
_set = object.__setattr__


def _frozen(cls: type, eq: bool = True, slots: bool = False) -> type:
    own = {k for k, v in vars(cls).items() if k != "__hash__" or v is not None}
    cls.__doc__ = cls.__doc__ or cls.__name__  # else it is made of the signature, slowly
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(made)
    given: dict[str, Any] = {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
    given |= {"__init__": _init(made, fields), "__repr__": _repr}
    if slots:
        given |= {"__getstate__": _get_state, "__setstate__": _set_state}
    if eq:
        values = values_of([f.name for f in fields if f.compare])

        def __eq__(self: Any, other: object) -> Any:
            return values(self) == values(other) if other.__class__ is self.__class__ else (
                NotImplemented
            )  # fmt: skip

        given |= {"__eq__": __eq__, "__hash__": lambda self: hash(values(self))}
    for name, function in given.items():
        if name not in own:
            setattr(made, name, function)
    return made


def values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function of an object to the tuple of its attributes."""
    if len(names) != 1:
        return attrgetter(*names) if names else lambda self: ()
    only = attrgetter(names[0])
    return lambda self: (only(self),)


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": _set, "_MADE": _MADE}
    arguments: dict[bool, list[str]] = {False: [], True: []}  # by kw_only
    lines = []
    for i, f in enumerate(fields):
        value = f.name
        if f.default_factory is not dataclasses.MISSING:
            known[f"_f{i}"], known[f"_d{i}"] = f.default_factory, _MADE
            value = f"_f{i}() if {f.name} is _MADE else {f.name}" if f.init else f"_f{i}()"
        elif f.default is not dataclasses.MISSING:
            known[f"_d{i}"] = f.default
            value = f.name if f.init else f"_d{i}"
        elif not f.init:
            continue
        if f.init:
            default = f"=_d{i}" if f"_d{i}" in known else ""
            arguments[bool(f.kw_only)].append(f.name + default)
        slot = getattr(cls, f.name, None)
        if isinstance(slot, MemberDescriptorType):  # twice as fast as to set it by its name
            known[f"_s{i}"] = slot.__set__
            lines.append(f" _s{i}(self,{value})")
        else:
            lines.append(f" _set(self,{f.name!r},{value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    listed = ["self", *arguments[False], *(["*", *arguments[True]] if arguments[True] else [])]
    text = f"def __init__({','.join(listed)}):\n" + ("\n".join(lines) or " pass")
    exec(text, known)  # the fields' names, which are identifiers, and nothing else
    made: Callable[..., None] = known["__init__"]
    made.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state):
        _set(self, f.name, value)
