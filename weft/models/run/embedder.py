"""The Encoder class: turns texts into vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import UsageError
from weft.host.boundary import guard_methods
from weft.models.arch.pooling import COMMON_PROMPTS, Pooling, normalized, pool
from weft.models.run.reader import Body, Reader

if TYPE_CHECKING:
    pass


class Encoder(Reader):
    """A model that turns texts into vectors: an encoder, or a decoder trained for it."""

    def __init__(self, body: Body, pooling: Pooling, arrays: Mapping[str, np.ndarray]) -> None:
        """`arrays` are those of the pooling's steps."""
        super().__init__(body)
        self.pooling, self.arrays = pooling, arrays

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
            raise UsageError(f"{self.called} defines the prompts {', '.join(known)}, not {name}")
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
        skips = np.broadcast_to(np.asarray(skip, np.int32), (len(rows),))
        out = np.empty((len(rows), self.dim), np.float32)
        for group, hidden, lengths in self.token_vectors(rows):
            out[group] = pool(self.pooling, hidden, lengths, skips[group], self.arrays)
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
