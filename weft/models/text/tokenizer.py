"""Text to token ids and back: `tokenizer.json` through the `tokenizers` library.

The library and the file are loaded on first use; running on ids needs neither.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.errors import ModelError, UsageError
from weft.core.notices import say
from weft.importers.hf_config import read_bounded
from weft.models.arch.config import TokenizerContent
from weft.models.text.chat import ChatTemplate, read_template
from weft.models.text.stream import StreamDecoder, valid
from weft.models.text.tokenizer_coder import MAX_FILE, Coder
from weft.models.text.tokenizer_fields import (
    NAMED,
    OLDER_TOKENS,
    applied,
    content_of,
    flag_of,
    say_fields,
    side_of,
)
from weft.models.text.tokenizer_settings import SETTINGS, read_settings


class TokenRow(NamedTuple):
    """The tokens of a text or a pair: ids, each one's part (0 or 1), its characters in the part
    (first, end), and 1 for tokens added by the tokenizer."""

    ids: list[int]
    types: list[int]
    spans: list[list[int]]
    special: list[int]


class Tokenizer:
    """The tokenizer of a model folder, or `made` from the file `folder`, with the changes of
    tokenizer_config.json (`tokenizer_fields`).

    With `limit`, texts are cut at that many tokens, including those added around them. The file's
    settings for length, padding and random segmentation (BPE dropout) are ignored. Raises
    ModelError if the library rejects the file or its vocabulary exceeds the model's `vocab`; every
    method raises it if the library fails.
    """

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab} tokens)"

    def __init__(
        self,
        folder: Path,
        vocab: int,
        limit: int | None = None,
        lower_case: bool = False,
        made: TokenizerContent | None = None,
    ) -> None:
        self.path = folder / "tokenizer.json" if made is None else folder
        self.vocab = vocab
        self.lower = lower_case
        self.limit = limit
        self._made = made
        self._config = read_settings(folder) if made is None else made.config
        where = str(folder / SETTINGS)
        say_fields(where, self._config)
        data = read_bounded(self.path, MAX_FILE) if made is None else made.data
        changed = applied(where, data, self._config, vocab)
        self._data = changed or (None if made is None else made.data)
        self.splits = bool(flag_of(where, self._config, "split_special_tokens"))
        self._spaces = bool(flag_of(where, self._config, "clean_up_tokenization_spaces"))
        self._lengths: dict[tuple[int, bool], int] = {}
        side = side_of(where, self._config)
        self._coder = Coder(self.path, limit, self._data, side, self.splits)
        if self.size > vocab:
            raise ModelError(
                f"{self.path} has {self.size} tokens; the model's vocab_size is {vocab}: "
                "the tokenizer belongs to another model"
            )
        self._folder = folder
        self._template: ChatTemplate | None = None

    @property
    def size(self) -> int:
        """The number of tokens that the tokenizer knows."""
        return self._coder.size

    def file(self) -> bytes:
        """Returns the content of its tokenizer.json."""
        return self.path.read_bytes() if self._data is None else self._data

    def same_tokens(self, other: Tokenizer) -> bool:
        """Returns True if each id has the same text in both."""
        return _tokens(self.file()) == _tokens(other.file())

    def made(self) -> TokenizerContent:
        """Returns the whole tokenizer, independent of its folder."""
        template = read_template(self._folder, self._config)
        # The tokenizer file has them.
        config = {k: v for k, v in self._config.items() if k != OLDER_TOKENS}
        return TokenizerContent(self.file(), {**config, "chat_template": template})

    def unlimited(self) -> Tokenizer:
        """Returns the same tokenizer without a limit."""
        return Tokenizer(self._folder, self.vocab, None, self.lower, self._made)

    def around(self) -> tuple[list[int], list[int]]:
        """Returns the ids that `special` adds before and after every text. Raises ModelError if
        they depend on the text."""
        texts = ("a", "b c")
        bare, whole = (self.encode_batch(texts, special) for special in (False, True))
        at = next((n for n in range(len(whole[0])) if whole[0][n : n + len(bare[0])] == bare[0]), 0)
        before, after = whole[0][:at], whole[0][at + len(bare[0]) :]
        if any(w != [*before, *b, *after] for b, w in zip(bare, whole)):
            raise ModelError(f"{self.path}: what it puts around a text depends on the text")
        return before, after

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Returns the ids of `text`; `special` adds the tokens around it (bos, [CLS], ...).

        Raises UsageError for text that is not valid Unicode (lone surrogates).
        """
        return self.encode_batch([text], special)[0]

    def encode_batch(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        """Does `encode` for several texts at once."""
        out = self._coder.encode([self._checked(text) for text in texts], special)
        self._check_ids(out)
        return out

    def read(self, texts: Sequence[str | tuple[str, str]]) -> list[TokenRow]:
        """Returns ids, parts and places of the tokens of texts, or of pairs of texts, with the
        tokens around them. In a pair, the longer text is cut first."""
        given = [
            self._checked(t) if isinstance(t, str) else tuple(map(self._checked, t)) for t in texts
        ]
        if any(not isinstance(t, str) and len(t) != 2 for t in given):
            raise UsageError("expected texts or pairs of texts")
        rows = [TokenRow(*row) for row in self._coder.read(given)]
        self._check_ids([row.ids for row in rows])
        return rows

    def _checked(self, text: object) -> str:
        """Returns a text as the file takes it. Raises UsageError for anything but text."""
        if not isinstance(text, str):
            raise UsageError(f"expected text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError("the text is not valid UTF-8 (it holds a lone surrogate)") from None
        return text.lower() if self.lower else text

    def _check_ids(self, out: Sequence[Sequence[int]]) -> None:
        """Raises ModelError for ids that the limit or the vocabulary does not allow."""
        longest = max(map(len, out), default=0)
        if self.limit is not None and longest > self.limit:  # not even its own tokens fit
            raise ModelError(
                f"{self.path} made {longest} tokens of a text to be cut at {self.limit}: "
                "it puts more than that around every text"
            )
        highest = max((max(ids) for ids in out if ids), default=0)
        if highest >= self.vocab:
            raise ModelError(
                f"{self.path} gave token {highest}; the model's vocab_size is {self.vocab}: "
                "the tokenizer belongs to another model"
            )

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Returns the text of `ids`; unknown ids give nothing.

        Raises UsageError for invalid ids: numbers below 0 or from 2^32 on.
        """
        return self.decoded(valid(ids), skip_special)

    def decoded(self, ids: list[int], skip_special: bool) -> str:
        """Returns the text of ids that are known to be valid."""
        if self._spaces:
            self._say_spaces()
        return self._coder.decode(ids, skip_special)

    def length(self, token: int, skip_special: bool) -> int:
        """Returns the length of the text of one valid token alone, in characters."""
        key = token, skip_special
        if key not in self._lengths:
            self._lengths[key] = len(self.decoded([token], skip_special))
        return self._lengths[key]

    def _say_spaces(self) -> None:
        """Reports once that transformers would change the text, which it does unless there are
        merges."""
        asked, self._spaces = self._spaces, False
        if asked and b'"merges"' not in self.file():
            say(f"{self.path}: transformers removes spaces before punctuation from decoded text "
                "(clean_up_tokenization_spaces); weft shows them")  # fmt: skip

    @property
    def special_tokens(self) -> dict[str, str]:
        """Names like "bos_token" to their text, from tokenizer_config.json."""
        found = {name: content_of(self._config.get(name)) for name in NAMED}
        return {name: text for name, text in found.items() if text is not None}

    @functools.cached_property
    def added(self) -> dict[int, str]:
        """The tokens added to the vocabulary, special or not. Their text in a prompt is always that
        token, whatever surrounds it."""
        try:
            found = json.loads(self.file()).get("added_tokens") or ()
            return {int(token["id"]): str(token["content"]) for token in found}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    @property
    def config(self) -> Mapping[str, Any]:
        """The fields of tokenizer_config.json and special_tokens_map.json."""
        return self._config

    @property
    def has_chat(self) -> bool:
        return read_template(self._folder, self._config) is not None

    @functools.cached_property
    def takes_parts(self) -> bool:
        """True if the chat template reads the types of a message's parts."""
        return "type" in (read_template(self._folder, self._config) or "")

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Returns the prompt from the model's chat template for `messages` (role, content).

        Encode it with special=False: templates write bos themselves. Raises UsageError without a
        template, or if the template rejects the messages.
        """
        template = self.chat_template()
        return template.render(messages, generation_prompt, self.special_tokens, variables)

    def chat_template(self) -> ChatTemplate:
        """Returns the model's chat template. Raises UsageError if it has none."""
        if self._template is None:
            source = read_template(self._folder, self._config)
            if source is None:
                raise UsageError(
                    f"{self._folder} lacks a chat template; prompt the model with plain text"
                )
            self._template = ChatTemplate(source)
        return self._template

    def starts(self, ids: Sequence[int]) -> list[int]:
        """Returns where the text of each of `ids` begins in the text of all of them."""
        stream, found = self.stream(), []
        for token in ids:
            stream.push(token)
            found.append(stream.start)
        return found

    def stream(self, special: bool = False) -> StreamDecoder:
        """Returns a decoder that turns ids into text one by one; `special` includes special tokens'
        text."""
        return StreamDecoder(self, special)


def _tokens(file: bytes) -> tuple[object, ...]:
    """Returns what determines the text of ids: vocabulary, added tokens, decoder."""
    data = json.loads(file)
    added = {token["id"]: token["content"] for token in data.get("added_tokens") or ()}
    return data["model"].get("vocab"), added, data.get("decoder")
