"""The names of the weights of a model with an encoder and a decoder in a Hugging Face checkpoint,
and their required shapes. The encoder's roles begin with "e."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core.records import dataclass
from weft.models.arch.config import Layout
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.weights.encoder_names import encoder_layout
from weft.models.weights.layout_builder import LayoutBuilder
from weft.models.weights.tensor_names import INERT


@dataclass(frozen=True)
class _Names:
    """A family's names: `outer` outside the decoder's layers, `inner` after `layer`."""

    outer: Mapping[str, str]
    layer: str
    inner: Mapping[str, str]
    prefix: str
    twin: str
    inert: Mapping[str, str]


_AGAIN = {r"^(model\.)?(encoder|decoder)\.embed_tokens\.weight$": "the embedding again"}
_LAYER = {
    **{role: f"self_attn.{role}_proj" for role in "qkv"}, "o": "self_attn.out_proj",
    **{f"cross_{role}": f"encoder_attn.{role}_proj" for role in "qkv"},
    "cross_o": "encoder_attn.out_proj", "up": "fc1", "down": "fc2",
    "attn_norm": "self_attn_layer_norm", "cross_norm": "encoder_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
}  # fmt: skip
_OUTER = {
    "embed": "shared", "pos": "decoder.embed_positions", "norm": "decoder.layernorm_embedding",
    "last": "decoder.layer_norm",
}  # fmt: skip
_BART = _Names(_OUTER, "decoder.layers.{}.", _LAYER, "model.", "lm_head.weight", _AGAIN)
_SINES = {r"^(model\.)?(encoder|decoder)\.embed_positions\.weight$": "sines, made here"}
_OWN, _CROSS, _DENSE = "layer.0.SelfAttention.", "layer.1.EncDecAttention.", "layer.2."
NAMES: Mapping[str, _Names] = {
    "bart": _BART,
    "marian": replace(_BART, inert=_AGAIN | _SINES),
    "whisper": replace(
        _BART, outer={**_OUTER, "embed": "decoder.embed_tokens"}, twin="proj_out.weight", inert={}
    ),
    "t5": _Names(
        {
            "embed": "shared", "last": "decoder.final_layer_norm",
            "bias": f"decoder.block.0.{_OWN}relative_attention_bias",
        },
        "decoder.block.{}.",
        {
            **{role: f"{_OWN}{role}" for role in "qkvo"},
            **{f"cross_{role}": f"{_CROSS}{role}" for role in "qkvo"},
            "gate": f"{_DENSE}DenseReluDense.wi_0", "up": f"{_DENSE}DenseReluDense.wi_1",
            "down": f"{_DENSE}DenseReluDense.wo", "attn_norm": "layer.0.layer_norm",
            "cross_norm": "layer.1.layer_norm", "mlp_norm": "layer.2.layer_norm",
        },
        "",
        "lm_head.weight",
        {
            **_AGAIN,
            rf"\.block\.0\.{_CROSS}relative_attention_bias\.weight$": "read by no version",
        },
    ),
}  # fmt: skip


def seq2seq_layout(c: Seq2SeqConfig) -> Layout:
    """Returns names and shapes of the weights of both sides."""
    names, b = NAMES[c.family], LayoutBuilder()
    outer = names.outer
    b.add("embed", "embed", f"{outer['embed']}.weight", c.vocab, c.hidden)
    for role, spec in encoder_layout(c.encoder).weights.items():
        if role != "embed":
            b.weights[f"e.{role}"] = spec
    if c.mels:
        for name, wide in (("conv1", c.mels), ("conv2", c.hidden)):
            b.add("table", f"e.{name}.w", f"encoder.{name}.weight", c.hidden, wide, 3)
            b.add("bias", f"e.{name}.b", f"encoder.{name}.bias", c.hidden)
    if c.learned:
        rows = c.max_positions + c.position_offset
        b.add("table", "pos", f"{outer['pos']}.weight", rows, c.hidden)
    biased = c.encoder.norm == "layer"
    for role, there in (("norm", c.embed_norm), ("last", c.pre_norms)):
        if there:
            b.both("norm", role, outer[role], c.hidden, biased=biased)
    if c.relative is not None:
        b.add("table", "bias", f"{outer['bias']}.weight", c.relative.buckets, c.heads)
    for i in range(c.layers):
        _layer(c, b, names, i)
    if c.logit_bias:
        b.add("bias", "head.b", "final_logits_bias", 1, c.vocab)
    if not c.tied:
        b.add("head", "head", "lm_head.weight", c.vocab, c.hidden)
    twin = names.twin if c.tied else ""
    probe = f"{outer['embed']}.weight"
    return Layout(b.weights, {}, (names.prefix, ""), probe, INERT | dict(names.inert), twin)


def _layer(c: Seq2SeqConfig, b: LayoutBuilder, names: _Names, i: int) -> None:
    at, wide = names.layer.format(i), c.heads * c.head_size
    shapes = {"up": (c.ffn, c.hidden), "gate": (c.ffn, c.hidden), "down": (c.hidden, c.ffn)}
    for part in ("", "cross_"):
        shapes |= {f"{part}{role}": (wide, c.hidden) for role in "qkv"}
        shapes[f"{part}o"] = (c.hidden, wide)
    for role, shape in shapes.items():
        if role == "gate" and not c.gated:
            continue
        name = names.inner[role]
        if role == "up" and c.family == "t5" and not c.gated:
            name = name.removesuffix("_1")
        biased = c.biased and (c.key_bias or role not in ("k", "cross_k"))
        b.both("matrix", f"{i}.{role}", at + name, *shape, biased=biased)
    for role in ("attn_norm", "cross_norm", "mlp_norm"):
        biased = c.encoder.norm == "layer"
        b.both("norm", f"{i}.{role}", at + names.inner[role], c.hidden, biased=biased)
