"""Models with an encoder and a decoder as plain data. `seq2seq_families` fills this in; `seq2seq`
reads it."""

from __future__ import annotations

from weft.core.dtypes import DType, float32
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.models.arch.config import Activation
from weft.models.arch.encoder_config import EncoderConfig, Relative


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Every family with an encoder and a decoder as one set of choices. The fields are the
    decoder's; `encoder` has the encoder's. Sizes are in elements."""

    family: str
    encoder: EncoderConfig
    vocab: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    head_size: int
    max_positions: int
    mels: int = 0  # features of sound that the encoder takes; 0: it takes tokens
    position_offset: int = 0  # row of the position table that token 0 uses
    learned: bool = True  # a table of positions in the checkpoint
    sinusoids: bool = False  # a table of positions made here, for both sides
    embed_scale: float = 1.0
    embed_norm: bool = False
    pre_norms: bool = True  # as in EncoderConfig
    act: Activation = "gelu"
    gated: bool = False
    key_bias: bool = True  # False: keys' projections have none, where others do
    relative: Relative | None = None
    logit_scale: float = 1.0
    logit_bias: bool = False
    tied: bool = True
    start_id: int = 0
    end_ids: tuple[int, ...] = ()
    pad_id: int = 0
    kv_dtype: DType = float32
    act_dtype: DType = float32
    forms: tuple[tuple[str, Form], ...] = ()  # like a decoder's

    @property
    def source(self) -> int:
        """The longest input of the encoder's layers, in positions."""
        return self.encoder.max_positions

    @property
    def biased(self) -> bool:
        """True if linear layers have biases."""
        return bool(self.encoder.biases)

    @property
    def scale(self) -> float:
        """The factor on q . k."""
        return self.head_size**-0.5 if self.encoder.scaled else 1.0
