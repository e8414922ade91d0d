"""The base class of models that read whole texts, in padded batches of few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.records import dataclass
from weft.host.forks import lock_of
from weft.models.arch.encoder_config import EncoderConfig, VectorConfig
from weft.models.arch.weights import Weights
from weft.models.run.base import Model
from weft.models.run.placed import weight_avals

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device

Hidden = Callable[..., np.ndarray]
"""(ids int32 [B, T], lengths int32 [B], and of typed models types int32 [B, T]) -> token vectors
float32 [B, T, hidden]."""


@dataclass(frozen=True)
class Body:
    """The parts of every Reader. `hidden` computes token vectors of texts of at most `max_length`
    tokens; `device` is None for the NumPy oracle."""

    folder: Path  # or a file
    config: VectorConfig
    weights: Weights
    device: Device | None
    make_tokenizer: Callable[[], Tokenizer | None]
    hidden: Hidden
    max_length: int


class Reader(Model):
    """A model that computes token vectors of whole texts: an encoder, or a decoder used as one."""

    config: VectorConfig
    typed = False  # its steps take the parts of a text that tokens are in

    def __init__(self, body: Body) -> None:
        config = body.config
        super().__init__(body.folder, config, body.weights, body.device, body.make_tokenizer)
        self._hidden, self.max_length = body.hidden, body.max_length
        self.pad = config.pad_id if isinstance(config, EncoderConfig) else 0
        self._lock = lock_of(self)  # steps share buffers, so one thread at a time

    def graphs(self) -> dict[str, Graph]:
        """Returns the Graph of one text of at most 32 tokens (other shapes are alike)."""
        from weft.models.arch.encoder import encoder_graph

        avals, length = weight_avals(self.weights), min(32, self.max_length)
        return {"encode": encoder_graph(self.config, avals, 1, length, self.typed)}

    @property
    def widths(self) -> list[int]:
        """The possible numbers of tokens per text in a step; a text takes the smallest that
        fits."""
        sizes = [bucket(1, NARROW, self.max_length)]
        while sizes[-1] < self.max_length:
            sizes.append(bucket(sizes[-1] + 1, NARROW, self.max_length))
        return sizes

    def token_vectors(
        self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
        """Yields, batch by batch, the numbers of rows of token ids, their token vectors float32 [B,
        T, hidden], valid until the next, and their lengths int32 [B]. `types` are those of the
        tokens, for typed models. Raises LimitError, UsageError."""
        self._check_files()
        for group in batches([len(r) for r in rows]):
            width = bucket(max(len(rows[i]) for i in group), NARROW, self.max_length)
            height = bucket(len(group), 1, ROWS)
            ids = np.full((height, width), self.pad, np.int32)
            parts = np.zeros((height, width), np.int32)
            # Padding rows see one token, to avoid an empty softmax.
            lengths = np.ones(height, np.int32)
            for row, i in enumerate(group):
                if not 0 < len(rows[i]) <= self.max_length:
                    raise LimitError(f"a text of {len(rows[i])} tokens; 1 to {self.max_length} fit")
                lengths[row] = n = len(rows[i])
                ids[row, :n] = rows[i]
                if types is not None:
                    parts[row, :n] = types[i]
            if ids.min() < 0 or ids.max() >= self.config.vocab:
                raise UsageError(f"a token id is outside the vocabulary 0..{self.config.vocab - 1}")
            n = len(group)
            with self._lock:
                given: list[Any] = [ids, lengths, *([parts] if self.typed else [])]
                yield group, self._hidden(*given)[:n], lengths[:n]


NARROW = 16  # tokens of the narrowest step
ROWS = 16  # texts in one step
TOKENS = 2048  # tokens in one step, padding included


def bucket(n: int, lo: int, hi: int) -> int:
    """Returns the smallest power of two >= n that is >= lo, but at most hi, so that few Programs
    suffice."""
    size = lo
    while size < n:
        size *= 2
    return min(size, hi)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields indices in groups of similar length, each within ROWS texts and TOKENS padded
    tokens."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    group: list[int] = []
    for i in order:
        wide = bucket(lengths[i], NARROW, 1 << 30)
        if group and (len(group) >= ROWS or wide * (len(group) + 1) > TOKENS):
            yield group
            group = []
        group.append(i)
    if group:
        yield group
