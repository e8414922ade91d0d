"""Modules made of modules, and of parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from weft.core.errors import UsageError
from weft.nn.module import Module, Parameter, own_parameters
from weft.tensor.core import Tensor
from weft.tensor.guards import has_own, members


def _fills(name: str, value: Any) -> bool:
    """True for an attribute that is a place of a list."""
    return isinstance(value, Module) or (value is None and name.isdigit())


def _numbered(inside: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, x) for name, x in inside.items() if _fills(name, x)]


class ModuleList(Module):
    """Modules by number; their names are "0", "1", ... None may stand in the place of one. Raises
    UsageError for anything else.

    >>> layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    >>> len(layers), [type(m).__name__ for m in layers]
    (2, ['ReLU', 'Tanh'])
    """

    def __init__(self, modules: Iterable[Module | None] | None = ()):
        self.extend(modules or ())

    def append(self, module: Module | None) -> Self:
        """Adds a module at the end."""
        self._want(module)
        number = _free_number(self)
        last = next((n for n, v in reversed(vars(self).items()) if _fills(n, v)), None)
        if last not in (None, str(number - 1)):  # after a name of one's own: their count
            number = len(self)
        setattr(self, str(number), module)
        return self

    def _own(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = members(self, _numbered)
        return found

    def _want(self, module: Any) -> None:
        """Raises UsageError for what cannot be here; Sequential calls each, so has no None."""
        if not isinstance(module, Module) and (module is not None or isinstance(self, Sequential)):
            raise UsageError(f"{type(self).__name__}: {type(module).__name__} is not a Module")

    def extend(self, modules: Iterable[Module | None]) -> Self:
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module | None) -> Self:
        """Adds a module before another one. Those after it have new names then."""
        modules = list(self)
        modules.insert(index, module)
        return self._refill(modules)

    def pop(self, index: int = -1) -> Module | None:
        """Takes a module out, and returns it."""
        module: Module | None = list(self)[index]
        del self[index]
        return module

    def _refill(self, modules: Iterable[Module | None]) -> Self:
        for name, _ in self._own():
            delattr(self, name)
        return self.extend(modules)

    def __len__(self) -> int:
        return len(self._own())

    def __iter__(self) -> Iterator[Any]:
        return (module for _, module in self._own())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return list(self)[operator.index(index)]

    def __setitem__(self, index: int, module: Module | None) -> None:
        self._want(module)
        setattr(self, self._own()[operator.index(index)][0], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._refill(modules)

    def __add__(self, other: Iterable[Module | None]) -> Self:
        made: Self = self[:]
        return made.extend(other)

    __iadd__ = extend


def _free_number(owner: Module) -> int:
    """The number after the last attribute that is called by one. The search starts from the number
    of attributes, so appending takes as long for the last as for the first."""
    number = len(vars(owner))
    while number and str(number - 1) not in vars(owner):
        number -= 1
    return number


def _named(owner: Module, name: Any, kinds: Any) -> Any:
    """The attribute of this name that holds one of `kinds`; None if there is none."""
    found = getattr(owner, name) if isinstance(name, str) and has_own(owner, name) else None
    return found if isinstance(found, kinds) else None


class Sequential(ModuleList):
    """Modules applied one after the other. Raises UsageError for what is not a Module.

    >>> nn.Sequential(nn.Flatten(), nn.ReLU())(weft.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, *modules: Module | Mapping[str, Module]):
        named = modules[0] if len(modules) == 1 else None
        if isinstance(named, Mapping):  # modules with names of one's own
            _name(self, named)
        else:
            super().__init__(modules)  # type: ignore[arg-type]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self.named_children())[index]))
        return super().__getitem__(index)

    def forward(self, x: Tensor) -> Any:
        for module in self._steps():
            x = module(x)
        return x

    def _steps(self) -> Iterator[Module]:
        """Yields the modules, and in place of each nested Sequential its own modules, so that calls
        do not nest."""
        inside: list[tuple[Module, Iterator[Module]]] = [(self, self.children())]
        around = {id(self)}
        while inside:
            owner, left = inside[-1]
            module = next(left, None)
            if module is None:
                inside.pop()
                around.discard(id(owner))
            elif type(module) is not Sequential or module._hooks or has_own(module, "forward"):
                yield module
            elif id(module) in around:
                raise UsageError("Sequential: one of its modules holds itself")
            else:
                inside.append((module, module.children()))
                around.add(id(module))


