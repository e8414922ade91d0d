"""Reads a GGUF file as an encoder: BERT and what llama.cpp calls so, Nomic BERT, Jina v2,
ModernBERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from weft.core.dtypes import DType
from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.core.records import dataclass
from weft.importers.gguf import Gguf, open_gguf
from weft.importers.gguf_values import Texts
from weft.importers.hf_config import Fields
from weft.models.arch.config import TokenizerContent
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.encoders import read_encoder
from weft.models.arch.family_parts import MAX_FFN, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS
from weft.models.arch.pooling import NORMALIZE, Pooling
from weft.models.arch.weights import Weight
from weft.models.text.gguf_tokenizer import read_tokenizer
from weft.models.weights.encoder_names import encoder_layout
from weft.models.weights.gguf import check_packed, file_weight, stays_packed, told, usable
from weft.models.weights.gguf_judge import HEAD, FileHead, read_head
from weft.models.weights.gguf_metadata import RANK, Metadata, repeated

_TOP = {"embed": "token_embd", "pos": "position_embd", "type": "token_types",
        "norm": "token_embd_norm", "last": "output_norm"}  # fmt: skip
_AFTER = {
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "qkv": "attn_qkv", "o": "attn_output",
    "attn_norm": "attn_output_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    "mlp_norm": "layer_output_norm",
}  # fmt: skip
_BEFORE = {**_AFTER, "attn_norm": "attn_norm", "mlp_norm": "ffn_norm"}
_MODES: Mapping[int, Any] = {0: "mean", 1: "mean", 2: "cls", 3: "lasttoken"}
# Keys that change nothing here, or that say what the tensors say too.
_INERT = ("vocab_size", "attention.causal", "classifier.output_labels", "rope.scaling.type",
          "attention.head_count_kv", "rope.dimension_count", "attention.key_length",
          "attention.value_length")  # fmt: skip
_SIZES = {
    "context_length": ("max_position_embeddings", MAX_POSITIONS),
    "embedding_length": ("hidden_size", MAX_HIDDEN),
    "block_count": ("num_hidden_layers", MAX_LAYERS),
    "feed_forward_length": ("intermediate_size", MAX_FFN),
    "attention.head_count": ("num_attention_heads", MAX_HEADS),
}


@dataclass(frozen=True)
class EncoderFile:
    """The content of a GGUF file with an encoder."""

    path: Path
    config: EncoderConfig
    weights: Mapping[str, Weight]
    pooling: Pooling
    made: Callable[[], TokenizerContent | None]
    head: FileHead | None = None  # of a reranker or a classifier


def _nomic(c: Metadata, data: dict[str, Any]) -> None:
    data["rope_theta"] = c.number("rope.freq_base", 1.0, 1e12, 1000.0)
    data["hidden_act"] = "silu"


def _modern(c: Metadata, data: dict[str, Any]) -> None:
    data["local_attention"] = c.integer("attention.sliding_window", 1, MAX_POSITIONS, 128)
    data["global_attn_every_n_layers"] = c.integer(
        "attention.sliding_window_pattern", 1, MAX_LAYERS, 3
    )
    data["global_rope_theta"] = c.number("rope.freq_base", 1.0, 1e12, 160000.0)
    data["local_rope_theta"] = c.number("rope.freq_base_swa", 1.0, 1e12, 10000.0)
    data["norm_eps"] = data.pop("layer_norm_eps")
    data["norm_bias"] = c.has("token_embd_norm.bias")
    data["attention_bias"] = c.has("blk.0.attn_output.bias")
    data["mlp_bias"] = c.has("blk.0.ffn_up.bias")


def _jina(c: Metadata, data: dict[str, Any]) -> None:
    data |= {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}


# architecture -> model_type, and what its own keys add
ENCODERS: Mapping[str, tuple[str, Callable[[Metadata, dict[str, Any]], None]]] = {
    "bert": ("bert", lambda c, data: None),
    "nomic-bert": ("nomic_bert", _nomic),
    "jina-bert-v2": ("bert", _jina),
    "modern-bert": ("modernbert", _modern),
}
_OWN = ("rope.freq_base", "rope.freq_base_swa", "attention.sliding_window",
        "attention.sliding_window_pattern")  # fmt: skip


def arch_of(gguf: Gguf) -> str:
    """Returns the architecture that a file names; "" without one."""
    found = gguf.metadata.get("general.architecture")
    return found if isinstance(found, str) else ""


def read_encoder_file(
    path: Path, dtype: DType | None = None, gguf: Gguf | None = None
) -> EncoderFile:
    """Opens the encoder in a GGUF file; for `dtype`, `gguf` and errors see `gguf.read`."""
    gguf = gguf or open_gguf(path)
    c = Metadata(gguf, arch_of(gguf))
    config = _config(c)
    layout = encoder_layout(config).weights
    tensors = {role: told(gguf, tensor_name(role, config.pre_norms)) for role in layout}
    judges = c.value("pooling_type") == RANK
    known = {*(tensor.name for tensor in tensors.values()), *(HEAD if judges else ())}
    for name in gguf.tensors:
        if name not in known:
            raise ModelError(
                f"{path}: tensor {name[:80]!r} is not part of an encoder of this architecture, "
                f"{c.arch}, with {config.layers} layers"
            )
    for role, tensor in tensors.items():
        usable(gguf, tensor, layout[role])
    if dtype is None:
        check_packed([t for t in tensors.values() if stays_packed(t)], str(path))
    weights = {r: file_weight(layout[r], t, dtype, str(path)) for r, t in tensors.items()}
    made = partial(read_tokenizer, gguf)
    if judges:
        head = read_head(c, config)
        return EncoderFile(path, config, weights, head.pooling, made, head)
    return EncoderFile(path, config, weights, pooling_of(gguf), made)


def tensor_name(role: str, pre_norms: bool) -> str:
    """Returns the name of an encoder's weight in GGUF files."""
    stem, _, end = role.rpartition(".") if role.endswith((".w", ".b")) else (role, "", "w")
    end = "bias" if end == "b" else "weight"
    if stem in _TOP:
        return f"{_TOP[stem]}.{end}"
    layer, _, part = stem.partition(".")
    return f"blk.{layer}.{(_BEFORE if pre_norms else _AFTER)[part]}.{end}"


