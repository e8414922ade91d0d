"""The Encoder class: turns texts into vectors, in padded batches of few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.host.boundary import guard_methods
from weft.host.forks import lock_of
from weft.models.arch.encoder_config import EncoderConfig, VectorConfig
from weft.models.arch.pooling import COMMON_PROMPTS, Pooling, normalized, pool
from weft.models.arch.weights import Weights
from weft.models.run.base import Model
from weft.models.run.placed import weight_avals

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device


class Encoder(Model):
    """A model that turns texts into vectors: an encoder, or a decoder trained for it."""

    def __init__(
        self,
        folder: Path,
        config: VectorConfig,
        weights: Weights,
        device: Device | None,
        make_tokenizer: Callable[[], Tokenizer | None],
        hidden: Callable[[np.ndarray, np.ndarray], np.ndarray],
        pooling: Pooling,
        max_length: int,
        arrays: Mapping[str, np.ndarray] = {},
    ) -> None:
        """`hidden` computes token vectors; `arrays` are those of the pooling's steps."""
        super().__init__(folder, config, weights, device, make_tokenizer)
        self.pooling, self.max_length = pooling, max_length
        self._hidden, self.arrays = hidden, arrays
        self.pad = config.pad_id if isinstance(config, EncoderConfig) else 0
        self._lock = lock_of(self)  # steps share buffers, so one thread at a time

    def graphs(self) -> dict[str, Graph]:
        """Returns the Graph of one text of at most 32 tokens (other shapes are alike)."""
        from weft.models.arch.encoder import encoder_graph

        avals = weight_avals(self.weights)
        return {"encode": encoder_graph(self.config, avals, 1, min(32, self.max_length))}

    @property
    def widths(self) -> list[int]:
        """The possible numbers of tokens per text in a step; a text takes the smallest that
        fits."""
        sizes = [bucket(1, NARROW, self.max_length)]
        while sizes[-1] < self.max_length:
            sizes.append(bucket(sizes[-1] + 1, NARROW, self.max_length))
        return sizes

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.pooling.width(self.config.hidden)

    def embed(
        self,
        texts: str | Sequence[str],
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool = False,
    ) -> np.ndarray:
        """Returns float32 [N, dim], one row per text; texts are cut at `max_length` tokens.

        `prompt` goes before each text. Without it, the model's prompt called `prompt_name` does, or
        else the model's default, if it has one ("": none). Vectors are the first `truncate_dim`
        numbers (default: as the model's files say); with `normalize` they then have length 1.
        """
        check_dim(truncate_dim, self.dim)
        if isinstance(texts, str):
            texts = [texts]
        tokenizer = self.need_tokenizer("embedding text needs one")
        prompt = self.prompt(prompt, prompt_name)
        rows = tokenizer.encode_batch([prompted(prompt, text) for text in texts])
        out = self.embed_ids(rows, self.skipped(prompt))[:, :truncate_dim]
        return normalized(out) if normalize else out

    def prompt(self, prompt: str | None = None, name: str | None = None) -> str:
        """Returns the prompt before a text; see `embed`. Raises UsageError for an unknown name."""
        known = dict.fromkeys(COMMON_PROMPTS, "") | dict(self.pooling.prompts)
        name = self.pooling.default if name is None else name
        if prompt is not None or name is None:
            return prompt or ""
        if name not in known:
            raise UsageError(f"{self.folder} defines the prompts {', '.join(known)}, not {name}")
        return known[name]

    def skipped(self, prompt: str) -> int:
        """Returns how many tokens of a text after `prompt` are not pooled."""
        if not prompt or self.pooling.include_prompt:
            return 0
        tokenizer = self.need_tokenizer("a prompt needs one")
        return len(tokenizer.encode(prompt)) - bool(tokenizer.around()[1])

    def embed_ids(self, rows: Sequence[Sequence[int]], skip: int | Sequence[int] = 0) -> np.ndarray:
        """Does `embed` for token ids that include [CLS] and [SEP]. The first `skip` ids of each row
        are read but not pooled."""
        self._check_files()
        skips = np.broadcast_to(np.asarray(skip, np.int32), (len(rows),))
        out = np.empty((len(rows), self.dim), np.float32)
        for group in batches([len(r) for r in rows]):
            width = bucket(max(len(rows[i]) for i in group), NARROW, self.max_length)
            height = bucket(len(group), 1, ROWS)
            ids = np.full((height, width), self.pad, np.int32)
            # Padding rows see one token, to avoid an empty softmax.
            lengths = np.ones(height, np.int32)
            for row, i in enumerate(group):
                if not 0 < len(rows[i]) <= self.max_length:
                    raise LimitError(f"a text of {len(rows[i])} tokens; 1 to {self.max_length} fit")
                ids[row, : len(rows[i])] = rows[i]
                lengths[row] = len(rows[i])
            if ids.min() < 0 or ids.max() >= self.config.vocab:
                raise UsageError(f"a token id is outside the vocabulary 0..{self.config.vocab - 1}")
            n = len(group)
            with self._lock:
                hidden = self._hidden(ids, lengths)[:n]
                out[group] = pool(self.pooling, hidden, lengths[:n], skips[group], self.arrays)
        if not np.isfinite(out).all():
            raise self.explain_bad("the embeddings are")
        return out


guard_methods(Encoder)


def check_dim(dim: Any, most: int) -> None:
    """Raises UsageError for a number of dimensions that vectors of length `most` cannot have."""
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
        raise UsageError(f"truncate_dim is {dim!r:.60}; expected an integer")
    if dim is not None and not 1 <= dim <= most:
        raise UsageError(f"truncate_dim is {dim}; this model's vectors have 1 to {most} numbers")


def prompted(prompt: str, text: Any) -> Any:
    """Returns a text with a prompt before it. Other values are unchanged; the tokenizer rejects
    them."""
    return prompt + text if prompt and isinstance(text, str) else text


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
