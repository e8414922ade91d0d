"""From a traced form to a decoder's config: roles and kinds of its weights, its attention calls."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import FileFormatError, ModelError
from weft.core.versions import stamp
from weft.importers import aten
from weft.importers.ports import Ref
from weft.importers.torch_export.graph import CallNode
from weft.models.arch.config import DecoderConfig, Kind, Layer, WeightSpec
from weft.models.arch.mixer_sizes import Kept
from weft.models.arch.traced import (
    ATTENTION,
    CONV,
    EMBEDDING,
    LINEAR,
    OWN,
    PICKED,
    RECURRENCE,
    last_reads,
)
from weft.models.arch.traced_body import AttentionCall, TracedBody
from weft.models.zoo.form import call_of, refs_of, value_of


class Stateless(ModelError):
    """A graph in which nothing sees earlier tokens."""


class TracedModel(NamedTuple):
    """The config, and by role each weight's place in the checkpoint (`places`)."""

    config: DecoderConfig
    places: Mapping[str, Mapping[str, Any]]

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        """The weights by role."""
        assert self.config.traced is not None
        return self.config.traced.weights


def traced_model(form: Mapping[str, Any], where: str) -> TracedModel:
    """Returns the decoder of a form. Raises ModelError for what the engine does not run,
    FileFormatError for a form that does not hold."""
    try:
        calls = [call_of(data) for data in form["calls"]]
        attends = [AttentionCall(**given) for given in form["attends"]]
        convs = [(int(channels), int(taps)) for channels, taps in form["convs"]]
        memories = [(int(h), int(k), int(v)) for h, k, v in form["memories"]]
        tensors: dict[str, str] = dict(form["tensors"])
        shapes = {name: tuple(map(int, shape)) for name, shape in form["shapes"].items()}
        places = form["places"]
        result = value_of(form["result"])
        inputs = tuple(map(str, form["inputs"]))
        whole = bool(form["whole"])
        constants = {name: _array(data) for name, data in form["constants"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{where}: a traced model that does not hold: {error!r}") from None
    if not isinstance(result, Ref):
        raise FileFormatError(f"{where}: a traced model without a result")
    if len(inputs) != (1 if whole else 2):
        raise FileFormatError(f"{where}: a traced model with inputs {inputs}")
    _check(calls, {ATTENTION: attends, CONV: convs, RECURRENCE: memories}, whole, where)
    roles, kinds = _roles(calls, tensors, shapes, places)
    turned = _turned(calls, tensors)
    specs: dict[str, WeightSpec] = {}
    where_from = {}
    for name in dict.fromkeys(tensors.values()):
        shape, role = shapes[name], roles[name]
        if name in turned:
            shape = (*shape[:-2], shape[-1], shape[-2])
        if role not in specs:
            specs[role] = WeightSpec(name, shape, kinds[name], name in turned)
            where_from[role] = places[name]
    body = TracedBody(
        inputs, calls, result.name,
        {value: roles[name] for value, name in tensors.items()}, constants, attends, specs,
        _mark(form), whole,
    )  # fmt: skip
    last_reads(body)  # raises for calls out of order
    kept = zip_longest([channels for channels, _ in convs], memories)
    config = replace(
        _config(form, body), keeps=tuple(Kept(channels or 0, memory) for channels, memory in kept),
        conv_taps=max((taps for _, taps in convs), default=0),
    )  # fmt: skip
    return TracedModel(config, where_from)


def _mark(form: Mapping[str, Any]) -> str:
    text = json.dumps([stamp("traces"), form], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _array(data: Mapping[str, Any]) -> np.ndarray:
    raw = base64.b64decode(data["data"], validate=True)
    return np.frombuffer(raw, np.dtype(data["dtype"])).reshape(data["shape"])


def _check(calls: list[CallNode], known: Mapping[str, list[Any]], whole: bool, where: str) -> None:
    """Raises ModelError unless every call has a rule and caches hold what layers of attention
    keep; with `whole` nothing is kept."""
    unknown = {c.target for c in calls if c.target not in OWN and aten.entry(c.target) is None}
    if unknown:
        raise ModelError(
            f"{where}: operators that weft does not have: {', '.join(sorted(unknown))}"
        )
    attends = known[ATTENTION]
    if not any(known.values()) and not whole:
        raise Stateless(f"{where}: no attention that the engine can keep a cache for")
    for target, found in known.items():
        if len(found) != sum(call.target == target for call in calls):
            raise FileFormatError(f"{where}: a traced model with other calls of {target}")
    caps = {call.softcap for call in attends}
    if len(caps) > 1:
        raise ModelError(f"{where}: layers cap their attention scores differently: {caps}")
    if any(call.heads % call.kv_heads for call in attends):
        raise ModelError(f"{where}: heads of queries that key/value heads do not divide")


def _roles(
    calls: list[CallNode],
    tensors: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    places: Mapping[str, Any],
) -> tuple[dict[str, str], dict[str, Kind]]:
    """Returns the role and the kind of each parameter, by name. The token embedding and the output
    matrix are "embed" and "head" as in other decoders, and one where the checkpoint has one."""
    readers: dict[str, set[str]] = {}
    embed = head = ""
    for call in calls:
        for value in refs_of(call):
            if value in tensors:
                readers.setdefault(tensors[value], set()).add(_how(call, value))
        weight = call.args[1] if call.target == LINEAR else call.args[0] if call.args else None
        if isinstance(weight, Ref) and weight.name in tensors:
            if call.target == EMBEDDING and not embed:
                embed = tensors[weight.name]
            if call.target == LINEAR:
                head = tensors[weight.name]
    roles, kinds = {}, {}
    for name in tensors.values():
        kind = _kind(readers.get(name, set()), shapes[name])
        stem, _, last = name.rpartition(".")
        role = f"{stem}.b" if last == "bias" else f"{stem}.w" if last == "weight" else name
        whole = kind in ("experts", "matrix") and last != "weight"
        roles[name] = f"{name}.w" if whole else role
        kinds[name] = kind
    if head and len(shapes[head]) == 2 and shapes[head][0] == shapes[embed][0]:
        roles[head], kinds[head] = "head", "head"
    roles[embed], kinds[embed] = "embed", "embed"
    counts = {shapes[name][0] for name, kind in kinds.items() if kind == "experts"}
    for name, kind in kinds.items():
        if kind == "matrix" and shapes[name][0] in counts:
            kinds[name] = "router"
    if head and roles[head] == "head" and places[head] == places[embed]:
        roles[head] = "embed"
    return roles, kinds


def _how(call: CallNode, value: str) -> str:
    at = [i for i, x in enumerate(call.args) if isinstance(x, Ref) and x.name == value]
    return f"{call.target} {at[0]}" if len(at) == 1 else call.target


_KINDS: dict[str, Kind] = {
    f"{LINEAR} 1": "matrix", f"{PICKED} 1": "experts", f"{EMBEDDING} 0": "table",
    f"{LINEAR} 2": "bias", f"{ATTENTION} 3": "sinks",
}  # fmt: skip


def _kind(readers: set[str], shape: tuple[int, ...]) -> Kind:
    """Returns the kind of a weight from the ways in which it is read. Only a weight that products
    alone read may be packed."""
    kinds = {_KINDS.get(how) for how in readers}
    found = kinds.pop() if len(kinds) == 1 else None
    if found is not None:
        return found
    return "norm" if len(shape) < 2 else "scale"


def _turned(calls: list[CallNode], tensors: Mapping[str, str]) -> set[str]:
    """Returns the experts' matrices that are stored [E, K, N]."""
    return {tensors[call.args[1].name] for call in calls if call.target == PICKED and call.args[3]}


def _config(form: Mapping[str, Any], body: TracedBody) -> DecoderConfig:
    attends = body.attends
    first = attends[0] if attends else AttentionCall(1, 1, 1, 1, 1.0)
    experts = {spec.shape[0] for spec in body.weights.values() if spec.kind == "experts"}
    if len(experts) > 1:
        raise ModelError(f"layers have different numbers of experts: {sorted(experts)}")
    return DecoderConfig(
        family=str(form["family"]), vocab=int(form["vocab"]), hidden=int(form["hidden"]),
        layers=len(attends), heads=first.heads, kv_heads=first.kv_heads, head_dim=first.width,
        ffn=0, max_positions=int(form["max_positions"]), ropes=(),
        by_layer=tuple(Layer(call.width, call.kv_heads, 0) for call in attends),
        windows=tuple(call.window for call in attends), scale=first.scale,
        attn_softcap=first.softcap, tied="head" not in body.weights,
        experts=max(experts, default=0), alibi=bool(form["alibi"]),
        traced=body,
    )  # fmt: skip
