"""Structured output: answers that satisfy a JSON schema, a regular expression or a grammar.

llguidance (https://github.com/guidance-ai/llguidance, MIT) says at each step which tokens may come
next. A grammar comes from a stranger. So its size is limited, and a separate process tries it
first, with limits to time and memory. An error names each part that llguidance does not implement.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.text import first_line
from weft.engine.job import Constraint
from weft.host.confined import ChildError, Confined, Limits, Stopped
from weft.models.grammar.schemas import kept
from weft.models.grammar.vocabulary import GrammarTokens, special_ids, token_bytes
from weft.models.text.tokenizer import Tokenizer

MAX_GRAMMAR = 256 << 10  # bytes of a grammar, as llguidance gets it
MAX_DEPTH = 64  # levels of a schema's nesting
MAX_KEPT = 128 << 20  # bytes of the grammars that are kept compiled
MIN_COST = 384 << 10  # bytes that a small one takes once it was used, as measured
PER_BYTE = 32  # further bytes for each byte of its text
MAX_SECONDS = 5.0  # seconds for trying a grammar
MAX_MEMORY = 512 << 20  # bytes for trying a grammar
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 100_000, "step_max_items": 50_000,
    "max_lexer_states": 20_000, "max_grammar_size": 100_000, "max_items_in_row": 2000,
    "verbose_errors": False,  # errors would quote the answer
}  # fmt: skip
_JSON = {"lenient": False, "whitespace_pattern": r"( |\n[ \t]{0,20})?"}
_WORKER = Path(__file__).with_name("worker.py")

Part = dict[str, Any]
"""One grammar as llguidance takes it: {"json_schema": ...} or {"lark_grammar": ...}."""


def json_schema(schema: object) -> Part:
    """JSON that satisfies `schema` (draft 2020-12, as far as llguidance implements it; compiling
    rejects the rest). Its tokens are separated by at most a space, or by a line's end and the
    indentation of the next. Raises UsageError if `schema` is not a schema."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise UsageError(f"a JSON schema is an object; got {str(schema)[:60]}")
    if "x-guidance" in schema:
        raise UsageError("x-guidance is not taken in a JSON schema: its options are the server's")
    _check_depth(schema)
    check_size(json.dumps(schema, ensure_ascii=False))  # rewriting takes longer than reading
    made, escapes = kept(dict(schema))
    return {"json_schema": {**made, "x-guidance": {**_JSON, "json_allowed_escapes": escapes}}}


def json_object() -> Part:
    """Any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: object) -> Part:
    """Text that as a whole matches `pattern` (Rust's regex syntax, Unicode classes, without anchors
    or looking around). Raises UsageError if `pattern` is not text."""
    if not isinstance(pattern, str):
        raise UsageError(f"a regular expression is text; got {type(pattern).__name__}")
    from llguidance import regex_to_lark

    return {"lark_grammar": f"start: /{regex_to_lark(pattern, '')}/"}


def choice(texts: Iterable[str]) -> Part:
    """One of `texts`."""
    return {"lark_grammar": "start: " + " | ".join(map(quoted, texts))}


def grammar(text: object) -> Part:
    """Text of a context-free grammar: Lark's syntax as llguidance reads it, or GBNF as llama.cpp
    does. Raises UsageError for GBNF that is wrong."""
    if not isinstance(text, str):
        raise UsageError(f"a grammar is text; got {type(text).__name__}")
    if len(text) > MAX_GRAMMAR:
        raise UsageError(f"the grammar has {len(text)} characters; at most {MAX_GRAMMAR} are read")
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return {"lark_grammar": any_to_lark(text)}
    # llguidance raises plain Exceptions, and IndexError for a text that ends too early
    except Exception as e:
        raise UsageError(f"the grammar is neither Lark nor GBNF: {first_line(e)}") from None
    except RecursionError:
        raise UsageError("the grammar is nested too deeply") from None


def quoted(text: str) -> str:
    """A literal of Lark's."""
    return json.dumps(text, ensure_ascii=False)


