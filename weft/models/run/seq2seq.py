"""Models with an encoder and a decoder: they write what they make of an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.host.boundary import guard_methods
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.arch.weights import Weights
from weft.models.run.base import Model
from weft.models.run.placed import Placed
from weft.models.run.seq2seq_runner import (
    STEPS,
    CompiledSeq2Seq,
    EagerSeq2Seq,
    Heads,
    Seq2SeqRunner,
)

if TYPE_CHECKING:
    from weft.models.text.tokenizer import Tokenizer


class Written(NamedTuple):
    """The text that a model wrote, and its ids without the first and the last special one."""

    text: str
    ids: list[int]


class Seq2Seq(Model):
    """A model that reads a text with an encoder and writes another with a decoder."""

    config: Seq2SeqConfig
    _instead = "an encoder with a decoder: use generate(text)"

    def __init__(
        self,
        folder: Path,
        config: Seq2SeqConfig,
        weights: Weights,
        placed: Placed,
        make_tokenizer: Callable[[], Tokenizer | None],
        slots: int = 1,
    ) -> None:
        super().__init__(folder, config, weights, placed.device, make_tokenizer)
        self.placed, self.slots = placed, slots

    @cached_property
    def runner(self) -> Seq2SeqRunner:
        """The runner of the model's steps, made on first use."""
        kind = EagerSeq2Seq if self.device is None else CompiledSeq2Seq
        return kind(self.config, self.placed, self.slots)

    @property
    def cache_bytes(self) -> int:
        """Bytes of what is kept between steps, for all slots."""
        from weft.models.arch.seq2seq import states

        kept = states(self.config, self.slots).values()
        return sum(prod(shape) * dtype.itemsize for shape, dtype in kept)

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int | None = None,
        *,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        **options: Any,
    ) -> Any:
        """Returns what the model writes about a text (str, or ids): a Written; for a list of texts
        a list. It is the most likely token each time, or with `num_beams` the most probable text
        of a search by transformers' rules (at most `slots` beams). Raises LimitError for an input
        that is too long, or more beams."""
        if options:
            raise UsageError(
                f"generate of {self.config.family} takes max_new_tokens, num_beams, length_penalty "
                "and early_stopping, not "
                f"{', '.join(options)}"
            )
        search: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty}
        search["early_stopping"] = early_stopping
        if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], str)):
            return [self.generate(each, max_new_tokens, **search) for each in prompt]
        c = self.config
        tokenizer = (
            self.need_tokenizer("reading text needs one") if isinstance(prompt, str) else None
        )
        ids = prompt if tokenizer is None else tokenizer.encode(prompt)
        found = self.write(ids, max_new_tokens, **search)
        ids = [i for i in found if i not in c.end_ids]
        tokenizer = self.tokenizer
        return Written("" if tokenizer is None else tokenizer.decode(ids), ids)

    def write(
        self, ids: Sequence[int], max_new_tokens: int | None = None, *, num_beams: int = 1,
        length_penalty: float = 1.0, early_stopping: bool | str = False,
    ) -> list[int]:  # fmt: skip
        """Returns the ids that the model writes about the ids of an input; for the options see
        `generate`. The ids of a search are without an end token."""
        c = self.config
        given = np.asarray(ids, np.int64)
        if given.ndim != 1 or not 1 <= len(given) <= c.source:
            raise LimitError(f"the input has {given.size} tokens; expected 1 to {c.source}")
        if given.min() < 0 or given.max() >= c.vocab:
            raise UsageError(f"the input has an id that is not in 0 .. {c.vocab - 1}")
        most = c.max_positions - 1
        most = most if max_new_tokens is None else min(most, max_new_tokens)
        if num_beams != 1 or length_penalty != 1.0 or early_stopping:
            from weft.models.run.seq2seq_beams import most_likely

            read = given.astype(np.int32)
            return most_likely(self, read, most, num_beams, length_penalty, early_stopping)
        self.runner.encode(0, given.astype(np.int32))
        out: list[int] = []
        last = c.start_id
        while len(out) < most:
            logits, _ = self.runner.step([last], [0], [len(out)])
            last = int(logits[0].argmax())
            if not np.isfinite(logits[0, last]):
                raise self.explain_bad("the logits are")
            out.append(last)
            if last in c.end_ids:
                break
        return out

    def _warm_steps(self) -> None:
        """Runs steps of one row and of several."""
        for rows in (1, 4):
            self.runner.step([0] * rows, [0] * rows, range(rows))

    def prefill(
        self, slot: int, ids: Sequence[int], last: Sequence[int], start: int = 0, heads: Heads = ()
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Feeds the decoder's first tokens, from position `start` on. Returns a copy of the logits
        of the positions `last` among them, and the attention of `heads`."""
        rows: list[np.ndarray] = []
        maps: list[np.ndarray] = []
        most = STEPS[-1] if len(last) <= STEPS[1] else STEPS[1]
        for begin in range(0, len(ids), most):
            part = ids[begin : begin + most]
            here = [i - begin for i in last if begin <= i < begin + len(part)]
            places = range(start + begin, start + begin + len(part))
            logits, seen = self.runner.step(part, [slot] * len(part), places, here, heads)
            rows.append(logits.copy())
            maps += [] if seen is None else [seen.copy()]
        return np.concatenate(rows), np.concatenate(maps, 1) if maps else None


guard_methods(Seq2Seq)
