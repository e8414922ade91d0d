"""Models as users hold them: what all share, and decoders (generate, logits)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.boundary import guard_methods
from weft.core.dtypes import float32, int8
from weft.core.errors import CallError, LimitError, ModelError, UsageError
from weft.core.forks import lock_of
from weft.core.mapped import mapped_files
from weft.engine.engine import Engine
from weft.engine.job import Job
from weft.engine.sampler import Sampling
from weft.engine.text import TextStream
from weft.models import matrices
from weft.models.config import DecoderConfig, EncoderConfig, TokenIds
from weft.models.drafting import Drafting
from weft.models.generate import Generation, Part, Piece, Stream, play
from weft.models.paged import Pageable
from weft.models.progress import line_taken
from weft.models.prompts import (
    Prompt,
    as_list,
    checked_count,
    checked_ids,
    checked_stops,
    seeds_of,
)
from weft.models.runner import CompiledRunner, MakeRunner, Runner
from weft.models.slotted import Slotted
from weft.models.weight_dtypes import main_dtype

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.tokenizer import Tokenizer
    from weft.program.device import Device
    from weft.program.program import Program


class Model:
    """What decoders and encoders share. `device` is None for the NumPy oracle."""

    def __init__(
        self,
        folder: Path,  # or a file
        config: DecoderConfig | EncoderConfig,
        weights: Mapping[str, np.ndarray],
        device: Device | None,
        make_tokenizer: Callable[[], Tokenizer | None],
    ) -> None:
        self.folder = folder
        self.config = config
        self.device = device
        self.weights = weights
        self._files = mapped_files(weights.values())
        self._make_tokenizer = make_tokenizer
        self._tokenizer: Tokenizer | None = None
        self._tokenizer_read = False

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's own, read on first use; None where it has none."""
        if not self._tokenizer_read:
            self._tokenizer = self._make_tokenizer()
            self._tokenizer_read = True
        return self._tokenizer

    @property
    def precision(self) -> str:
        """The dtype of the weights and, where linear inputs are rounded to it too, a word on that:
        "float16", "bfloat16 with bfloat16 inputs", "packed, 4.50 bits per weight"; and what keys
        and values are kept in, where it is another dtype."""
        main = main_dtype(self.weights)
        narrow = main is self.config.act_dtype and main is not float32
        said = f"{main.name} with {main.name} inputs" if narrow else main.name
        if self.config.forms:
            said = f"packed, {matrices.bits(self.config.forms, self.weights):.2f} bits per weight"
            said += ", int8 inputs" if self.config.act_dtype is int8 else ""
        kept = getattr(self.config, "kv_dtype", main)
        return said if kept is main else f"{said}, {kept.name} cache"

    def _check_files(self) -> None:
        """Raises FileFormatError when a file that the weights lie in has been cut short."""
        for file in self._files:
            file.check()

    def need_tokenizer(self, why: str) -> Tokenizer:
        if self.tokenizer is None:
            lacks = "tokenizer" if self.folder.is_file() else "tokenizer.json"
            raise UsageError(f"{self.folder} has no {lacks}: {why}")
        return self.tokenizer

    def generate(self, prompt: Any, **options: Any) -> Any:
        raise UsageError(f"{self.config.family} is an encoder: use embed(texts)")

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        raise UsageError(f"{self.config.family} is an encoder: use embed(texts)")

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        raise UsageError(f"{self.config.family} is an encoder: it cannot chat")

    def graphs(self) -> dict[str, Graph]:
        """What the model computes, before compilation, by step ({} on the oracle)."""
        return {}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        raise UsageError(f"{self.config.family} generates text: use generate(prompt)")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CallError(
            f"{self.folder}: a model holds a device, threads and mapped files, which neither "
            "pickle nor copy carries over; pass the folder's name and call weft.load there"
        )

    def explain_bad(self, what: str) -> ModelError:
        """Why numbers went bad: names the first weight that holds NaN or infinity."""
        for role, value in self.weights.items():
            if not all_finite(value):
                bad = ~np.isfinite(value.astype(np.float32, copy=False))
                at = [int(i) for i in np.argwhere(bad)[0]]
                name = self._name(matrices.owner(self.config.forms, role))
                return ModelError(
                    f"{self.folder}: weight {name!r} holds NaN or infinity "
                    f"(first at {at}), so {what} not finite; the checkpoint is damaged"
                )
        return ModelError(
            f"{self.folder}: {what} not finite though every weight is; a value overflowed "
            "its dtype: load with dtype='float32' (and cache='f32')"
        )

    def _name(self, role: str) -> str:
        """What the checkpoint calls the weight that plays `role`."""
        from weft.models import gguf, names

        if self.folder.is_file():
            return gguf.tensor_name(role)
        if isinstance(self.config, DecoderConfig):
            return names.decoder_layout(self.config).weights[role].name
        return names.encoder_layout(self.config).weights[role].name


