"""A model that is being served: what requests need of it besides its weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import LimitError, UsageError, WeftError
from weft.core.text import size
from weft.engine.engine import Engine
from weft.engine.job import Constraint, Job, SampledToken
from weft.models.grammar.vocabulary import token_bytes
from weft.models.run.base import Model
from weft.models.run.constraints import grammars_of
from weft.models.run.drafting import drafts_by
from weft.models.run.embedder import Encoder
from weft.models.run.model import Decoder
from weft.models.run.reader import batches
from weft.serve.adapters import ServedAdapters
from weft.serve.expiry import Expiry
from weft.serve.keys import hold_tokens
from weft.serve.metrics import ServerMetrics
from weft.serve.player import EngineThread
from weft.serve.pool import Pools
from weft.serve.prints import print_of
from weft.serve.sessions import SlotTable
from weft.serve.settings import ServeSettings, caches, pages_of
from weft.serve.toolcalls.choose import choose
from weft.serve.watched import WatchedFiles

if TYPE_CHECKING:
    from weft.models.grammar.grammars import Grammars
    from weft.models.text.tokenizer import Tokenizer

LONG = 50_000  # characters of a text that takes a tenth of a second or more
BLANK = np.zeros((224, 224, 3), np.uint8)  # a picture
TOGETHER = 16  # texts that are read as one item of work


@dataclass
class TokenizerObjects:
    """Objects made from a model's tokens at their first use, once for all of its names."""

    grammars: Grammars | None = None
    making: threading.Lock = field(default_factory=threading.Lock)
    bytes: list[bytes] | None = None


class Served:
    """The part that decoders and encoders share. `name` is what requests call the model. Made on
    the event loop that serves it."""

    def __init__(self, name: str, model: Model) -> None:
        self.name, self.model, self.created = name, model, int(time.time())
        model.called = name
        self.watched = WatchedFiles(model._files)
        self.pools = Pools()
        self.used = time.monotonic()
        self.users = 0  # requests that are being answered
        self.expiry = Expiry()
        self.print = print_of(model)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises UsageError if it has none."""
        return self.model.need_tokenizer("serving text needs one")

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        begin: bool = True,
    ) -> str:
        """A conversation through the model's chat template, as text, with what begins the answer or
        not. Raises UsageError where the model has none, or the template refuses."""
        tokenizer = self.tokenizer
        if not self.has_chat:
            raise UsageError(f"{self.name} lacks a chat template; prompt the model with plain text")
        template = tokenizer.chat_template()
        return template.render(messages, begin, tokenizer.special_tokens, variables)

    async def encoded(
        self, texts: Sequence[str], special: bool = True, unlimited: bool = False
    ) -> list[list[int]]:
        """The token ids of texts. Long texts queue separately, so that short ones do not wait for
        them. unlimited: allows more tokens than the model takes. Raises WeftError."""
        if not texts:
            return []
        tokenizer = self.whole if unlimited else self.tokenizer
        long = max(map(len, texts)) > LONG
        pool = self.pools.long_texts if long else self.pools.texts
        size = 1 if long else TOGETHER
        parts = [texts[i : i + size] for i in range(0, len(texts), size)]
        made = await pool.each(lambda part: tokenizer.encode_batch(part, special), parts)
        return [ids for part in made for ids in part]

    @functools.cached_property
    def whole(self) -> Tokenizer:
        """The tokenizer without the model's limit, so that too long a text shows."""
        return self.tokenizer.unlimited()

    @functools.cached_property
    def has_chat(self) -> bool:
        """True if it has a chat template."""
        tokenizer = self.model.tokenizer
        return tokenizer is not None and tokenizer.has_chat

    @property
    def idle(self) -> bool:
        """True if no request uses the model."""
        return self.users == 0

    @property
    def nbytes(self) -> int:
        """Bytes that it holds: weights, and the cache."""
        return self.model.nbytes

    def under(self, name: str) -> Served:
        """The model as requests for `name` see it; `name` is its own or an adapter's."""
        return self

    @contextlib.contextmanager
    def using(self, name: str) -> Iterator[Served]:
        """`under(name)`, which stays while the context lasts."""
        yield self.under(name)

    def warm(self) -> None:
        """Compiles what the first request would wait for."""

    def summary(self) -> list[str]:
        """Lines about the model for the person who starts the server."""
        where = "NumPy" if self.model.device is None else self.model.device.info.name
        return [f"{self.name}: {self.model.precision}, {self.nbytes >> 20} MiB, on {where}"]

    async def close(self) -> None:
        """Lets go of what it holds."""
        self.expiry.stop()
        self.pools.close()


