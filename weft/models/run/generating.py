"""The part of a decoder that generates: turns the options of a call into the engine's jobs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import UsageError
from weft.core.notices import say
from weft.engine.defaults import NO_DEFAULTS, GenerationDefaults
from weft.engine.engine import Engine
from weft.engine.job import Job, LogitsFunction, TextStream
from weft.host.progress import line_taken
from weft.hub.names import name_of
from weft.models.arch.config import DecoderConfig, TokenIds
from weft.models.run.base import Model
from weft.models.run.beams import OFF, BeamSearch
from weft.models.run.constraints import constraint_of, grammars_of
from weft.models.run.edits import Edit
from weft.models.run.generate import Generation, PromptRun, Stream, TextChunk, play
from weft.models.run.own_adapter import adapted
from weft.models.text.picture_prompt import PicturePrompt
from weft.models.text.prompts import (
    Prompt,
    as_list,
    checked_count,
    checked_number,
    checked_stop_ids,
    checked_stops,
    seeds_of,
)

if TYPE_CHECKING:
    from weft.engine.drafts import Drafts
    from weft.models.grammar.grammars import Grammars
    from weft.models.run.model import Decoder
    from weft.models.run.runner import Runner

NEW_TOKENS = 64  # of an answer, if neither the caller nor the model's author says a number


class Generating(Model):
    """A model that generates text."""

    config: DecoderConfig
    tokens: TokenIds
    context: int
    advice: Callable[[], GenerationDefaults] = staticmethod(lambda: NO_DEFAULTS)
    _lock: AbstractContextManager[Any]

    @cached_property
    def defaults(self) -> GenerationDefaults:
        """The author's settings for generating, read on first use. Raises ModelError."""
        return self.advice()

    @abc.abstractmethod
    def engine(self, sequences: int = 1, draft: Decoder | None = None) -> Engine:
        """Returns the engine for this many sequences at once."""

    @abc.abstractmethod
    def new_engine(self, runner: Runner, drafts: Drafts | None = None) -> Engine:
        """Returns an engine of its own over a runner."""

    @abc.abstractmethod
    def _fitted(self, edits: Sequence[Edit]) -> list[Edit]:
        """Returns edits that fit the model."""

    @abc.abstractmethod
    def _edited(
        self, sequences: int, edits: Sequence[Edit]
    ) -> AbstractContextManager[Runner | None]:
        """Lends a runner with changes."""

    @abc.abstractmethod
    def encode(self, prompt: Prompt) -> list[int]:
        """Returns a prompt's ids."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters that are loaded."""
        return ()

    @abc.abstractmethod
    def check_adapter(self, name: str) -> None:
        """Raises UsageError for an adapter that the model was not loaded with."""

    def generate(  # type: ignore[override]
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | Sequence[int] | None = None,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        draft: bool | Decoder = False,
        adapter: str = "",
        min_p: float | None = None,
        *,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = (),
        n: int = 1,
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        min_new_tokens: int = 0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        json_schema: Mapping[str, Any] | bool | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        logits: LogitsFunction | None = None,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        edits: Sequence[Edit] = (),
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> Generation | list[Generation] | list[list[Generation]] | Stream:
        """Generates new tokens after `prompt` (text or ids) and returns a Generation; a list of
        prompts returns a list. With `n` above 1 each prompt has a list of n answers in its place.
        `messages`, in place of a prompt, are a conversation as in `chat`.

        **Choosing.** `temperature`, `top_k`, `top_p`, `min_p`, the penalties and `logit_bias` are
        those of `weft.engine.sampler.Sampling`, which the server has too. temperature 0 is greedy.
        None takes the author's setting (generation_config.json, a GGUF file's general.sampling
        keys), and a notice says so. Without one: 64 new tokens, greedy. Seeds: see
        `weft.models.run.generate`; None takes the next number of the stream that
        `weft.manual_seed` restarts. `logits(ids, row)` takes the ids so far (a list, prompt
        included) and a copy of the model's logits, float32 [vocab]; it returns the logits to choose
        from, before the sampling rule. It runs on the host, once per token: its own time and a copy
        of 4 * vocab bytes.

        **Ending.** `stop` strings end a text and are not part of it; so do the tokens `stop_ids`.
        With `ignore_eos` the model's own end tokens do not end it. Nothing ends it before
        `min_new_tokens`.

        **Form.** `json_schema` (a dict; True for any JSON), `regex` (of the whole text) or
        `grammar` (Lark or GBNF): at most one. They need llguidance (the extra `serve`).

        **Told.** `logprobs`: the number of most probable tokens to return with each new one, 0 or
        more (`Generation.logprobs`); `prompt_logprobs`: the same for the prompt.

        **Inside.** `edits` change values at named places in every step (`weft.Edit`); the call then
        has Programs, and a cache of keys and values, of its own.

        **Beams.** `num_beams` above 1 searches for the most probable texts; `length_penalty` and
        `early_stopping` (False, True or "never") are transformers'. It returns the `n` best. It
        takes penalties and biases, but no temperature, form, function, stop strings, logprobs,
        drafts, streams or edits.

        With `stream` it returns an iterator of text pieces (`TextChunk`) at once. `draft` proposes
        tokens, which changes the time but not the result. True takes them from earlier text; a
        smaller Decoder with the same tokenizer predicts them. `adapter`: one that the model was
        loaded with ("": none).

        Raises UsageError (empty prompt, bad options, unknown ids), LimitError (prompt longer than
        the context), ModelError (NaN in weights or logits).
        """
        if (prompt is None) == (messages is None):
            raise UsageError("give a prompt, or the messages of a conversation")
        prompts, single = as_list(prompt if messages is None else self.chat_ids(messages))
        stops = checked_stops(self.defaults.stop if stop is None else stop)
        asked = None if max_new_tokens is None else checked_count(max_new_tokens)
        if stops:
            self.need_tokenizer("stop strings need one")
        self.check_adapter(adapter)
        n = checked_number("n", n, 1)
        least = checked_number("min_new_tokens", min_new_tokens, 0)
        beams = BeamSearch.of(num_beams, length_penalty, early_stopping, n, self._texts)
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        if beams is not None:
            given = {k: OFF[k] if value is None else value for k, value in given.items()}
        given["repetition_penalty"] = repetition_penalty
        sampling = self.defaults.sampling(
            given | {
                "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
                "logit_bias": logit_bias,
            }
        )  # fmt: skip
        say_defaults(self, given | {"max_new_tokens": asked, "stop": stop is not None})
        if logits is not None and not callable(logits):
            raise UsageError(f"logits is {logits!r:.60}; expected a function of (ids, row)")
        for name, number in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
            checked_number(name, 0 if number is None else number, 0)
        start = constraint_of(
            lambda: self._grammars, json_schema=json_schema, regex=regex, grammar=grammar
        )
        ends = checked_stop_ids(stop_ids, self.config.vocab)
        decoded = stream or bool(stops)  # otherwise the text is decoded when it is first read
        base = Job(
            (), 0, sampling, eos=ends | (frozenset() if ignore_eos else {*self.tokens.eos}),
            stop=stops, logprobs=logprobs, prompt_logprobs=prompt_logprobs, adapter=adapter,
            drafts=bool(draft), decoded=decoded, constraint=start, logits=logits,
            min_new_tokens=least,
        )  # fmt: skip
        jobs = []
        for one in prompts:
            ids = tuple(self.encode(one))
            insets = one.insets if isinstance(one, PicturePrompt) else None
            count = self.defaults.limit(len(ids), asked, NEW_TOKENS) or 0
            room = min(count, self.context - len(ids) + 1)
            job = replace(base, prompt=ids, max_new_tokens=room, insets=insets)
            jobs.append(adapted(job, self.adapters))
        if beams is not None:
            beams.check(base, stream, edits)
            return _shaped([beams.search(job, self._rows) for job in jobs], n, single)
        if seed is None:  # the stream stays where it is if nothing is drawn
            from weft.tensor.random import draw_seed

            seed = draw_seed() if sampling.temperature else 0
        parts = [
            PromptRun(i // n, replace(jobs[i // n], seed=own, index=index), i % n)
            for i, (own, index) in enumerate(seeds_of(seed, len(prompts), n))
        ]
        changes = self._fitted(edits)
        if changes and not isinstance(draft, bool):
            raise UsageError(
                "edits do not go with a draft model; draft=True takes drafts from texts"
            )
        pieces = Stream(self._play(parts, stream, draft, changes), parts, self._texts)
        if stream:
            return pieces
        for _ in pieces:
            pass
        results = pieces.results
        return _shaped([results[i : i + n] for i in range(0, len(results), n)], n, single)

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        variables: Mapping[str, Any] = {},
        **options: Any,
    ) -> Any:
        """Answers a conversation; options and result are those of `generate`. `messages` are
        dicts with role and content, through the model's chat template; a text is one message of the
        user's. `variables` are the template's, such as enable_thinking or tools. Raises UsageError
        for a model without a template.

        >>> model = weft.load("box-chat", device="cpu")
        >>> model.chat("Say hello.", max_new_tokens=4).text[:1].isalpha()
        True
        """
        talk = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if not isinstance(talk, Sequence) or not all(isinstance(m, Mapping) for m in talk):
            raise UsageError("messages are a text, or a list of dicts with role and content")
        return self.generate(self.chat_ids(talk, **variables), **options)

    def _play(
        self,
        parts: Sequence[PromptRun],
        shown: bool,
        draft: bool | Decoder = False,
        edits: Sequence[Edit] = (),
    ) -> Iterator[TextChunk]:
        """Yields the pieces of one generation. `shown`: the caller may write the pieces to the
        terminal as they come."""
        begun = False

        @contextmanager
        def turn() -> Iterator[None]:
            with self._lock, line_taken(begun and shown):
                yield

        with self._lock:
            self._check_files()
            own = self._edited(len(parts), edits) if edits else nullcontext()
        with own as runner:
            with self._lock:
                if runner is not None:
                    engine = self.new_engine(runner)
                else:
                    engine = self.engine(len(parts), None if isinstance(draft, bool) else draft)
            for piece in play(engine, parts, turn):
                begun = True
                yield piece

    def _rows(self, jobs: Sequence[Job]) -> list[np.ndarray]:
        """Returns the logits float32 [vocab] after each job's prompt."""
        found: dict[int, np.ndarray] = {}

        def kept(i: int, ids: list[int], row: np.ndarray) -> np.ndarray:
            found[i] = row
            return row

        parts = [PromptRun(i, replace(job, logits=partial(kept, i))) for i, job in enumerate(jobs)]
        for _ in self._play(parts, False):
            pass
        return [found[i] for i in range(len(jobs))]

    @cached_property
    def _grammars(self) -> Grammars:
        return grammars_of(self)  # type: ignore[arg-type]

    def _texts(self) -> TextStream | None:
        return self.tokenizer.stream() if self.tokenizer else None


def _shaped(
    answers: list[list[Generation]], n: int, single: bool
) -> Generation | list[Generation] | list[list[Generation]]:
    """Returns the answers to each prompt as `generate` does."""
    if n > 1:
        return answers[0] if single else answers
    return answers[0][0] if single else [one[0] for one in answers]


def say_defaults(model: Generating, given: Mapping[str, Any]) -> None:
    """Gives a notice, once, of the author's settings that take effect; `given` are the caller's."""
    told = model.defaults.told(given)
    if told:
        say(f"{name_of(model.folder)}: sampling as {model.defaults.where} says: {told}")
