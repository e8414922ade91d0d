"""The base of Modules made from graphs of other frameworks: tensors by name, and ways to run.

Such a module starts in evaluation mode, because files hold models for evaluation. Called on its own
it then runs compiled with constant weights: results that depend on weights alone are computed once.
In training its operations run one by one and are recorded; a backward pass from an evaluating
module's result runs them that way then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from weft.core.errors import FileFormatError, UsageError
from weft.core.packed import Form
from weft.core.trees import flatten, unflatten
from weft.importers.ports import Port, label
from weft.nn.module import Module, Parameter
from weft.ops.tape import recording
from weft.program.device import Device
from weft.tensor.base import CURRENT, place
from weft.tensor.compiled import Compiled
from weft.tensor.core import Tensor
from weft.tensor.recomputing import recomputed

DEEPEST = 32  # modules above a tensor


@dataclass(frozen=True)
class LinearWeight:
    """A weight that linear layers alone read: its value in the graph, its dotted name in the
    module, and whether it is stored [K, N], as a right operand, and not [N, K]."""

    value: str
    dotted: str
    turned: bool


class Holder(Module):
    """A module of the foreign model: its parameters, buffers and the modules below."""

    _training = False


class CompiledFunctions:
    """The functions that a module has compiled so far; a copy of the module has none."""

    def __init__(self) -> None:
        self.compiled: dict[Any, Compiled] = {}
        self.whole = ""  # the reason why its operations run one by one, if they do

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)()


class Foreign(Module):
    """A foreign graph that runs, compiles, trains and saves as any Module.

    It comes evaluating: called by itself it then runs compiled for the device that it is on, its
    weights frozen; `backward` from its results computes them again, recorded. After `train()`,
    given tensors that require gradients, and inside `weft.compile`, its operations are recorded
    at once."""

    _training = False

    def __init__(self, name: str, inputs: Sequence[Port]):
        self._name, self._inputs, self._kept = name, tuple(inputs), CompiledFunctions()

    @property
    def evaluates(self) -> bool:
        """True if its weights count as constants when it is compiled on its own."""
        return not self.training

    def records(self, inputs: Iterable[Any]) -> bool:
        """True if a call with these inputs is recorded, or part of a larger trace."""
        if CURRENT.trace is not None:
            return True
        if not recording():
            return False
        taped = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        return taped or self.training

    def evaluated(self, made: Any, again: Callable[[], Any]) -> Any:
        """Results of a call that was not recorded; to go backward from them the call is made
        `again`, recorded."""
        wanted = [p for p in self.parameters() if p.requires_grad] if recording() else []
        if not wanted:
            return made
        leaves, tree = self._flat(made)
        known = recomputed(self._name, leaves, wanted, lambda: self._flat(again())[0])
        return unflatten(tree, known)

    def _flat(self, made: Any) -> Any:
        return flatten(made, lambda x: isinstance(x, Tensor), self._name)

    def compiled(self, fn: Callable[..., Any], key: Any = None) -> Compiled:
        """`fn`, compiled for the device that the module is on; kept by `key`."""
        device = self.place()
        found = self._kept.compiled.get((key, device))
        if found is None:
            found = Compiled(fn, "cpu" if device is None else device, frozen=True)
            found.__name__ = self._name
            self._kept.compiled[key, device] = found
        return found

    def want_open(self, sizes: Iterable[str]) -> None:
        """Raises UsageError for a name that no open size has."""
        names = {d for p in self._inputs for d in p.shape or () if isinstance(d, str)}
        wrong = sorted(set(sizes) - names)
        if wrong:
            have = f"it has {', '.join(sorted(names))}" if names else "all of its sizes are fixed"
            raise UsageError(f"{self._name} does not have the open size {wrong[0]!r:.80}; {have}")

    def place(self) -> Device | None:
        """The device that its first tensor is on (None: the host)."""
        first = next((t for m in (self.parameters(), self.buffers()) for t in m), None)
        return None if first is None else place(first)

    # -- tensors

    def tensor(self, dotted: str) -> Tensor:
        """The parameter or buffer of that dotted name."""
        found: Any = self
        for part in dotted.split("."):
            found = getattr(found, part)
        assert isinstance(found, Tensor)
        return found

    def hold(self, dotted: str, value: Tensor, persistent: bool = True) -> None:
        """Sets a tensor among the attributes of the modules that its name leads through. Raises
        FileFormatError where something else has the name."""
        *path, last = dotted.split(".")
        module: Module = self
        for part in path:
            below = vars(module).get(part)
            if below is None:
                _free(module, part, dotted)
                below = Holder()
                setattr(module, part, below)
            if not isinstance(below, Module):
                raise FileFormatError(
                    f"tensor {dotted!r:.80}: {part!r} is a tensor and a module as well"
                )
            module = below
        _free(module, last, dotted)
        if isinstance(value, Parameter):
            setattr(module, last, value)
        else:
            module.register_buffer(last, value, persistent)

    def safe_name(self, name: str) -> str:
        """A dotted name for a tensor that a file calls `name`: the same name if it is valid, else a
        similar one."""
        shown = label(name)
        parts = shown.split(".")
        if len(parts) <= DEEPEST and all(parts) and self._fits(parts):
            return shown
        plain = shown.replace(".", "_") or "tensor"
        while not self._fits([plain]):
            plain += "_"
        return plain

    def _fits(self, parts: Sequence[str]) -> bool:
        module: Any = self
        for part in parts[:-1]:
            below = vars(module).get(part)
            if below is None:
                return all(not hasattr(Holder, p) for p in parts) and not hasattr(module, part)
            if not isinstance(below, Holder):
                return False
            module = below
        return not hasattr(module, parts[-1])

    # -- linear weights, and packed ones in their place

    def linear_weights(self) -> list[LinearWeight]:
        """The weights that linear layers alone read, which may be packed."""
        raise NotImplementedError

    def reads_packed(self, forms: Mapping[str, tuple[LinearWeight, Form]]) -> None:
        """Makes the graph read these values from their parts, which are the module's already."""
        raise NotImplementedError

    def pack(self, weight: LinearWeight, form: Form, parts: Mapping[str, np.ndarray]) -> None:
        """Replaces a parameter by a Holder of the parts."""
        *path, last = weight.dotted.split(".")
        owner: Any = self
        for name in path:
            owner = getattr(owner, name)
        assert isinstance(owner, Module) and isinstance(getattr(owner, last), Parameter)
        held = Holder()
        for part in form.parts:
            held.register_buffer(part, Tensor(parts[part], f"{weight.dotted}.{part}"))
        setattr(owner, last, held)

    # -- what it is

    def facts(self, results: Any, ops: Mapping[str, int], writes: Sequence[str]) -> dict[str, Any]:
        """Inputs and results as text, parameters and buffers with their sizes, how many operations
        there are of each kind."""
        tensors = list(dict.fromkeys((*self.parameters(), *self.buffers())))
        return {
            "name": self._name,
            "inputs": [p.text() for p in self._inputs],
            "results": results,
            "parameters": sum(p.size for p in self.parameters()),
            "bytes": sum(t.size * t.dtype.itemsize for t in tensors),
            "writes": list(writes),
            "ops": dict(ops),
        }


def dequantized(form: Form, codes: Tensor, *others: Tensor) -> Tensor:
    """The matrix [N, K] that the parts of a packed weight encode; products read the parts
    directly."""
    return codes._call("dequantize", *others, **form._asdict())


def _free(module: Module, name: str, dotted: str) -> None:
    if not name or hasattr(module, name):
        raise FileFormatError(
            f"tensor {dotted!r:.80}: the name {name!r:.80} is taken; rename the module"
        )