class ServedEncoder(Served):
    """A model that embeds texts."""

    model: Encoder

    async def vectors(
        self, texts: Sequence[str | list[int]], cut: bool = False, named: str | None = None
    ) -> tuple[np.ndarray, int]:
        """float32 [n, dim] of texts or their token ids, and how many tokens they have; a step of
        the model at a time, in turns with other requests. Raises LimitError for a text that is too
        long, unless it is to be `cut`; UsageError for a prompt `named` that the model lacks."""
        prompt = self.model.prompt(name=named)
        plain = [prompt + text for text in texts if isinstance(text, str)]
        skip = self.model.skipped(prompt)
        skips = [skip if isinstance(text, str) else 0 for text in texts]
        coded = iter(await self.encoded(plain, unlimited=not cut))
        rows = [next(coded) if isinstance(text, str) else text for text in texts]
        most, longest = self.model.max_length, max(map(len, rows), default=0)
        if longest > most:
            raise LimitError(f"the text has {longest} tokens; {self.name} takes {most}")
        hold_tokens(sum(map(len, rows)))
        out = np.empty((len(rows), self.model.dim), np.float32)
        groups = list(batches([len(row) for row in rows]))
        embed = self.model.embed_ids
        made = await self.pools.vectors.each(
            lambda group: embed([rows[i] for i in group], [skips[i] for i in group]), groups
        )
        for group, vectors in zip(groups, made):
            out[group] = vectors
        return out, sum(map(len, rows))


