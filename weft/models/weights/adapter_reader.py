"""Collects the tensors of an adapter and checks them against its model.

Tensors come under PEFT's names; readers of other formats translate theirs, and messages show the
file's own. weft rejects, with an error naming it, everything unsupported that would change results.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import bfloat16, float16, float32, float64
from weft.core.errors import ModelError
from weft.core.notices import listed
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.weights.adapter_patterns import Patterns
from weft.models.weights.adapters import PREFIX, TABLES, Adapter, modules, scale_of, sizes
from weft.models.weights.decoder_names import HEAD, decoder_layout
from weft.models.weights.names import checkpoint_names

_FLOATS = (float16, bfloat16, float32, float64)
MAX_RANK = 1 << 14
MAX_ALPHA = 1e9

_TENSOR = re.compile(
    r"(?P<layer>.+?)\.(?:"
    r"lora_(?P<half>[AB])\.weight|lora_B\.(?P<bias>bias)|lora_embedding_(?P<table>[AB])"
    r"|(?P<norms>lora_magnitude_vector)(?:\.weight)?"
    r"|token_adapter\.(?P<rows>trainable_tokens_delta)"
    r"|base_layer\.(?P<shared>weight|bias)|(?:modules_to_save\.)?(?P<own>weight|bias))"
)
_EXPERTS = re.compile(r"(?:.+\.)?layers\.(\d{1,4})\.(?:\w+\.)?experts((?:\.base_layer)?)")
_CLASSIFIERS = re.compile(r"(^|\.)(score|classifier|classification_head|v_head)$")


@dataclass
class AdapterReader:
    """Collects the tensors of an adapter by what they do. `given` has the fields of PEFT's
    adapter_config.json, `where` is the file with the tensors."""

    given: Fields
    where: Path
    config: DecoderConfig
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    halves: dict[tuple[int, bool], dict[str, np.ndarray]] = field(default_factory=dict)
    stacks: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    each: dict[str, dict[tuple[int, str], np.ndarray]] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)  # names of modules with tensors

    def __post_init__(self) -> None:
        given, config = self.given, self.config
        self.rank = given.integer("r", 1, MAX_RANK)
        self.alpha = given.number("lora_alpha", 0.0, MAX_ALPHA)
        self.stabilized = given.flag("use_rslora", False)
        self.usual = scale_of(self.alpha, self.rank, self.stabilized) or 1.0
        self.only = given.integers("layers_to_transform", 0, 1 << 20)
        given.text("bias", "none", ("none", "all", "lora_only"))
        self.dora = given.flag("use_dora", False)
        self.ranks = Patterns.read(given, "rank_pattern")
        self.alphas = Patterns.read(given, "alpha_pattern")
        names = checkpoint_names(config)
        if config.tied:
            names = names | {"head": HEAD}
        self.whole = {name: role for role, name in names.items()}
        stacks = {k: v for k, v in names.items() if "{}" in v and k.endswith(".w")}
        self.single = {v.removesuffix(".weight"): key for key, v in stacks.items()}
        self.roles = {name: role for role, name in modules(config).items()}
        tables = {role: names[role].removesuffix(".weight") for role in TABLES if role in names}
        self.tables = {name: role for role, name in tables.items()}
        self.parts = {k: {} for k in ("magnitudes", "biases", "shared", "own", "rows")}

    def fail(self, name: str, said: str) -> ModelError:
        return ModelError(f"{self.where}: tensor {name!r:.200} {said}")

    def add(self, name: str, value: np.ndarray, peft: str = "") -> None:
        """Takes a tensor of the file, which PEFT would call `peft` (default: as the file does)."""
        said = (peft or name).removeprefix(PREFIX)
        found = _TENSOR.fullmatch(re.sub(r"(?:language|text)_model\.", "", said))
        if found is None:
            raise self.fail(name, "belongs to no layer of the model")
        layer, kind = found["layer"], found.lastgroup
        value = floats(value, f"{self.where}: {name!r:.200}")
        self.held.append(f".{layer}.")
        if kind == "half" and (one := self._one_expert(layer)) is not None:
            return self._add_expert(name, layer, *one, found["half"], value)
        experts = _EXPERTS.fullmatch(layer)
        if experts is not None and kind == "half":
            at = int(experts[1]), bool(experts[2])
            return self._once(self.halves.setdefault(at, {}), found["half"], name, value)
        if kind in ("shared", "own"):
            return self._replacing(name, layer, found[kind], kind, value)
        role = self.roles.get(layer) or self.tables.get(layer)
        if role is None:
            raise self.fail(name, "belongs to no layer of the model")
        if self.only and role not in TABLES and role.split(".")[0] not in map(str, self.only):
            said = f"is of a layer which layers_to_transform {list(self.only)[:8]} leaves out"
            raise self.fail(name, said)
        if kind == "rows":
            ids = self._ids(layer)
            self._check(name, value, (len(ids), self.config.hidden))
            return self._once(self.parts["rows"], role, name, (ids, value))
        inputs, outputs = sizes(self.config, role)
        if kind in ("norms", "bias"):
            if role in TABLES:
                raise self.fail(name, "is DoRA's or a bias of the embedding or the output layer, "
                                "which weft does not support")  # fmt: skip
            self._check(name, value, (outputs,))
            if kind == "norms":
                return self._once(self.parts["magnitudes"], role, name, value)
            return self._once(self.parts["biases"], role, name, value * self._scale(layer))
        rank = self.ranks.value(layer, self.rank)
        half = found["half"]
        if kind == "table":  # A holds columns for tokens, so it is B of the table
            half, value = "BA"["AB".index(found["table"])], value.T
        shape = (rank, inputs) if half == "A" else (outputs, rank)
        self._check(name, value, shape, turned=kind == "table")
        if half == "B":  # one scale for all layers: differences go into B
            value = value * np.float32(self._scale(layer) / self.usual)
        self._once(self.weights, f"{role}.lora_{half.lower()}", name, np.ascontiguousarray(value))

    def _one_expert(self, layer: str) -> tuple[str, int] | None:
        """Returns the stack and the number of an expert that a checkpoint has as a layer of its
        own: "model.layers.0.mlp.experts.3.gate_proj"."""
        for name, key in self.single.items():
            before, after = name.split("{}")
            number = layer.removeprefix(before).removesuffix(after)
            if layer == f"{before}{number}{after}" and re.fullmatch(r"\d{1,5}", number):
                return key, int(number)
        return None

    def _add_expert(
        self, name: str, layer: str, key: str, number: int, half: str, value: np.ndarray
    ) -> None:
        """Takes A or B of one expert; those without any stay as they are."""
        count, outputs, inputs = decoder_layout(self.config).weights[key].shape
        if number >= count:
            raise self.fail(name, f"is of expert {number}; there are {count}")
        rank = self.ranks.value(layer, self.rank)
        self._check(name, value, (rank, inputs) if half == "A" else (outputs, rank))
        self._once(self.each.setdefault(key, {}), (number, half), name, value)
        if half == "B":
            self.each[key][number, half] = value * np.float32(self._scale(layer) / self.usual)

    def _whole_stacks(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns A and B of stacks that came expert by expert, filled up with zeros."""
        made = {}
        for key, found in self.each.items():
            count, outputs, inputs = decoder_layout(self.config).weights[key].shape
            rank = max(value.shape[0] for (_, half), value in found.items() if half == "A")
            a = np.zeros((count, rank, inputs), np.float32)
            b = np.zeros((count, outputs, rank), np.float32)
            for (n, half), value in found.items():
                if (n, "B" if half == "A" else "A") not in found:
                    raise ModelError(f"{self.where}: half of the adapter of {key!r} is missing")
                (a if half == "A" else b)[n, : value.shape[0], : value.shape[1]] = value
            made[key] = a, b
        return made

    def add_experts(self, name: str, key: str, half: str, value: np.ndarray) -> None:
        """Takes A [experts, rank, in] or B [experts, out, rank] of the stack `key`."""
        spec = decoder_layout(self.config).weights.get(key)
        if spec is None or spec.kind != "experts":
            raise self.fail(name, "belongs to no experts of the model")
        count, outputs, inputs = spec.shape
        shape = (count, self.rank, inputs) if half == "A" else (count, outputs, self.rank)
        value = floats(value, f"{self.where}: {name!r:.200}")
        self._check(name, value, shape)
        self._once(self.stacks.setdefault(key, {}), half, name, value)

    def _stacks(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        for key, halves in self.stacks.items():
            if set(halves) != {"A", "B"}:
                raise ModelError(f"{self.where}: half of the adapter of {key!r} is missing")
        return {key: (halves["A"], halves["B"]) for key, halves in self.stacks.items()}

    def _replacing(self, name: str, layer: str, part: str, kind: str, value: np.ndarray) -> None:
        key = self.whole.get(f"{layer}.{part}")
        if key is None:
            what = "belongs to no layer of the model"
            if _CLASSIFIERS.search(layer):
                what = "is the head of a classifier, which weft does not load"
            raise self.fail(name, what)
        spec = decoder_layout(self.config).weights
        shape = (self.config.vocab, self.config.hidden) if key in TABLES else spec[key].shape
        self._check(name, value, shape)
        self._once(self.parts[kind], key, name, value)

    def _check(
        self, name: str, value: np.ndarray, shape: tuple[int, ...], turned: bool = False
    ) -> None:
        if value.shape != shape:
            has, wants = (x[::-1] if turned else x for x in (value.shape, shape))
            raise ModelError(
                f"{self.where}: {name!r:.200} has shape {list(has)}; expected {list(wants)}"
            )

    def _once(self, into: dict[Any, Any], key: Any, name: str, value: Any) -> None:
        if key in into:
            raise ModelError(f"{self.where}: {name!r:.200} is there under another name too")
        into[key] = value

    def _scale(self, layer: str) -> np.float32:
        rank, alpha = self.ranks.value(layer, self.rank), self.alphas.value(layer, self.alpha)
        return np.float32(scale_of(alpha, rank, self.stabilized))

    def _ids(self, layer: str) -> tuple[int, ...]:
        """Returns the tokens whose rows a table replaces."""
        given, name = self.given, "trainable_token_indices"
        if isinstance(given.data.get(name), dict):
            given = given.section(name) or given
            ends = [key for key in given.data if f".{layer}".endswith(f".{key}")]
            name = ends[0] if ends else layer
        return given.integers(name, 0, self.config.vocab - 1)

    # -- the whole ---------------------------------------------------------------------------------

    def adapter(self, digest: str = "") -> Adapter:
        """Returns the adapter, after checking that nothing is missing. `digest`: its model's."""
        for key in self.weights:
            if key[:-1] + ("b" if key.endswith("a") else "a") not in self.weights:
                names = {role: name for name, role in (self.roles | self.tables).items()}
                raise ModelError(
                    f"{self.where}: half of the adapter of layer {names[key[:-7]]} is missing"
                )
        experts = self._experts() | self._stacks() | self._whole_stacks()
        if not (self.weights or experts or any(self.parts.values())):
            raise ModelError(f"{self.where}: it holds no tensor, so it adapts nothing")
        layers = {key[:-7] for key in self.weights}
        if layers != self.parts["magnitudes"].keys() and (self.dora or self.parts["magnitudes"]):
            odd = min(layers ^ self.parts["magnitudes"].keys())
            said = "with use_dora" if self.dora else "without use_dora"
            raise ModelError(f"{self.where}: {said}, layer {odd!r} has half of what DoRA needs")
        self._check_saved()
        given = self.given
        return Adapter(
            self.rank, self.alpha, given.number("lora_dropout", 0.0, 1.0, 0.0),
            given.text("base_model_name_or_path", ""), self.weights,
            digest, self.stabilized, experts=experts, **self.parts,
        )  # fmt: skip

    def _check_saved(self) -> None:
        """Raises ModelError for modules that are in the config but not in the file."""
        asked = self.given.texts("modules_to_save")
        missing = [one for one in asked if not any(f".{one}." in name for name in self.held)]
        if missing:
            raise ModelError(
                f"{self.given.where}: modules_to_save names {listed(missing)}, and "
                f"{self.where.name} holds no tensor of that name"
            )
        if self.given.data.get("trainable_token_indices") and not self.parts["rows"]:
            raise ModelError(f"{self.where}: the rows of trainable_token_indices are missing")

    def _experts(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns A and B of stacked matrices of experts. PEFT wraps a module's parameters one
        within the other; gate_up_proj, the first, is innermost."""
        targets = self.given.texts("target_parameters")
        made: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for (layer, inner), halves in self.halves.items():
            both = (layer, not inner) in self.halves
            named = [
                n for n in ("gate_up_proj", "down_proj") if any(t.endswith(n) for t in targets)
            ]
            which = "gate_up" if (inner if both else named == ["gate_up_proj"]) else "down"
            where = f"{PREFIX}...layers.{layer}...experts"
            if set(halves) != {"A", "B"} or (not both and len(named) != 1):
                raise self.fail(where, "lacks a half, or target_parameters does not name it")
            made |= self._stack(layer, which, halves, where)
        return made

    def _stack(
        self, layer: int, which: str, halves: dict[str, np.ndarray], where: str
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        specs, count = decoder_layout(self.config).weights, self.config.experts
        keys = [f"{layer}.{which}_exps.w"]
        if which == "gate_up" and keys[0] not in specs:
            keys = [f"{layer}.{part}_exps.w" for part in ("gate", "up")]
        if not all(key in specs for key in keys):
            raise self.fail(where, "belongs to no experts of the model")
        lengths = [specs[key].shape[1] for key in keys]
        inputs, outputs = specs[keys[0]].shape[2], sum(lengths)
        layer_name = f"layers.{layer}.mlp.experts.{which}_proj"
        rank = self.ranks.value(layer_name, self.rank)
        self._check(f"{where}.lora_A", halves["A"], (rank * count, inputs))
        self._check(f"{where}.lora_B", halves["B"], (outputs, rank * count))
        a = halves["A"].reshape(count, rank, inputs)
        b = halves["B"].reshape(outputs, rank, count).transpose(2, 0, 1)
        b = b * np.float32(self._scale(layer_name) / self.usual)
        ends = np.cumsum([0, *lengths])
        return {key: (a, b[:, i:j]) for key, i, j in zip(keys, ends, ends[1:])}


def floats(value: np.ndarray, what: str) -> np.ndarray:
    """Returns an adapter's tensor in float32. Raises ModelError for other numbers than floats, and
    for NaN and infinity."""
    if value.dtype not in [d.numpy for d in _FLOATS]:
        known = ", ".join(d.name for d in _FLOATS)
        raise ModelError(f"{what} is of {value.dtype}; an adapter's tensors are {known}")
    with np.errstate(over="ignore"):
        out = np.asarray(value, np.float32)
    if not all_finite(out):
        raise ModelError(f"{what} holds NaN or infinity; the adapter is damaged")
    return out
