"""Models with an encoder and a decoder as plain data. `seq2seq_families` fills this in; `seq2seq`
reads it."""

from __future__ import annotations

from weft.core.dtypes import DType, float32
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.models.arch.config import Activation, Rope
from weft.models.arch.encoder_config import EncoderConfig, Relative

RATE, MAX_SECONDS = 16000, 30  # Hz, and the longest sound that Moonshine hears at once
SAMPLED = ((127, 64), (7, 3), (3, 2))  # kernel and stride of Moonshine's convolutions


def sampled_lengths(samples: int) -> tuple[int, ...]:
    """Returns the length after each of Moonshine's convolutions."""
    out: list[int] = []
    for kernel, stride in SAMPLED:
        samples = (samples - kernel) // stride + 1
        out.append(samples)
    return tuple(out)


def least_samples() -> int:
    """Returns the fewest samples that give a position."""
    count = 1
    for kernel, stride in reversed(SAMPLED):
        count = (count - 1) * stride + kernel
    return count


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
    samples: bool = False  # the encoder takes samples of sound
    position_offset: int = 0  # row of the position table that token 0 uses
    learned: bool = True  # a table of positions in the checkpoint
    sinusoids: bool = False  # a table of positions made here, for both sides
    embed_scale: float = 1.0
    embed_norm: bool = False
    pre_norms: bool = True  # as in EncoderConfig
    act: Activation = "gelu"
    gated: bool = False  # as in EncoderConfig; `joined`: one matrix, up first
    joined: bool = False
    rope: Rope | None = None
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

    def positions(self, shape: tuple[int, ...]) -> int:
        """Returns the encoder's positions for an input of this shape."""
        if self.samples:
            return sampled_lengths(shape[0])[-1]
        return shape[0] // 2 if self.mels else shape[1]

    @property
    def hears(self) -> bool:
        """True if the encoder takes sound."""
        return self.samples or self.mels > 0

    def biased(self, role: str) -> bool:
        """Returns True if the decoder's linear layer `role` has a bias: where the encoder's
        has."""
        role = role.removeprefix("cross_")
        group = "qkv" if role in "qkv" else {"gate": "up"}.get(role, role)
        return bool({role, group} & {*self.encoder.biases})

    @property
    def scale(self) -> float:
        """The factor on q . k."""
        return self.head_size**-0.5 if self.encoder.scaled else 1.0