class Decoder(Drafting, Pageable, Model):
    """A language model. Compiles on first use. What several threads and streams generate at once
    takes turns, step by step."""

    config: DecoderConfig

    def __init__(
        self,
        folder: Path,
        config: DecoderConfig,
        weights: Mapping[str, np.ndarray],
        device: Device | None,
        make_tokenizer: Callable[[], Tokenizer | None],
        make_runner: MakeRunner,
        context: int,
        tokens: TokenIds,
        max_batch: int,
    ) -> None:
        super().__init__(folder, config, weights, device, make_tokenizer)
        self.context, self.tokens, self.max_batch = context, tokens, max_batch
        self._make_runner = make_runner
        self._runners: dict[int, Runner] = {}
        self._engines: dict[int, Engine] = {}
        self._drafting: dict[tuple[object, int], Engine] = {}
        self.turn = self._lock = lock_of(  # steps share buffers: one thread at a time
            self,
            torn=f"{folder}: it was generating in another thread when this process was "
            "forked, so its caches are unknown here; load it again in the child",
        )

    def runner(self, sequences: int = 1) -> Runner:
        """The runner with room for this many sequences at once (at most max_batch): one for a
        single sequence, one (the largest so far) for batches."""
        slots = 1
        while slots < min(sequences, self.max_batch):
            slots *= 2
        fit = [s for s in self._runners if s >= slots and (s > 1) == (slots > 1)]
        if fit:
            return self._runners[min(fit)]
        made = self._make_runner(slots, 0)
        self._runners = {s: r for s, r in self._runners.items() if (s > 1) != (slots > 1)}
        self._runners[slots] = made
        return made

    def divide(
        self, wrap: Callable[[MakeRunner], MakeRunner], fit: Callable[[int], int]
    ) -> None:  # fmt: skip
        """From here on its runners are those of `wrap`, which may make others of these, and
        fit(slots) says how many pages there is room for."""
        self._make_runner, self._fit = wrap(self._make_runner), fit

    def part_runner(self, slots: int, pages: int) -> Runner:
        """A runner of its own for a model that is a part of one, with a cache by slot or (`pages`
        above 0) in pages."""
        return self._make_runner(slots, pages)

    def engine(self, sequences: int = 1) -> Engine:
        """What plays this many sequences at once: one engine for a single one, one (the largest so
        far) for batches."""
        runner = self.runner(sequences)
        made = self._engines.get(runner.slots)
        if made is None:
            self._engines = {s: e for s, e in self._engines.items() if s in self._runners}
            made = self._engines[runner.slots] = Engine(
                Slotted(runner), self.config.vocab, self._texts,
                lambda: self.explain_bad("the logits are"),
                budget=runner.room("prefill"), queue=sys.maxsize, few=1,
            )  # fmt: skip
        return made

    def graphs(self) -> dict[str, Graph]:
        """The Graphs of a prefill and a decode step of one sequence ({} on the oracle)."""
        runner = self.runner()
        if not isinstance(runner, CompiledRunner):
            return {}
        return {kind: runner.graph(kind) for kind in ("prefill", "decode")}

    def programs(self) -> dict[str, Program]:
        """The compiled "prefill" and "decode" Programs of a single sequence ({} on the oracle)."""
        runner = self.runner()
        if not isinstance(runner, CompiledRunner):
            return {}
        return {kind: runner.session(kind).program for kind in ("prefill", "decode")}

    # -- prompts ----------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        """A prompt's ids: text through the tokenizer (which adds bos where the model wants it),
        ids as they are. Raises UsageError for an empty prompt or ids outside the vocabulary,
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
        """Token ids of a flat list, each within the vocabulary."""
        return checked_ids(prompt, self.config.vocab)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """The ids of a conversation (role, content) through the model's chat template."""
        tokenizer = self.need_tokenizer("chatting needs one")
        return tokenizer.encode(tokenizer.chat(messages, **variables), special=False)

    # -- generating -------------------------------------------------------------------------------

    def generate(  # type: ignore[override]
        self,
        prompt: Prompt | Sequence[Prompt],
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | Sequence[int] = 0,
        stop: str | Sequence[str] = (),
        stream: bool = False,
        draft: bool | Decoder = False,
    ) -> Generation | list[Generation] | Stream:
        """New tokens after `prompt` (text or ids): a Generation. A list of prompts gives a list.

        temperature 0 is greedy. Seeds: see `weft.models.generate`. `stop` strings end a text and
        are not part of it. With `stream` an iterator of text pieces (`Piece`) comes back at once.
        `draft` proposes tokens, which changes how long it takes and nothing else: True from what
        was written before, a smaller Decoder with the same tokenizer by reading along.
        Raises UsageError (empty prompt, bad options, unknown ids), LimitError (prompt longer than
        the context), ModelError (NaN in weights or logits).
        """
        prompts, single = as_list(prompt)
        stops, count = checked_stops(stop), checked_count(max_new_tokens)
        if stops:
            self.need_tokenizer("stop strings need one")
        sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
        seeds, eos = seeds_of(seed, len(prompts)), frozenset(self.tokens.eos)
        decoded = stream or bool(stops)  # else the text waits until somebody reads it
        parts = []
        for i, (own, index) in enumerate(seeds):
            ids = tuple(self.encode(prompts[i]))
            job = Job(
                ids, count, sampling, own, index, eos, stops, decoded=decoded, drafts=bool(draft),
            )  # fmt: skip
            parts.append(Part(i, job))
        pieces = Stream(self._play(parts, stream, draft), parts, self._texts)
        if stream:
            return pieces
        for _ in pieces:
            pass
        results = pieces.results
        return results[0] if single else results

    def _play(self, parts: Sequence[Part], shown: bool, draft: bool | Decoder) -> Iterator[Piece]:
        """The pieces of one generation. `shown`: whoever takes the pieces may write them on the
        terminal as they come."""
        begun = False

        @contextmanager
        def turn() -> Iterator[None]:
            with self._lock, line_taken(begun and shown):
                yield

        with self._lock:
            self._check_files()
            engine = self.drafting_engine(draft, len(parts)) if draft else self.engine(len(parts))
        for piece in play(engine, parts, turn):
            begun = True
            yield piece

    def _texts(self) -> TextStream | None:
        return self.tokenizer.stream() if self.tokenizer else None

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 [T, vocab]: row t is the model's view of the token after ids[: t + 1]."""
        with self._lock:
            return np.concatenate([rows.copy() for rows in self.logit_blocks(ids)])

    def logit_blocks(self, ids: Sequence[int] | np.ndarray, first: int = 0) -> Iterator[np.ndarray]:
        """The rows of `logits(ids)` from `first` on, some at a time: float32 [at most 64, vocab],
        each until the next. Raises UsageError where another call on this model comes between."""
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
                raise self.explain_bad("the logits are")
            yield out


guard_methods(Decoder)
