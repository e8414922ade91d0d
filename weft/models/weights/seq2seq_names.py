"""The names of the weights of a model with an encoder and a decoder in a Hugging Face checkpoint,
and their required shapes. The encoder's roles begin with "e."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core.records import dataclass
from weft.models.arch.config import Layout
from weft.models.arch.seq2seq_config import SAMPLED, Seq2SeqConfig
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
    "moonshine": _Names(
        {"embed": "decoder.embed_tokens", "last": "decoder.norm"},
        "decoder.layers.{}.",
        {
            **_LAYER, "o": "self_attn.o_proj", "cross_o": "encoder_attn.o_proj", "up": "mlp.fc1",
            "down": "mlp.fc2", "attn_norm": "input_layernorm",
            "cross_norm": "post_attention_layernorm", "mlp_norm": "final_layernorm",
        },
        "model.",
        "proj_out.weight",
        {},
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
    if c.hears:
        _ears(c, b)
    if c.learned:
        rows = c.max_positions + c.position_offset
        b.add("table", "pos", f"{outer['pos']}.weight", rows, c.hidden)
    biased = c.encoder.norm == "layer" and c.encoder.norm_bias
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


def _ears(c: Seq2SeqConfig, b: LayoutBuilder) -> None:
    """Adds the convolutions before the encoder's layers."""
    sizes = {"conv1": (c.hidden, c.mels, 3), "conv2": (c.hidden, c.hidden, 3)}
    if c.samples:
        first, second, third = (kernel for kernel, _ in SAMPLED)
        wide = 2 * c.hidden
        sizes = {"conv1": (c.hidden, 1, first), "conv2": (wide, c.hidden, second),
                 "conv3": (c.hidden, wide, third)}  # fmt: skip
        for part, name in (("w", "weight"), ("b", "bias")):
            b.add("norm", f"e.level.{part}", f"encoder.groupnorm.{name}", c.hidden)
    for name, shape in sizes.items():
        b.add("table", f"e.{name}.w", f"encoder.{name}.weight", *shape)
        if c.mels or name != "conv1":
            b.add("bias", f"e.{name}.b", f"encoder.{name}.bias", shape[0])


def _layer(c: Seq2SeqConfig, b: LayoutBuilder, names: _Names, i: int) -> None:
    at, wide = names.layer.format(i), c.heads * c.head_size
    shapes = {"up": (c.ffn, c.hidden), "gate": (c.ffn, c.hidden), "down": (c.hidden, c.ffn)}
    shapes |= {"up": (2 * c.ffn, c.hidden)} if c.joined else {}
    for part in ("", "cross_"):
        shapes |= {f"{part}{role}": (wide, c.hidden) for role in "qkv"}
        shapes[f"{part}o"] = (c.hidden, wide)
    for role, shape in shapes.items():
        if role == "gate" and (c.joined or not c.gated):
            continue
        name = names.inner[role]
        if role == "up" and c.family == "t5" and not c.gated:
            name = name.removesuffix("_1")
        b.both("matrix", f"{i}.{role}", at + name, *shape, biased=c.biased(role))
    for role in ("attn_norm", "cross_norm", "mlp_norm"):
        biased = c.encoder.norm == "layer" and c.encoder.norm_bias
        b.both("norm", f"{i}.{role}", at + names.inner[role], c.hidden, biased=biased)
