"""Modules as functions of their parameters: functional_call, stack_module_state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import CallError, ModelError, UsageError
from weft.nn.module import Module, Parameter
from weft.tensor.base import TensorBase
from weft.tensor.core import Tensor
from weft.tensor.current import CURRENT
from weft.tensor.guards import attributes
from weft.tensor.shapes import stack

State = Mapping[str, Tensor]


def functional_call(
    module: Module, state: State | Sequence[State], args: Any = (), kwargs: Any = None
) -> Any:
    """Returns module(*args, **kwargs) with tensors of `state` in place of the parameters and
    buffers with the same dotted names; the others stay. `state` is a dict or several. `args` that
    is not a tuple is the only argument. The module is as before afterwards, so an assignment to a
    buffer goes to the tensor in `state`. Raises ModelError for a name that the module has not.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> weft.func.functional_call(layer, {"weight": weft.tensor([[3.0]])}, weft.ones(1)).tolist()
    [3.0]
    """
    given: dict[str, Tensor] = {}
    parts = (state,) if isinstance(state, Mapping) else state
    fits = isinstance(parts, Sequence) and all(isinstance(part, Mapping) for part in parts)
    if not isinstance(module, Module) or not fits:
        kinds = f"{type(module).__name__} and {type(state).__name__}"
        raise CallError(f"functional_call takes a module and a dict of tensors, not {kinds}")
    for part in parts:
        given.update(part)
    places = dict(_places(module))
    if unknown := [n for n in given if n not in places]:
        raise ModelError(
            f"functional_call: {type(module).__name__} has no {', '.join(sorted(unknown)[:8])}"
        )
    swapped: list[tuple[dict[str, Any], str, Any]] = []
    shared: dict[int, Tensor] = {id(places[n][0][places[n][1]]): t for n, t in given.items()}
    try:
        for (
            inside,
            name,
            owner,
        ) in places.values():  # a parameter under two names is replaced at both
            if (new := shared.get(id(inside[name]))) is not None:
                if CURRENT.trace is not None:  # the trace depends on what is there outside the call
                    CURRENT.trace.facts.read(owner, name)
                before = inside[name]
                swapped.append((inside, name, before))
                inside[name] = _as_parameter(new) if isinstance(before, Parameter) else new
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for inside, name, before in swapped:
            inside[name] = before


def _as_parameter(t: Tensor) -> Parameter:
    """A parameter with this tensor's content and history, since modules look for parameters."""
    made = object.__new__(Parameter)
    TensorBase.__init__(made, t.value, t.name)
    return made


def _places(module: Module) -> list[tuple[str, tuple[dict[str, Any], str, Module]]]:
    """Each dotted name of a parameter or buffer with the attributes that hold it."""
    found = []
    for path, part in module._tree(""):
        inside = attributes(part)
        kept = [n for n, v in inside.items() if isinstance(v, Tensor)]
        found += [(f"{path}.{n}" if path else n, (inside, n, part)) for n in kept]
    return found


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the parameters and the buffers of modules of one kind, each stacked along a new axis
    0: an ensemble for vmap and functional_call. Raises UsageError for none, ModelError for modules
    with other names.

    >>> params, _ = weft.func.stack_module_state([nn.Linear(3, 2) for _ in range(4)])
    >>> params["weight"].shape
    (4, 2, 3)
    """
    if not models:
        raise UsageError("stack_module_state: no models; give at least one")

    def joined(states: list[dict[str, Tensor]], leaf: bool) -> dict[str, Tensor]:
        if any(s.keys() != states[0].keys() for s in states):
            raise ModelError("stack_module_state: the models have tensors of different names")
        made = {n: stack([s[n].detach() for s in states]) for n in states[0]}
        return {n: t.requires_grad_() for n, t in made.items()} if leaf else made

    parameters = joined([dict(m.named_parameters()) for m in models], True)
    return parameters, joined([dict(m.named_buffers()) for m in models], False)
