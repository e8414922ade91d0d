"""The Decoder class: generates text and computes logits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import LimitError, ModelError, UsageError
from weft.core.weak import weakly
from weft.engine.engine import Engine
from weft.engine.play import FEW
from weft.host.boundary import guard_methods
from weft.host.forks import lock_of
from weft.models.arch.config import DecoderConfig, TokenIds
from weft.models.arch.inputs import (
    PAGE,
    by_slot,
    cache_bytes,
    columns,
    position_bytes,
    states,
)
from weft.models.arch.weights import Weights
from weft.models.run.adapter_slots import AdapterSlots
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.drafting import drafts_by
from weft.models.run.eager_runner import EagerRunner
from weft.models.run.fit import pages_in
from weft.models.run.inset_rows import blind
from weft.models.run.inspecting import Inspecting
from weft.models.run.placed import Placed
from weft.models.run.runner import DECODE, PREFILL, MakeRunner, Runner
from weft.models.text.parts import question, with_places
from weft.models.text.prompts import (
    Prompt,
    checked_ids,
)

if TYPE_CHECKING:
    from weft.engine.drafts import Drafts
    from weft.graph.ir import Graph
    from weft.models.run.eyes import Eyes
    from weft.models.run.judge import Ranked
    from weft.models.text.picture_prompt import PicturePrompt
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.program import Program

KINDS = (PREFILL, DECODE)  # the steps of one sequence


class Decoder(Inspecting):
    """A language model, compiled on first use. Several threads and streams that generate at once
    take turns, step by step."""

    config: DecoderConfig
    fixed = False  # True if a file fixes the numbers of slots and pages
    slots: AdapterSlots | None = None  # room for adapters that come later
    make_eyes: Callable[[Tokenizer], Eyes] | None = None

    def __init__(
        self,
        folder: Path,
        config: DecoderConfig,
        weights: Weights,
        placed: Placed,
        make_tokenizer: Callable[[], Tokenizer | None],
        tokens: TokenIds,
        context: int,
        max_batch: int,
    ) -> None:
        """`placed` has the weights, the tables by position for `context`, and the adapters."""
        super().__init__(folder, config, weights, placed.device, make_tokenizer)
        self.context, self.tokens, self.max_batch = context, tokens, max_batch
        self.placed = placed
        self._make_runner: MakeRunner | None = None  # set if other machines have a part
        self._runners: dict[int, Runner] = {}
        self._engines: dict[tuple[Decoder | None, int], Engine] = {}
        self._fit: Callable[[int], int] | None = None  # set if other machines have a part
        self.turn = self._lock = lock_of(  # steps share buffers, so one thread at a time
            self,
            torn=f"{folder}: it was generating in another thread when this process was "
            "forked, so its caches are unknown here; load it again in the child",
        )

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters that are loaded, in the order of their numbers."""
        return tuple(filter(None, self.placed.adapters))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, adapters included."""
        more = (x for role, x in self.placed.weights.outlines.items() if ".loras_" in role)
        return super().nbytes + sum(x.nbytes for x in more)

    def check_adapter(self, name: str) -> None:
        """Raises UsageError for an adapter ("": none) that the model was not loaded with."""
        if name and name not in self.adapters:
            known = ", ".join(self.adapters) or "none: weft.load(..., adapters={name: folder})"
            raise UsageError(f"unknown adapter {name!r:.100}; loaded: {known}")

    def runner(self, sequences: int = 1) -> Runner:
        """Returns the runner for this many sequences at once (at most max_batch): one for a single
        sequence, one (the largest so far) for batches. Its pages hold the whole context of each.
        Once `generate` has used it, its tables are the engine's."""
        slots = self.slots_for(sequences)
        fit = [s for s in self._runners if s >= slots and (s > 1) == (slots > 1)]
        if fit:
            return self._runners[min(fit)]
        made = self.new_runner(slots, slots * columns(self.context))
        self._runners = {s: r for s, r in self._runners.items() if (s > 1) != (slots > 1)}
        self._runners[slots] = made
        return made

    def slots_for(self, sequences: int) -> int:
        """Returns the number of slots of a runner for this number of sequences."""
        return 1 << (min(sequences, self.max_batch) - 1).bit_length()

    def new_runner(self, slots: int, pages: int) -> Runner:
        """Returns a runner of its own for `slots` sequences at once, with keys and values in
        `pages` pages. It shares only the weights with the model's other runners. Raises UsageError
        for numbers below 1."""
        for what, given in (("slots", slots), ("pages", pages)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise UsageError(f"{what} is {given!r}; expected 1 or more")
        return (self._make_runner or self._own_runner)(slots, pages)

    def _own_runner(self, slots: int, pages: int) -> Runner:
        if self.config.traced is not None and self.config.traced.whole:
            from weft.models.run.recomputed import recomputing

            return recomputing(self.config, self.placed, self.context, slots, pages)
        kind = EagerRunner if self.device is None else CompiledRunner
        return kind(self.config, self.placed, self.context, slots, pages)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of keys and values in every layer."""
        return position_bytes(self.config) * PAGE

    def cache_bytes(self, slots: int, pages: int) -> int:
        """Returns the bytes of the keys and values of a runner (see `new_runner`)."""
        return cache_bytes(self.config, slots, pages)

    def pages_that_fit(self, slots: int, share: float = 0.9) -> int:
        """Returns how many pages fit in the device's free memory, at most as many as `slots` full
        sequences need.

        It uses `share` of the memory that remains after the weights (if no runner has placed them
        yet) and the states of short convolutions and recurrences. If the device cannot report
        free memory, it returns that maximum. If other machines have a part of the model, the number
        fits on all of them. Raises OutOfMemoryError if not even one page fits.
        """
        return self.own_pages(slots, share) if self._fit is None else self._fit(slots)

    def own_pages(self, slots: int, share: float = 0.9) -> int:
        """Returns `pages_that_fit` for this machine alone."""
        most = slots * columns(self.context)
        free = 0 if self.device is None else self.device.free_memory()
        if not free:
            return most
        kept = states(self.config, slots, self.context, 1).items()
        taken = sum(math.prod(s) * d.itemsize for name, (s, d) in kept if by_slot(name))
        taken += 0 if self._runners else self.nbytes
        return pages_in(int(share * (free - taken)), partial(self.cache_bytes, slots), most)

    def divide(self, make_runner: MakeRunner, fit: Callable[[int], int]) -> None:
        """Replaces the maker of runners; fit(slots) then returns the number of pages that fit."""
        self._make_runner, self._fit = make_runner, fit

    def engine(self, sequences: int = 1, draft: Decoder | None = None) -> Engine:
        """Returns the engine for this many sequences at once: one for a single sequence, one (the
        largest so far) for batches, and others for each `draft` that predicts tokens. Raises
        UsageError for a `draft` that does not fit."""
        runner = self.runner(sequences)
        made = self._engines.get((draft, runner.slots))
        if made is None:
            drafts = drafts_by(self, draft, runner.slots, runner.pages)
            if draft is not None:
                runner = self.new_runner(runner.slots, runner.pages)
            self._engines = {
                k: e for k, e in self._engines.items() if k[0] or k[1] in self._runners
            }
            made = self._engines[draft, runner.slots] = self.new_engine(runner, drafts)
        return made

    def new_engine(self, runner: Runner, drafts: Drafts | None = None) -> Engine:
        """Returns an engine of its own over a runner."""
        return Engine(
            runner, self.config.vocab, weakly(self._texts), weakly(self._explain_logits),
            budget=runner.room(PREFILL), queue=sys.maxsize, drafts=drafts,
            few=1 if runner.slots == 1 else FEW,
        )  # fmt: skip

    def graphs(self) -> dict[str, Graph]:
        """Returns the Graphs of a prefill and a decode step of one sequence ({} on the oracle)."""
        runner = self.runner()
        if not isinstance(runner, CompiledRunner):
            return {}
        return {kind: runner.graph(kind) for kind in KINDS}

    def programs(self) -> dict[str, Program]:
        """Returns the compiled "prefill" and "decode" Programs of one sequence ({} on the
        oracle)."""
        runner = self.runner()
        if not isinstance(runner, CompiledRunner):
            return {}
        return {kind: runner.session(kind).program for kind in KINDS}

    # -- prompts ----------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns a prompt's ids: text through the tokenizer (which adds bos if the model wants
        it), ids unchanged. Raises UsageError for an empty prompt or ids outside the vocabulary,
        LimitError for a prompt longer than the context."""
        if isinstance(prompt, str):
            ids = self.need_tokenizer("pass token ids instead of text").encode(prompt)
            if not ids:
                raise UsageError("the prompt is empty; give at least one character")
        else:
            ids = self.check_ids(prompt)
        if len(ids) > self.context:
            most = self.config.max_positions
            more = f"; load with context={most} for more" if self.context < most else ""
            raise LimitError(
                f"the prompt has {len(ids)} tokens; the context holds {self.context}{more}"
            )
        return ids

    def check_ids(self, prompt: Any) -> list[int]:
        """Returns the token ids of a flat list, each within the vocabulary."""
        return checked_ids(prompt, self.config.vocab)

    @cached_property
    def eyes(self) -> Eyes | None:
        """The reader of pictures; None for a model without one. Loaded on first use. Raises
        ModelError."""
        if self.make_eyes is None:
            return None
        return self.make_eyes(self.need_tokenizer("pictures in a prompt need one"))

    def need_eyes(self) -> Eyes:
        """Returns the eyes. Raises UsageError for a model that reads text alone."""
        if self.eyes is None:
            why = blind(self.config)
            raise UsageError(f"{self.called} reads text alone, and a picture was given{why}")
        return self.eyes

    def look(self, text: str, pictures: Sequence[Any]) -> PicturePrompt:
        """Returns the prompt of a question about pictures (paths, bytes, arrays uint8 [H, W, 3] or
        images of Pillow's) and videos (`weft.vision.films.Video`). It goes through the chat
        template, if there is one. Without one they go before the text, unless it has places."""
        eyes, tokenizer = self.need_eyes(), self.need_tokenizer("pictures need one")
        if tokenizer.has_chat:
            found = self.chat_ids([{"role": "user", "content": question(text, pictures)}])
            assert not isinstance(found, list)
            return found
        return eyes.prompt(eyes.led(text, pictures), pictures, tokenizer, True)

    def parted(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        """Returns messages as the chat template takes them, with places for pictures, and the
        pictures in order (`parts.with_places`)."""
        lists = self.make_eyes is not None and self.need_tokenizer("chatting needs one").takes_parts
        return with_places(messages, lists)

    def chat_ids(  # type: ignore[override]
        self, messages: Sequence[Mapping[str, Any]], **variables: Any
    ) -> list[int] | PicturePrompt:
        """Returns the prompt of a conversation (role, content) through the model's chat template:
        its ids, or ids with places for pictures if messages have some (`parts.with_places`)."""
        tokenizer = self.need_tokenizer("chatting needs one")
        said, pictures = self.parted(messages)
        if not pictures:
            return tokenizer.encode(tokenizer.chat(said, **variables), special=False)
        eyes = self.need_eyes()
        return eyes.prompt(tokenizer.chat(said, **variables), pictures, tokenizer, False)

    def _explain_logits(self) -> ModelError:
        return self.explain_bad("the logits are")

    # -- reranking --------------------------------------------------------------------------------

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        truncate: bool = True,
        raw: bool = False,
        instruction: str | None = None,
    ) -> np.ndarray:
        """Returns how well the query and the document of each pair match, float32 [N], for models
        trained to say yes or no about them, such as Qwen3-Reranker. It is the sigmoid of the logit
        of yes less that of no; with `raw` without the sigmoid. `instruction`: what to look for."""
        from weft.models.run.rerank import scores

        return scores(self, pairs, truncate, raw, instruction)

    def rerank(  # type: ignore[override]
        self,
        query: str,
        documents: Sequence[str],
        top: int | None = None,
        truncate: bool = True,
        instruction: str | None = None,
    ) -> list[Ranked]:
        """Returns the `top` documents (None: all) by their `score` with the query, best first."""
        from weft.models.run.judge import paired, ranked

        return ranked(self.score(paired(query, documents), truncate, False, instruction), top)

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float32 [T, vocab]: row t has the logits of the token after ids[: t + 1]."""
        with self._lock:
            return np.concatenate([rows.copy() for rows in self.logit_blocks(ids)])

    def logit_blocks(self, ids: Sequence[int] | np.ndarray, first: int = 0) -> Iterator[np.ndarray]:
        """Yields the rows of `logits(ids)` from `first` on, in blocks float32 [at most 64, vocab],
        each valid until the next. Raises UsageError if another call on this model comes between
        blocks."""
        checked = self.encode(ids)
        with self._lock:
            self._check_files()
            engine = self.engine()
            blocks = engine.read(checked, first)
        while True:
            with self._lock:
                out = next(blocks, None)
            if out is None:
                return
            if not np.isfinite(out.max(initial=0.0)):
                raise self._explain_logits()
            yield out


guard_methods(Decoder, but=["gradients"])  # its errors are those of the caller's function
