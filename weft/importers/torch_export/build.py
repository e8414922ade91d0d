"""From a Program to an Imported module: inlined, functional, every target looked up."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.core.errors import FileFormatError, ModelError
from weft.core.notices import say_unread
from weft.importers import aten
from weft.importers.imported import ForeignGraph, Imported, ImportedStep
from weft.importers.ports import Ref, as_int32, label
from weft.importers.steps import refs
from weft.importers.torch_export.graph import CallNode, CallSequence, ExportedProgram
from weft.importers.torch_export.memory import functional, writes_in_place
from weft.nn.module import Parameter
from weft.tensor.core import Tensor

GRAD, AUTOCAST = "higher_order.wrap_with_set_grad_enabled", "higher_order.wrap_with_autocast"
COND = "higher_order.cond"


class UnsupportedOperators(ModelError):
    """A program with operators that weft does not have: all of them, by name and place."""


def built(program: ExportedProgram, decomposed: bool = False) -> Imported:
    """The module, of a program that PyTorch's decompositions have been through or not. Raises
    Unsupported, and FileFormatError for a graph that does not hold."""
    _check_held(program)
    calls = list(inlined(program.body.calls))
    results, writes = list(program.results), list(program.writes)
    if writes_in_place(calls):
        calls, results, more = _functional(program, calls, results)
        writes += more
    _refuse(calls, decomposed)
    steps = tuple(_step(call) for call in calls)
    ports = tuple(program.inputs)
    plan = ForeignGraph(
        ports,
        steps,
        _nested(program.out_tree, iter(results)),
        tuple((h.value, h.dotted) for h in program.held),
        tuple((dotted, ref) for dotted, ref in writes if isinstance(ref, Ref)),
        program.bounds,
        _arguments(program),
    )
    say_unread(label(program.name), _unread(program, steps, results, writes))
    return Imported(program.name, plan, _tensors(program), _persistent(program))


def _check_held(program: ExportedProgram) -> None:
    """Raises FileFormatError unless writes go to buffers there are."""
    known = {h.dotted for h in program.held if not h.parameter}
    for dotted, value in program.writes:
        if dotted not in known or not isinstance(value, Ref):
            raise FileFormatError(f"{program.name}: a write to {dotted!r}, which is not a buffer")


def _unread(
    program: ExportedProgram,
    steps: Sequence[ImportedStep],
    results: list[Any],
    writes: list[tuple[str, Any]],
) -> list[str]:
    """Tensors that no call, result or write reads or replaces, under any of their names. Numbers
    of batches are left out: none but batch norms in training read them."""
    read = set(refs([[(s.args, s.kwargs) for s in steps], results, [v for _, v in writes]]))
    first = program.ties
    used = {d for d, _ in writes} | {h.dotted for h in program.held if h.value in read}
    seen = {first.get(dotted, dotted) for dotted in used}
    return [
        label(dotted) for dotted in (*program.arrays, *program.beside)
        if first.get(dotted, dotted) not in seen and not dotted.endswith("num_batches_tracked")
    ]  # fmt: skip


def _persistent(program: ExportedProgram) -> list[str]:
    return [h.dotted for h in program.held if h.persistent]


def _tensors(program: ExportedProgram) -> dict[str, Tensor]:
    """Parameters and buffers by dotted name; those of one storage are one tensor."""
    parameters = {h.dotted for h in program.held if h.parameter}
    made: dict[str, Tensor] = {}
    for dotted, array in program.arrays.items():
        first = program.ties.get(dotted, dotted)
        if first in made:
            made[dotted] = made[first]
            continue
        value = as_int32(Tensor(array), f"tensor {dotted!r}")
        made[dotted] = (
            Parameter(value, dotted not in program.frozen, dotted)
            if dotted in parameters and value.dtype.is_float
            else Tensor(value.numpy().copy(), dotted)
        )  # fmt: skip
    missing = [h.dotted for h in program.held if h.dotted not in made]
    if missing:
        raise FileFormatError(f"{program.name}: no values for {', '.join(missing[:5])}")
    return made


def _functional(
    program: ExportedProgram, calls: list[CallNode], results: list[Any]
) -> tuple[list[CallNode], list[Any], list[tuple[str, Any]]]:
    inputs = [h.value for h in program.held] + [p.name for p in program.inputs]
    calls, results, written = functional(calls, results, inputs)
    dotted = {h.value: h for h in program.held}
    mine = [p.name for p in program.inputs if p.name in written]
    trained = [dotted[n].dotted for n in written if n in dotted and dotted[n].parameter]
    if mine or trained:
        raise UnsupportedOperators(
            f"{program.name} writes to its {'input' if mine else 'parameter'} "
            f"{', '.join(mine or trained)}; return the new value instead, or keep it in a buffer"
        )
    return calls, results, [(dotted[n].dotted, ref) for n, ref in written.items()]


def inlined(calls: list[CallNode]) -> Iterator[CallNode]:
    """Calls with the bodies of regions without gradients, of an autocast that is off, and of both
    branches of a condition in their place; a region's values begin with its own name."""
    for call in calls:
        if call.target == COND and sum(isinstance(a, CallSequence) for a in call.args) == 2:
            yield from _chosen(call)
            continue
        body = next((a for a in call.args if isinstance(a, CallSequence)), None)
        off = call.target == AUTOCAST and call.args[2:3] == [False]
        if body is None or not (call.target == GRAD or off):
            yield call
            continue
        outs = (call.out,) if isinstance(call.out, str) else call.out
        if len(outs) != len(body.outputs):
            raise FileFormatError(f"{call.target}: {len(body.outputs)} results for {len(outs)}")
        inner, values = _entered(body, call.args[call.args.index(body) + 1 :], outs, "")
        yield from inner
        keeps = call.target == AUTOCAST or call.args[0] is True
        same = "aten.alias.default" if keeps else "aten.detach.default"
        for out, value in zip(outs, values):
            yield CallNode(same, [value], {}, out, call.where)