class Grammars:
    """The grammars of one tokenizer, whose answers end by one of `eos`; a mask has `vocab` entries.
    `marks` are tokens without text, such as special ones: calls of tools begin with them.

    Any thread may call. The constructor imports llguidance and reads the vocabulary: tenths of a
    second. Raises UsageError for tokenizers whose tokens are not bytes (vocabulary.py).
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab: int, eos: Iterable[int], marks: Mapping[int, str] = {}
    ) -> None:
        import llguidance

        self.vocab = vocab
        tokens, special = token_bytes(tokenizer, vocab)
        self.special = special_ids(tokenizer) | {text: i for i, text in marks.items()}
        special |= {i for i in marks if i < vocab}
        ends = sorted(i for i in set(eos) if 0 <= i < vocab)
        self._ends = ends
        if not ends:  # llguidance needs one: an id that no mask shows
            ends, tokens = [vocab], [*tokens, b""]
        wrapped = llguidance.TokenizerWrapper(GrammarTokens(tokenizer, tokens, special, ends))
        self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=ends)
        self._limits = llguidance.LLParserLimits(**LIMITS)
        setup = {"limits": LIMITS, "vocab": len(tokens)}
        self._child = Confined(_WORKER, ("llguidance",), setup, self._bounds())
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._bytes = 0  # of those that are kept
        self._lock = threading.Lock()
        self._tries = threading.Lock()  # one at a time
        self._trying: int | None = None  # the thread that tries a grammar out

    def compile(self, part: Part, *more: Part) -> Callable[[], Constraint]:
        """Compiles a grammar and the parts in `more` that it names as @name; returns a function
        that makes constraints at the text's start. The first call takes milliseconds to
        MAX_SECONDS, so it does not belong on an event loop. Raises UsageError for a grammar that is
        wrong, too large, too slow, or uses what llguidance does not implement."""
        text = written(part, *more)
        return self.kept(text) or self._start(self._compiled(text))

    def kept(self, text: str) -> Callable[[], Constraint] | None:
        """The kept form of a grammar, as llguidance gets it."""
        with self._lock:
            matcher = self._kept.get(text)
            if matcher is None:
                return None
            self._kept.move_to_end(text)
        return self._start(matcher)

    def stop(self, thread: int) -> None:
        """Ends the trying of a grammar, where this thread is at it."""
        with self._lock:
            if self._trying == thread:
                self._child.interrupt()

    def _start(self, matcher: Any) -> Callable[[], Constraint]:
        return lambda: Matching(matcher.deep_copy(), self.vocab, self._ends)

    def _compiled(self, text: str) -> Any:
        import llguidance

        check_size(text)
        self._try(text)
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise UsageError(_refusal(matcher.get_error()))
        with self._lock:
            self._bytes -= _cost(text) if text in self._kept else 0
            self._kept[text] = matcher
            self._bytes += _cost(text)
            while len(self._kept) > 1 and self._bytes > MAX_KEPT:
                self._bytes -= _cost(self._kept.popitem(last=False)[0])
        return matcher

    def _try(self, text: str) -> None:
        try:
            with self._tries, self._at_it():
                wrong = self._child.call({"grammar": text}, self._bounds())["wrong"]
        except (Stopped, ChildError) as e:
            raise UsageError(f"compiling the grammar {e}; simplify the grammar") from None
        if wrong:
            raise UsageError(_refusal(wrong))

    @contextlib.contextmanager
    def _at_it(self) -> Iterator[None]:
        with self._lock:
            self._trying = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._trying = None

    @staticmethod
    def _bounds() -> Limits:
        return Limits(MAX_SECONDS, MAX_MEMORY, 1 << 20)


class NotKept(Exception):
    """A grammar that has to be compiled first."""


class GrammarCache:
    """Those of `grammars` that were compiled before: what uses them takes little time."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars, self.special = grammars, grammars.special

    def compile(self, part: Part, *more: Part) -> Callable[[], Constraint]:
        """The grammar, as Grammars gives it. Raises NotKept where it is not there."""
        found = self._grammars.kept(written(part, *more))
        if found is None:
            raise NotKept
        return found


def written(*parts: Part) -> str:
    """Grammars as llguidance takes them: the first, and those that it names."""
    return json.dumps({"grammars": parts}, ensure_ascii=False)


class Matching:
    """A grammar at one of its states: a Constraint of weft.engine.job."""

    def __init__(self, matcher: Any, vocab: int, ends: Sequence[int] = ()) -> None:
        self._matcher, self._vocab, self._ends = matcher, vocab, list(ends)

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, bool [vocab]; if the text is whole, they include those
        that end it. Raises LimitError if the next step takes more than LIMITS."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        found = np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)
        if found[self._ends].any() and not self.whole:
            found[self._ends] = False  # a grammar itself may ask for such a token
            if not found.any():
                raise UsageError("the grammar allows no next token: it asks for a token that "
                                 "ends answers, or for text that no token spells")  # fmt: skip
        return found

    def accept(self, token: int) -> None:
        """Goes on by a token that was allowed. Raises UsageError for another."""
        if not self._matcher.consume_token(token):
            self._check()

    @property
    def ended(self) -> bool:
        """True if only the end of the text may follow."""
        return bool(self._matcher.is_stopped())

    def forced(self) -> list[int]:
        """Tokens of the text that must come next, in the tokenizer's own spelling."""
        found: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return found

    def fits(self, tokens: Sequence[int]) -> int:
        """The number of `tokens`, from the first, that may follow one after the other."""
        count = int(self._matcher.validate_tokens(list(tokens)))
        self._check()
        return count

    @property
    def whole(self) -> bool:
        """True if the text so far satisfies the grammar."""
        return bool(self._matcher.is_accepting())

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        said = first_line(self._matcher.get_error())
        if "doesn't satisfy the grammar" in said:
            raise UsageError("a token that the grammar does not allow here")
        raise LimitError(
            f"the grammar became too complex for this answer: {said}; simplify the grammar"
        )


def check_size(text: str) -> None:
    """Raises UsageError for a schema or grammar of more than MAX_GRAMMAR bytes."""
    size = len(text.encode(errors="replace"))
    if size > MAX_GRAMMAR:
        raise UsageError(f"the schema or grammar has {size} bytes; at most {MAX_GRAMMAR} are read")


def _cost(text: str) -> int:
    """The bytes that a compiled grammar takes, about. llguidance does not say them."""
    return MIN_COST + PER_BYTE * len(text)


def _refusal(said: str) -> str:
    return f"the schema or grammar cannot be used: {first_line(said)}"


def _check_depth(schema: object) -> None:
    level: list[object] = [schema]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
        if not inner:
            return
        level = inner
    raise UsageError(f"the JSON schema is nested more than {MAX_DEPTH} deep")