class ServedDecoder(Served):
    """A model that writes text, with an engine in a thread of its own; `adapter` is the adapter of
    its answers ("": none)."""

    model: Decoder
    adapter = ""
    recipe: Any = None  # the Recipe that this name was made by

    def __init__(
        self, name: str, model: Decoder, settings: ServeSettings, metrics: ServerMetrics,
        draft: Decoder | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, model)
        self.draft, self.slots = draft, SlotTable(settings.sessions is not None)
        pages = pages_of(model, settings, draft)
        drafts = drafts_by(model, draft, settings.sequences, pages)
        self.runner = model.new_runner(settings.sequences, pages)
        self.engine = Engine(
            self.runner, model.config.vocab, self._texts,
            lambda: model.explain_bad("the logits are"), queue=settings.queue, drafts=drafts,
        )  # fmt: skip
        self.player = EngineThread(self.engine, name, metrics, self.watched.check)
        self.parser_name, self.parser = choose(self.tokenizer, settings.parser)
        self.marks = self.parser.marks
        self._asked = settings.memory  # bytes of the cache; None: the free memory
        self._made = TokenizerObjects()
        self.pictures = settings.pictures
        self.adapted = ServedAdapters(self)
        self.adapted.begin(settings.adapters)

    def under(self, name: str) -> ServedDecoder:
        """Returns the model as served under `name`: the model itself, or one of its adapters.
        Raises HttpError for an adapter that has gone."""
        return self if name == self.name else self.adapted.under(name)

    @contextlib.contextmanager
    def using(self, name: str) -> Iterator[ServedDecoder]:
        """`under(name)`, whose adapter stays loaded while the context lasts."""
        with self.adapted.using(self.under(name)) as served:
            yield served

    def _texts(self) -> Any:
        return self.tokenizer.stream()

    @property
    def idle(self) -> bool:
        """True if no request uses the model and no answer is running or waiting."""
        return super().idle and self.player.idle

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and the caches, the draft model's included."""
        small = 0 if self.draft is None else self.draft.nbytes
        taken = caches(self.model, self.draft, self.runner.slots, self.runner.pages)
        return super().nbytes + small + taken

    def warm(self) -> None:
        """Runs each kind of step once, so that requests find compiled Programs, and reads a picture
        if the model sees."""
        self.runner.tables[:] = 0
        self.runner.warm(self.model.make_eyes is not None)
        if self.model.make_eyes is not None:
            self.model.need_eyes().see(BLANK)
        if self.draft is not None:
            self.engine.submit(Job((0, 0, 0, 0), 9, salt=b"warm"), lambda output: None)
            while self.engine.step():
                pass

    def summary(self) -> list[str]:
        """Returns the lines about the model that `weft serve` prints at the start."""
        model, runner = self.model, self.runner
        told = model.defaults.told({}, {"temperature": 1.0})
        tokens = runner.pages * runner.page
        whole = max(tokens // model.context, 1)
        taken = caches(model, self.draft, runner.slots, runner.pages)
        more = (
            f"the cache takes {size(taken)}, more than --cache-memory: one sequence of the whole "
            "context needs that; a smaller --context needs less"
        )
        over = self._asked is not None and taken > self._asked
        if model.fixed:
            more = "the file fixes how many: weft compile --max-batch makes another"
        return [
            *super().summary(),
            *([f"adapters: {', '.join(model.adapters)}"] if model.adapters else []),
            *([f"sampling as {model.defaults.where} says: {told}"] if told else []),
            *([more] if model.fixed or over else []),
            f"up to {runner.slots} answers at once; the cache holds {tokens} tokens: {whole} "
            f"sequences of the whole context of {model.context}, more of shorter ones",
        ]

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end an answer."""
        return frozenset(self.model.tokens.eos)

    def grammars(self) -> Grammars:
        """The maker of constraints for this model's tokens; the first call takes tenths of a
        second."""
        made = self._made
        with made.making:
            if made.grammars is None:
                made.grammars = grammars_of(self.model, self.marks.ids)
            return made.grammars

    async def constraint(
        self, make: Callable[[ServedDecoder], Callable[[], Constraint]]
    ) -> Callable[[], Constraint]:
        """The grammar that `make` compiles. Kept grammars do not wait for new ones. Raises
        WeftError."""
        from weft.models.grammar.grammars import GrammarCache, NotKept

        quick = copy.copy(self)
        quick.grammars = lambda: GrammarCache(self.grammars())  # type: ignore
        try:
            return await self.pools.forms.run(make, quick)
        except NotKept:
            stop = self.grammars().stop
            return await self.pools.grammars.run(make, self, stop=stop)

    def token(self, i: int) -> tuple[str, bytes]:
        """A token's text and its bytes. A token that is not whole characters has the text "bytes:"
        and its bytes."""
        known = self._made.bytes
        if known is None:
            try:
                known = token_bytes(self.tokenizer, self.model.config.vocab)[0]
            except WeftError:  # The tokens have no bytes of their own.
                known = []
            self._made.bytes = known
        if not i < len(known):
            text = self.tokenizer.decode([i], skip_special=False)
            return text, text.encode()
        data = known[i]
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data

    def logprob(self, chosen: SampledToken) -> dict[str, Any]:
        """A token's text, logprob and bytes, and those of the most probable ones."""

        def told(i: int, logprob: float | None) -> dict[str, Any]:
            text, data = self.token(i)
            return {"token": text, "logprob": logprob, "bytes": list(data)}

        made = told(chosen.id, chosen.logprob)
        return {**made, "top_logprobs": [told(*pair) for pair in chosen.top]}

    async def close(self) -> None:
        """Ends all answers and frees the model."""
        await self.player.close()
        await super().close()