def _name(owner: Module, modules: Mapping[str, Module]) -> None:
    """Makes modules attributes by names. Raises UsageError for names that cannot be."""
    for name, module in modules.items():
        if not isinstance(module, Module):
            raise UsageError(f"{type(owner).__name__}: {type(module).__name__} is not a Module")
        if not name or "." in name or hasattr(type(owner), name):
            raise UsageError(
                f"{type(owner).__name__}: a module cannot be called {name!r}; use another name"
            )
        setattr(owner, name, module)


class ModuleDict(Module):
    """Modules by name. Raises UsageError for a name that a module cannot have.

    >>> net = nn.ModuleDict({"act": nn.ReLU()})
    >>> net["act"](weft.tensor([-1.0])).tolist()
    [0.0]
    """

    def __init__(self, modules: Mapping[str, Module] | None = None):
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Takes modules by name; those of known names replace what was there."""
        _name(self, modules)

    def __setitem__(self, name: str, module: Module) -> None:
        _name(self, {name: module})

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def pop(self, name: str) -> Module:
        """Takes a module out, and returns it."""
        module = self[name]
        delattr(self, name)
        return module

    def clear(self) -> None:
        """Takes out all modules."""
        for name in list(self.keys()):
            delattr(self, name)

    def __getitem__(self, name: str) -> Module:
        if (found := _named(self, name, Module)) is None:
            raise KeyError(name)
        module: Module = found
        return module

    def __contains__(self, name: object) -> bool:
        return _named(self, name, Module) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """The names, in order."""
        return (n for n, _ in self.named_children())

    def values(self) -> Iterator[Module]:
        """The modules, in order."""
        return self.children()

    def items(self) -> Iterator[tuple[str, Module]]:
        """Names and modules, in order."""
        return self.named_children()


class _Parameters(Module):
    """The base of the containers of parameters. A tensor or an array becomes a parameter; lists of
    parameters nest."""

    def __len__(self) -> int:
        return len(self._own())

    def _own(self) -> dict[str, Any]:
        return dict(members(self, _held))

    def _keep(self, name: str, value: Any) -> None:
        kept = isinstance(value, Parameter | Module)
        setattr(self, name, value if kept else Parameter(value))

    def extra_repr(self) -> str:
        own = members(self, own_parameters)
        return ", ".join(f"{n}: {p.dtype.name}{list(p.shape)}" for n, p in own)


def _held(inside: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, x) for name, x in inside.items() if isinstance(x, Parameter | Module)]


class ParameterList(_Parameters):
    """Parameters by number; their names are "0", "1", ...

    >>> weights = nn.ParameterList([weft.ones(2), weft.zeros((3, 2))])
    >>> len(weights), weights[1].shape
    (2, (3, 2))
    """

    def __init__(self, values: Iterable[Any] = ()):
        self.extend(values)

    def append(self, value: Any) -> ParameterList:
        """Adds a parameter at the end."""
        self._keep(str(_free_number(self)), value)
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Adds parameters at the end."""
        for value in list(values):
            self.append(value)
        return self

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._own().values())

    def __getitem__(self, index: int) -> Parameter:
        found = _named(self, str(index), (Parameter, Module))
        return list(self)[index] if found is None else found

    def __setitem__(self, index: int, value: Any) -> None:
        self._keep(list(self._own())[index], value)


class ParameterDict(_Parameters):
    """Parameters by name. Raises UsageError for a name that a parameter cannot have.

    >>> scales = nn.ParameterDict({"left": weft.ones(2)})
    >>> scales["left"].tolist()
    [1.0, 1.0]
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None):
        for name, value in (parameters or {}).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if not name or "." in name or hasattr(type(self), name):
            raise UsageError(
                f"ParameterDict: a parameter cannot be called {name!r}; use another name"
            )
        self._keep(name, value)

    def __getitem__(self, name: str) -> Parameter:
        if (found := _named(self, name, (Parameter, Module))) is None:
            raise KeyError(name)
        parameter: Parameter = found
        return parameter

    def __contains__(self, name: object) -> bool:
        return _named(self, name, (Parameter, Module)) is not None

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._own())

    def values(self) -> Iterator[Parameter]:
        """The parameters, in order."""
        return iter(self._own().values())

    def items(self) -> Iterator[tuple[str, Parameter]]:
        """Names and parameters, in order."""
        return iter(self._own().items())
