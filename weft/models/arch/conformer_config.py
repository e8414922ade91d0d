"""Encoders of sound that name a token for each moment (CTC) as plain data. `conformer` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.dtypes import DType, float32
from weft.core.errors import ModelError
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.importers.hf_config import Fields
from weft.models.arch.config import Activation
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    activation,
    refuse,
)
from weft.models.arch.model_fields import seen

CTC = ("parakeet_ctc",)
TRANSDUCERS = ("parakeet_tdt", "parakeet_rnnt")
STRIDE = 2  # of each step that makes fewer frames
_OUTER: Mapping[str, Any] = {"vocab_size": 1025, "pad_token_id": 1024, "encoder_config": None}
_INNER: Mapping[str, Any] = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8,
    "num_key_value_heads": None, "intermediate_size": 4096, "hidden_act": "silu",
    "attention_bias": True, "convolution_bias": True, "conv_kernel_size": 9,
    "subsampling_factor": 8, "subsampling_conv_channels": 256, "num_mel_bins": 80,
    "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2, "scale_input": True,
    "max_position_embeddings": 5000,
}  # fmt: skip


@dataclass(frozen=True)
class ConformerConfig:
    """A Fast Conformer with a CTC head (Rekesh et al., arXiv:2305.05084). Sizes are in elements;
    `halvings` steps of `channels` channels make each one frame of two."""

    family: str
    vocab: int
    blank: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    mels: int
    channels: int
    halvings: int
    reach: int  # frames that each of those steps sees
    kernel: int  # positions that a layer's convolution sees
    act: Activation
    biased: bool
    conv_biased: bool
    input_scale: float
    act_dtype: DType = float32
    forms: tuple[tuple[str, Form], ...] = ()  # like a decoder's

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def positions(self, frames: int) -> int:
        """Returns the positions for this number of frames."""
        for _ in range(self.halvings):
            frames = (frames + 2 * (self.reach // 2) - self.reach) // STRIDE + 1
        return frames


def read_conformer(raw: Fields) -> ConformerConfig:
    """Returns the config of a model that hears by CTC. Raises ModelError."""
    kind = raw.text("model_type")
    if kind in TRANSDUCERS:
        raise ModelError(f"{raw.where}: {kind} is a transducer; weft hears Parakeet with CTC")
    c = seen(raw, kind, _OUTER)
    inner = raw.section("encoder_config")
    if inner is None:
        raise ModelError(f"{raw.where}: encoder_config is missing")
    e = seen(inner, "parakeet_encoder", _INNER)
    hidden = e.integer("hidden_size", 2, MAX_HIDDEN)
    heads = e.integer("num_attention_heads", 1, MAX_HEADS)
    refuse(e, "num_key_value_heads", heads, "fewer heads of keys than of queries")
    refuse(e, "subsampling_conv_stride", STRIDE, "another stride")
    mels, factor = e.integer("num_mel_bins", 1, 1024), e.integer("subsampling_factor", 2, 64)
    sizes = {name: e.integer(name, 1, 255) for name in
             ("conv_kernel_size", "subsampling_conv_kernel_size")}  # fmt: skip
    odd = all(size % 2 for size in sizes.values())
    if hidden % heads or hidden % 2 or factor & (factor - 1) or mels % factor or not odd:
        raise ModelError(
            f"{e.where}: expected hidden_size a multiple of the heads and of 2, num_mel_bins a "
            "multiple of subsampling_factor, that a power of 2, and odd kernel sizes"
        )
    vocab = c.integer("vocab_size", 2, MAX_VOCAB)
    return ConformerConfig(
        family=kind,
        vocab=vocab,
        blank=c.integer("pad_token_id", 0, vocab - 1),
        hidden=hidden,
        layers=e.integer("num_hidden_layers", 1, MAX_LAYERS),
        heads=heads,
        ffn=e.integer("intermediate_size", 1, MAX_FFN),
        mels=mels,
        channels=e.integer("subsampling_conv_channels", 1, MAX_HIDDEN),
        halvings=factor.bit_length() - 1,
        reach=sizes["subsampling_conv_kernel_size"],
        kernel=sizes["conv_kernel_size"],
        act=activation(e, "hidden_act", "silu"),
        biased=e.flag("attention_bias"),
        conv_biased=e.flag("convolution_bias"),
        input_scale=hidden**0.5 if e.flag("scale_input") else 1.0,
    )
