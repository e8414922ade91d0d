"""The tree that modules make. Nothing here recurses: modules nest to any depth."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.tensor.guards import attributes

if TYPE_CHECKING:
    from weft.nn.module import Module


def join(prefix: str, name: str) -> str:
    """A dotted name."""
    return f"{prefix}.{name}" if prefix else name


def walk(root: Module, prefix: str = "") -> Iterator[tuple[str, Module, bool]]:
    """Yields (name, module, True) before the modules below it, and (name, module, False) after
    them. A module at two places appears at both. Raises UsageError for a module that holds
    itself."""
    stack = [(prefix, root, True)]
    inside: set[int] = set()
    while stack:
        path, module, before = stack.pop()
        yield path, module, before
        if not before:
            inside.discard(id(module))
            continue
        if id(module) in inside:
            raise UsageError(f"module {path!r} ({type(module).__name__}) holds itself")
        inside.add(id(module))
        stack.append((path, module, False))
        below = [(join(path, name), child, True) for name, child in module.named_children()]
        stack.extend(reversed(below))


def copied(root: Module, memo: dict[int, Any], base: type[Module]) -> Any:
    """A deep copy: each module is made before the attributes of any are copied, so that those
    meet the modules below in `memo`. A class that copies in a way of its own (not as `base`) does
    so."""
    found = {id(m): m for _, m, before in walk(root) if before and id(m) not in memo}
    new = [m for m in found.values() if type(m).__deepcopy__ is base.__deepcopy__]
    for module in new:
        memo[id(module)] = object.__new__(type(module))
    for module in new:
        inside = vars(memo[id(module)])
        for name, value in vars(module).items():
            inside[name] = copy.deepcopy(value, memo)
    return memo[id(root)]


def options(module: Any, beside: tuple[str, ...] = ()) -> str:
    """The constructor's arguments that a module keeps under their names, except those in `beside`:
    first the required ones, then those that differ from their default."""
    inside, found = attributes(module), []
    for p in inspect.signature(type(module).__init__).parameters.values():
        value = inside.get(p.name, p.default)
        if p.default is True and value is None:  # the module was made without a bias
            value = False
        simple = isinstance(value, bool | int | float | str | tuple | list | None)
        if not simple or p.name in beside or p.name not in inside:
            continue
        if p.default is p.empty:
            found.append(repr(value))
        elif value != p.default:
            found.append(f"{p.name}={value!r}")
    return ", ".join(found)


def shown(root: Module, base: type[Module]) -> str:
    """One line per module, those below further in; of a class with a __repr__ of its own, that."""
    for _ in walk(root):
        pass  # walk raises for a module that holds itself
    lines: list[str] = []
    stack: list[tuple[int, str, Module | None]] = [(0, "", root)]
    while stack:
        depth, label, module = stack.pop()
        below = list(module.named_children()) if module is not None else []
        if module is None:
            text = label
        elif type(module).__repr__ is not base.__repr__ and module is not root:
            text = f"{label}{module!r}"
        else:
            extra = module.extra_repr()
            text = f"{label}{type(module).__name__}({extra if not below else ''}"
            if below:
                text += f"\n  {extra}" if extra else ""
                stack.append((depth, ")", None))
                stack.extend((depth + 1, f"({n}): ", m) for n, m in reversed(below))
            else:
                text += ")"
        lines.extend("  " * depth + line for line in text.split("\n"))
    return "\n".join(lines)