def _config(c: Metadata) -> EncoderConfig:
    kind, own = ENCODERS[c.arch]
    data: dict[str, Any] = {"model_type": kind, "pad_token_id": 0}
    for key, (field, most) in _SIZES.items():
        data[field] = c.integer(key, 1, most)
    data["layer_norm_eps"] = c.number("attention.layer_norm_epsilon", 0.0, 1.0)
    tokens = c.gguf.metadata.get("tokenizer.ggml.tokens")
    rows = c.gguf.tensors.get("token_embd.weight")
    data["vocab_size"] = len(tokens) if isinstance(tokens, Texts) else 0
    if rows is not None:
        data["vocab_size"] = rows.shape[0]
    types = c.gguf.tensors.get("token_types.weight")
    if kind != "modernbert":
        data["type_vocab_size"] = 1 if types is None else types.shape[0]
    if c.value("attention.causal") not in (None, False):
        raise c.refuse("attention.causal", "an encoder whose tokens see earlier ones alone")
    own(c, data)
    made = read_encoder(kind, Fields(data, c.where))
    say_unknown(f"{c.gguf.path}: {c.arch}", c.values, _SIZES, _INERT, _OWN,
                ("pooling_type", "attention.layer_norm_epsilon"))  # fmt: skip
    return _with_tensors(c, made, types is not None)


def _with_tensors(c: Metadata, made: EncoderConfig, typed: bool) -> EncoderConfig:
    """Returns the config with what the tensors of a file show."""
    if made.family == "bert":
        made = replace(made, fused_qkv=c.has("blk.0.attn_qkv.weight"))
    if made.family == "jina_v2" and c.has("blk.0.ffn_gate.weight"):  # older files cut the matrix
        made = replace(made, fused_gate="")
    return made if typed else replace(made, token_types=0)


def pools(gguf: Gguf) -> bool:
    """Returns True for a decoder whose file says how its token vectors are pooled."""
    kind = gguf.metadata.get(f"{arch_of(gguf)}.pooling_type")
    return kind in (*_MODES, RANK) and not repeated(gguf)


def pooling_of(gguf: Gguf) -> Pooling:
    """Returns the pooling that a file names; llama.cpp gives vectors the length 1."""
    c = Metadata(gguf, arch_of(gguf))
    kind = c.integer("pooling_type", 0, RANK, 1)
    if kind == RANK:
        raise c.refuse("pooling_type", f"a reranker; of {c.arch} weft reads those from a folder")
    return Pooling((_MODES[kind],), (NORMALIZE,))
