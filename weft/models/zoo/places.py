"""In the tracing process: where a model's parameters are in a checkpoint.

transformers 5 renames, joins and turns a checkpoint's tensors while it loads them. Its table of
conversions is read here, and each parameter's conversion written down as data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    Interleave,
    MergeModulelist,
    Split,
    Transpose,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)


class Unplaced(Exception):
    """A parameter that the checkpoint does not give, or by a conversion that is not known here."""


class Placed(NamedTuple):
    """`places` maps a parameter to its making from tensors: {"tensor": name}, {"stack": [...]},
    {"join": [...], "axis": n}, {"part": place, "axis": n, "start": i, "stop": k}, or {"turn":
    place, "axes": [a, b]}. {"apart": place, "axis": n} deals elements to two halves by turns, and
    {"mingle": place, "axis": n} is the reverse. `unread`: tensors without a place in the model."""

    places: dict[str, Any]
    unread: list[str]


def placed(model: Any, names: dict[str, list[int]], wanted: set[str]) -> Placed:
    """Returns the places of the `wanted` parameters in a checkpoint of tensors `names`."""
    mapping = get_model_conversion_mapping(model)
    renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
    converters = [m for m in mapping if isinstance(m, WeightConverter)]
    by_pattern = {p: c for c in converters for p in c.source_patterns}
    state, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, Any] = {}
    collected: dict[str, tuple[Any, dict[str, list[str]]]] = {}
    unread = []
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = name, None
        if target not in state:
            unread.append(name)
        elif pattern is None:
            found[target] = {"tensor": name}
        else:
            converter, parts = collected.setdefault(target, (by_pattern[pattern], {}))
            parts.setdefault(pattern, []).append(name)
    for target, (converter, parts) in collected.items():
        found |= _converted(target, converter, parts, state)
    _tie(model, found)
    missing = sorted(wanted - set(found))
    if missing:
        raise Unplaced(
            f"the weights lack a tensor for {missing[0]!r} ({len(missing)} of {len(wanted)} "
            f"parameters are missing); the first tensors are {', '.join(sorted(names)[:3])}"
        )
    return Placed({n: found[n] for n in sorted(wanted)}, unread)


def _tie(model: Any, found: dict[str, Any]) -> None:
    """Gives parameters that are tied to others the others' places."""
    for target, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if target not in found and source in found:
            found[target] = found[source]
        elif source not in found and target in found:
            found[source] = found[target]


def _converted(
    target: str, converter: Any, parts: dict[str, list[str]], state: dict[str, Any]
) -> dict[str, Any]:
    """Returns the places of the parameters that one conversion makes."""
    held: dict[str, list[Any]] = {
        p: [{"tensor": n} for n in parts.get(p, [])] for p in converter.source_patterns
    }
    held = {p: v for p, v in held.items() if v}
    targets = converter.target_patterns
    stem = next((t for t in targets if t in target), "")
    for operation in converter.operations:
        if isinstance(operation, Chunk | Split) and len(targets) > 1:
            sizes = [state[target.replace(stem, t)].shape[operation.dim] for t in targets]
            held = _cut(held, operation.dim, sizes)
        elif type(operation).__name__ == "Inkling2UnpadVocab" and not operation.inverse:
            held = _cut(held, 0, [state[target].shape[0]])
        else:
            held = _after(operation, held)
    made = [x for values in held.values() for x in values]
    if len(targets) == 1 and len(made) == 1:
        return {target: made[0]}
    if len(made) == len(targets) and stem:
        return {target.replace(stem, t): x for t, x in zip(targets, made)}
    raise Unplaced(f"{target}: its conversion by transformers gives {len(made)} tensors")


def _cut(held: dict[str, list[Any]], axis: int, sizes: list[int]) -> dict[str, list[Any]]:
    """Returns the parts of one tensor, of the given sizes along an axis."""
    if [len(v) for v in held.values()] != [1]:
        raise Unplaced("a conversion of weights that cuts several tensors is not known here")
    ((x,),) = held.values()
    made, start = {}, 0
    for i, size in enumerate(sizes):
        made[str(i)] = [{"part": x, "axis": axis, "start": start, "stop": start + size}]
        start += size
    return made


def _after(operation: Any, held: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Returns tensors by pattern after a conversion of them."""
    if isinstance(operation, MergeModulelist) and operation.dim == 0:
        return {p: [{"stack": v}] for p, v in held.items()}
    if isinstance(operation, Concatenate):
        joined = [x for v in held.values() for x in v]
        return {"": [{"join": joined, "axis": operation.dim}]}
    if isinstance(operation, Transpose) and not getattr(operation, "check_dims", False):
        axes = [operation.dim0, operation.dim1]
        return {p: [{"turn": x, "axes": axes} for x in v] for p, v in held.items()}
    if isinstance(operation, Interleave):
        way = "mingle" if operation.inverse else "apart"
        return {p: [{way: x, "axis": operation.dim} for x in v] for p, v in held.items()}
    raise Unplaced(f"a conversion of weights by {type(operation).__name__} is not known here")