def _entered(
    body: CallSequence, given: Sequence[Any], outs: Sequence[str], mark: str
) -> tuple[list[CallNode], list[Any]]:
    """A body's calls and results where its inputs are `given`."""
    prefix = f"{outs[0] if outs else 'region'}/{mark}"
    known = dict(zip(body.inputs, given))
    inner = list(inlined([_renamed(c, known, prefix) for c in body.calls]))
    return inner, [_mapped(value, known, prefix) for value in body.outputs]


def _chosen(call: CallNode) -> Iterator[CallNode]:
    """Yields both branches of torch.cond, which are free of effects, and a choice between their
    results."""
    test, yes, no, given = call.args[0], *call.args[1:3], call.args[3] if call.args[3:] else []
    outs = (call.out,) if isinstance(call.out, str) else call.out
    if not len(outs) == len(yes.outputs) == len(no.outputs):
        raise FileFormatError(f"{call.target}: branches of other results than {len(outs)}")
    (one, first), (other, second) = (
        _entered(body, given, outs, mark) for body, mark in ((yes, "true/"), (no, "false/"))
    )
    yield from (*one, *other)
    for out, a, b in zip(outs, first, second):
        yield CallNode("weft.chosen", [test, a, b], {}, out, call.where)


def _renamed(call: CallNode, given: Mapping[str, Any], prefix: str) -> CallNode:
    out = call.out
    new = prefix + out if isinstance(out, str) else tuple(prefix + o if o else "" for o in out)
    new = "" if out == "" else new
    args, kwargs = _mapped(call.args, given, prefix), _mapped(call.kwargs, given, prefix)
    return CallNode(call.target, args, kwargs, new, call.where)


def _mapped(value: Any, given: Mapping[str, Any], prefix: str) -> Any:
    """Arguments with a region's own names replaced by those outside."""
    if isinstance(value, Ref):
        return given.get(value.name, Ref(prefix + value.name))
    if isinstance(value, list):
        return [_mapped(x, given, prefix) for x in value]
    if isinstance(value, dict):
        return {k: _mapped(x, given, prefix) for k, x in value.items()}
    return value


# -- targets


def _refuse(calls: list[CallNode], decomposed: bool) -> None:
    """Raises Unsupported naming all calls without a function, each with its first place."""
    read = set(refs([(c.args, c.kwargs) for c in calls]))
    found: dict[str, list[str]] = {}
    for call in calls:
        why = _unsupported(call, read)
        if why:
            found.setdefault(why, []).append(call.where)
    if not found:
        return
    shown = [
        f"{what} ({len(places)}x{', first at ' + places[0] if places[0] else ''})"
        for what, places in found.items()
    ]
    raise UnsupportedOperators(
        f"{len(found)} operators that weft does not have: {'; '.join(shown)}.\nWrite the model "
        f"without them{'' if decomposed else ', or give from_torch program.run_decompositions()'}"
    )


def _unsupported(call: CallNode, read: set[str]) -> str:
    """The part of a call that is not supported: its target, an option, a result; "" if all is."""
    entry = aten.entry(call.target)
    if entry is None or any(isinstance(a, CallSequence) for a in call.args):
        return call.target or "an operator without a name"
    more = () if isinstance(call.out, str) or not entry.results else call.out[entry.results :]
    if any(name in read for name in more):
        return f"{call.target} with all its results"
    if entry.refuses is not None and (why := entry.refuses(*call.args, **call.kwargs)):
        return f"{call.target} ({why})"
    return ""


def _step(call: CallNode) -> ImportedStep:
    entry = aten.entry(call.target)
    assert entry is not None
    try:
        inspect.signature(entry.run).bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise FileFormatError(f"{call.target} at {call.where}: {error}") from None
    return ImportedStep(call.target, entry.run, tuple(call.args), call.kwargs, call.out, call.where)


# -- how inputs and results nest


def _nested(tree: Mapping[str, Any], leaves: Iterator[Any]) -> Any:
    """Leaves in the containers of PyTorch's tree: tuples, lists, dicts; a dict for classes whose
    parts have names (such as the outputs of transformers), else a tuple."""
    if tree["type"] is None:
        leaf = next(leaves, leaves)
        if leaf is leaves:
            raise FileFormatError("the tree of arguments or results has more leaves than there are")
        return leaf
    parts = [_nested(child, leaves) for child in tree["children_spec"]]
    if tree["type"] == "builtins.list":
        return parts
    keys = tree["context"]
    if isinstance(keys, list) and len(keys) == len(parts) and parts:
        return dict(zip(keys, parts))
    return {} if tree["type"] == "builtins.dict" else tuple(parts)


def _arguments(program: ExportedProgram) -> dict[str, Any]:
    """The arguments by name in the order in which they are passed; each a Ref or nested Refs."""
    leaves = iter([Ref(p.name) for p in program.inputs])
    parts = program.in_tree["children_spec"]
    if len(parts) != 2:
        raise FileFormatError(f"arguments nest in {len(parts)} parts, expected args and kwargs")
    args, kwargs = parts
    positional = [_nested(child, leaves) for child in args["children_spec"]]
    named = [_nested(child, leaves) for child in kwargs["children_spec"]]
    found: dict[str, Any] = {}
    for i, nest in enumerate(positional):
        names = program.argument_names
        plain = nest.name if isinstance(nest, Ref) else names[i] if i < len(names) else f"arg{i}"
        found[plain] = nest
    return found | dict(zip(kwargs["context"] or [], named))
