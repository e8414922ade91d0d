"""Loads classifiers, rerankers and taggers from a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import ModelError
from weft.core.text import listed, shown
from weft.importers.hf_config import Fields, read_object
from weft.importers.safetensors import open_checkpoint
from weft.models.arch.config import Layout
from weft.models.arch.encoder_config import EncoderConfig, VectorConfig
from weft.models.arch.encoders import ENCODERS, read_encoder
from weft.models.arch.families import DECODERS, read_stream
from weft.models.arch.heads import INERT, Head, text_head, token_head
from weft.models.arch.pooling import Pooling
from weft.models.arch.weights import Weight
from weft.models.run.encoder_runner import body_of
from weft.models.run.judge import Activation, Judge, Judging
from weft.models.run.sentence_folder import tokenizer_limit
from weft.models.run.sentence_steps import activation_of
from weft.models.text.tokenizer_settings import read_settings
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.encoder_names import encoder_layout
from weft.models.weights.names import check_float
from weft.models.weights.placement import Placement
from weft.models.weights.reading import read_weights
from weft.models.weights.weight_dtypes import wanted

if TYPE_CHECKING:
    from weft.models.weights.gguf_encoder import EncoderFile
    from weft.program.device import Device

MAX_LABELS = 1 << 16
_TYPED = ("BertTokenizer", "ElectraTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer")
_TEXTS, _TOKENS = "ForSequenceClassification", "ForTokenClassification"


def judges(raw: Fields) -> bool:
    """Returns True if `architectures` names a classifier or a tagger first."""
    names = raw.texts("architectures", 64)
    return bool(names) and names[0].endswith((_TEXTS, _TOKENS))


def load_judge(
    folder: Path, raw: Fields, kind: str, device: Device | None, place: Placement
) -> Judge:
    """Loads the judge in a folder, whose config.json is `raw`. Raises ModelError."""
    config, layout = _body(raw, kind)
    layout = replace(layout, inert={**layout.inert, **INERT})
    judging = _judging(folder, raw, config, layout)
    weights: Mapping[str, Weight] = read_weights(folder, raw, layout, wanted(place.dtype))
    longest = min(tokenizer_limit(folder) or config.max_positions, config.max_positions)
    typed = isinstance(config, EncoderConfig) and config.token_types > 1 and _types(folder)
    return Judge(body_of(folder, config, weights, device, place, longest, typed), judging, typed)


def file_judge(file: EncoderFile, device: Device | None, place: Placement) -> Judge:
    """Loads the judge in a GGUF file. Its score of a pair is a sigmoid if it has one label."""
    head = file.head
    assert head is not None
    chosen: Activation = "sigmoid" if len(head.labels) == 1 else "softmax"
    scored: Activation = "sigmoid" if len(head.labels) == 1 else "identity"
    judging = Judging(head.pooling, head.labels, chosen, scored, arrays=head.arrays)
    config, weights, longest = file.config, file.weights, file.config.max_positions
    body = body_of(file.path, config, weights, device, place, longest, made=file.made)
    return Judge(body, judging, typed=False)


def _types(folder: Path) -> bool:
    """Returns True if the tokenizer says which part of a pair a token is in, as transformers
    decides it."""
    settings = read_settings(folder)
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return str(settings.get("tokenizer_class")).removesuffix("Fast") in _TYPED


def _body(raw: Fields, kind: str) -> tuple[VectorConfig, Layout]:
    """Returns the config of the layers before the head, and their weights' names."""
    if kind in ENCODERS:
        encoder = read_encoder(kind, raw)
        return encoder, encoder_layout(encoder)
    if kind not in DECODERS:
        raise ModelError(
            f"{raw.where}: weft judges texts with {listed([*ENCODERS, *DECODERS])}, not with "
            f"{shown(kind, 40)}"
        )
    decoder = replace(read_stream(kind, raw), tied=True, head_bias=False)
    return decoder, decoder_layout(decoder)


def _judging(folder: Path, raw: Fields, config: VectorConfig, layout: Layout) -> Judging:
    tokens = raw.texts("architectures", 64)[0].endswith(_TOKENS)
    decoder = not isinstance(config, EncoderConfig)
    head = (token_head if tokens else text_head)(config.family, decoder)
    if head is None:
        raise ModelError(f"{raw.where}: weft knows no head of {config.family} that judges texts")
    head, labels = _as_said(head, raw, config.family), _labels(raw)
    arrays = _arrays(folder, head, layout, config, len(labels))
    chosen = _chosen(raw, len(labels))
    scored = _scored(folder, raw, len(labels))
    steps = tuple(step for step, _ in head.steps)
    steps = (*steps[:-1], replace(steps[-1], width=len(labels)))
    pad = raw.integer("pad_token_id", 0, 1 << 31, None) if decoder else None
    return Judging(Pooling((head.mode,), steps), labels, chosen, scored, tokens, pad, arrays)


