"""Runs a tokenizer in this process, or in a child process with limits."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from weft.core.errors import ModelError
from weft.core.text import first_line
from weft.host.confined import Confined, Limits, Stopped
from weft.importers.hf_config import read_bounded
from weft.models.text import tokenizer_plain as plain

T = TypeVar("T")

MAX_FILE = 256 << 20  # bytes of tokenizer.json
MAX_NEAR = 1 << 20  # characters of a text that this process encodes itself: beyond some millions,
# the library panics where a pattern looks back over a run of spaces
MAX_SECONDS = 20.0  # limit on loading; a call gets more, by the size of its text
MAX_MEMORY = 1 << 30  # bytes; a call gets more too
CHARACTERS = 100_000  # characters of text per second, at least; a tenth of the speed of plain files
BYTES = 1000  # bytes of memory per character
# The panic message, and all output after it.
_PANIC = re.compile(rb"\n?thread '[^\n]*' .*panicked at ")
_one_at_a_time = threading.Lock()
_WORKER = Path(__file__).with_name("tokenizer_worker.py")


@contextmanager
def _without_panics() -> Iterator[None]:
    """Hides Rust's panic messages on stderr, which are raised as exceptions too. Other output
    meanwhile is written afterwards."""
    with _one_at_a_time, tempfile.TemporaryFile() as held:
        try:
            stderr = os.dup(2)
        except OSError:  # stderr is closed
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            held.seek(0)
            said = held.read()
            panic = _PANIC.search(said)
            said = said[: panic.start()] if panic else said
            with suppress(OSError):  # a full disk for logs must not end the work
                os.write(stderr, said)
            os.close(stderr)


class Coder:
    """An encoder and decoder from a tokenizer.json, or from its content `data`. Every failure of
    the library, including panics, becomes a ModelError of two lines. `limit` cuts texts at that
    many tokens; `side` and `split`: see `tokenizer_worker.load`."""

    def __init__(
        self,
        path: Path,
        limit: int | None,
        data: bytes | None = None,
        side: str | None = None,
        split: bool = False,
    ) -> None:
        self.path = path
        setup = {"path": os.path.abspath(path)} if data is None else {"text": data.decode()}
        data = read_bounded(path, MAX_FILE) if data is None else data
        # 60 times the file: a vocabulary of short tokens is held in three tables.
        memory = MAX_MEMORY + 60 * len(data)
        self._loading = Limits(MAX_SECONDS, memory, 1 << 10)
        asked: dict[str, Any] = {"limit": limit, "side": side, "split": split}
        self._child = Confined(_WORKER, ("tokenizers",), setup | asked, self._loading)
        self._checked = False
        self._near = self._load(data, asked) if plain.safe_to_load(data) else None
        self.size = int(
            self._near.get_vocab_size()
            if self._near
            else self._guarded("cannot be read", self._child.start)
        )

    def encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        """Returns the ids of each text."""
        longest = max(map(len, texts), default=0)
        near = self._near
        if near is not None and longest <= MAX_NEAR:
            from weft.models.text.tokenizer_worker import encode

            return self._guarded("failed", lambda: encode(near, texts, special))
        limits = self._limits(sum(map(len, texts)))
        request = {"texts": list(texts), "special": special}
        said = f"failed on a text of {longest} characters"
        out: list[list[int]] = self._guarded(said, lambda: self._child.call(request, limits))
        return out

    def read(self, texts: Sequence[Any]) -> list[list[Any]]:
        """Returns `tokenizer_worker.read` of texts and pairs of texts."""
        sizes = [len(t) if isinstance(t, str) else sum(map(len, t)) for t in texts]
        near, longest = self._near, max(sizes, default=0)
        if near is not None and longest <= MAX_NEAR:
            from weft.models.text.tokenizer_worker import read

            return self._guarded("failed", lambda: read(near, texts))
        plain = self._limits(sum(sizes))
        limits = Limits(plain.seconds, plain.memory, 10 * plain.reply)
        request = {"rows": [t if isinstance(t, str) else list(t) for t in texts]}
        said = f"failed on a text of {longest} characters"
        out: list[list[Any]] = self._guarded(said, lambda: self._child.call(request, limits))
        return out

    def decode(self, ids: list[int], skip: bool) -> str:
        """Returns the text of ids from 0 to 2^32 - 1; unknown ones give nothing."""
        near = self._near
        if near is not None:
            if not self._checked:  # on first use, because it takes a tenth of the loading time
                from weft.models.text.tokenizer_worker import check_ids

                self._guarded("cannot be read", lambda: check_ids(near))
                self._checked = True
            text: str = self._guarded("failed", lambda: near.decode(ids, skip_special_tokens=skip))
            return text
        request = {"ids": ids, "skip": skip}
        limits = self._limits(16 * len(ids))
        text = self._guarded("failed", lambda: self._child.call(request, limits))
        return text

    def _load(self, data: bytes, asked: dict[str, Any]) -> Any:
        """Returns the tokenizer, if all its steps are plain."""
        from weft.models.text.tokenizer_worker import load

        with _without_panics():
            raw = self._guarded("cannot be read", lambda: load(data, **asked))
        return raw if plain.safe_to_use(raw) else None

    def _limits(self, characters: int) -> Limits:
        seconds = MAX_SECONDS + characters / CHARACTERS
        memory = self._loading.memory + BYTES * characters
        return Limits(seconds, memory, (64 << 20) + 200 * characters)

    def _guarded(self, said: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except Stopped as e:
            self._fail("", e)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as e:  # the library's panics are not Exceptions
            self._fail(f"{said}: ", e)

    def _fail(self, said: str, e: BaseException) -> NoReturn:
        raise ModelError(
            f"{self.path}: the tokenizer {said}{first_line(e)}\n"
            "expected a tokenizer.json that the tokenizers library can use; take the model's own, "
            "or pass ids; cut a text of millions of characters into parts"
        ) from None