def _as_said(head: Head, raw: Fields, family: str) -> Head:
    """Returns the head with the choices that config.json has about it."""
    if family == "modernbert":
        act = activation_of_name(raw, "classifier_activation", "gelu")
        mode = raw.text("classifier_pooling", "cls", choices=("cls", "mean"))
        first, norm, last = head.steps
        eps = raw.number("norm_eps", 0.0, 1.0, 1e-5)
        steps = ((replace(first[0], act=act), first[1]), (replace(norm[0], eps=eps), norm[1]), last)
        return Head(mode, steps)
    if family.startswith("deberta") and len(head.steps) == 2:
        act = activation_of_name(raw, "pooler_hidden_act", "gelu")
        return Head(head.mode, ((replace(head.steps[0][0], act=act), "pooler.dense"), LAST))
    return head


LAST = text_head("bert", False).steps[-1]  # type: ignore[union-attr]


def activation_of_name(raw: Fields, name: str, default: str) -> Any:
    """Returns an activation by transformers' name of it."""
    from weft.models.arch.family_parts import activation

    given = raw.text(name, default)
    return given if given == "tanh" else activation(raw, name, default)


def _labels(raw: Fields) -> tuple[str, ...]:
    """Returns the labels by their numbers: those of id2label, else LABEL_0 and so on."""
    named = raw.section("id2label")
    if named is None or not named.data:
        count = raw.integer("num_labels", 1, MAX_LABELS, 2)
        return tuple(f"LABEL_{i}" for i in range(count))
    if len(named.data) > MAX_LABELS:
        raise ModelError(f"{raw.where}: id2label has {len(named.data)} labels")
    try:
        return tuple(named.text(str(i)) for i in range(len(named.data)))
    except ModelError:
        raise ModelError(
            f"{raw.where}: id2label does not name 0 to {len(named.data) - 1}"
        ) from None


def _chosen(raw: Fields, count: int) -> Activation:
    """Returns the function of labels' scores, as transformers' pipeline chooses it."""
    kind = raw.text("problem_type", None)
    if kind == "regression":
        return "identity"
    return "sigmoid" if count == 1 or kind == "multi_label_classification" else "softmax"


def _scored(folder: Path, raw: Fields, count: int) -> Activation:
    """Returns the function of a pair's score, as sentence-transformers' CrossEncoder finds it."""
    path = folder / "config_sentence_transformers.json"
    whole = path.exists() and (folder / "modules.json").exists()
    own = Fields(read_object(path) if whole else {}, str(path))
    if own.data.get("default_prompt_name"):
        raise ModelError(f"{path}: a default prompt of a reranker is not supported")
    nested = raw.section("sentence_transformers") or Fields({}, raw.where)
    places = (own, "activation_fn"), (nested, "activation_fn"), (
        raw, "sbert_ce_default_activation_function")  # fmt: skip
    for fields, name in places:
        if fields.data.get(name) is not None:
            found: Activation = activation_of(fields, name)
            return found
    return "sigmoid" if count == 1 else "identity"


def _arrays(
    folder: Path, head: Head, layout: Layout, config: VectorConfig, labels: int
) -> dict[str, np.ndarray]:
    """Returns the head's arrays by the names that `pool` takes."""
    checkpoint, out = open_checkpoint(folder), {}
    for i, (step, name) in enumerate(head.steps):
        rows = labels if i == len(head.steps) - 1 else config.hidden
        shapes = {"w": (rows, config.hidden) if step.kind == "dense" else (rows,), "b": (rows,)}
        for role, end in (("w", "weight"), ("b", "bias")):
            names = [f"{prefix}{name}.{end}" for prefix in ("", *layout.prefixes)]
            found = next((n for n in names if n in checkpoint), None)
            if found is None and role == "b":
                continue
            if found is None:
                raise ModelError(
                    f"{checkpoint.where}: tensor '{name}.{end}' is missing: the head that judges "
                    "texts"
                )
            check_float(checkpoint, found)
            value = checkpoint[found]
            if value.shape != shapes[role]:
                raise ModelError(
                    f"{checkpoint.where}: tensor {found!r} has shape {list(value.shape)}; "
                    f"config.json asks for {list(shapes[role])}"
                )
            out[f"{i}.{role}"] = value.astype(np.float32)
        if step.kind == "norm":
            out.setdefault(f"{i}.b", np.zeros(rows, np.float32))
    known = {f"{p}{n}" for _, n in head.steps for p in ("", *layout.prefixes)}
    for name in checkpoint:
        if any(re.match(p, name) for p in INERT) and name.rpartition(".")[0] not in known:
            raise ModelError(f"{checkpoint.where}: tensor {name[:200]!r} is not part of this model")
    return out
