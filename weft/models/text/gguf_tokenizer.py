"""Turns a GGUF file's vocabulary into a tokenizer.json for the `tokenizers` library.

"gpt2" is BPE on bytes with a list of merges. "llama" is SentencePiece's BPE, whose merges follow
from the scores of the pieces. "gemma4" has such pieces with a list. Encoders' are in
`gguf_wordpiece`. The file only names the pre-tokenizer (`tokenizer.ggml.pre`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.core.records import dataclass
from weft.core.versions import stamp
from weft.host import cache as disk
from weft.importers.gguf import Gguf
from weft.importers.gguf_values import Texts
from weft.importers.hf_config import Fields
from weft.models.arch.config import TokenIds, TokenizerContent
from weft.models.arch.family_parts import MAX_VOCAB
from weft.models.text import deepseek_patterns as deepseek, tokenizer_plain as usual
from weft.models.text.gguf_wordpiece import between, unigram, wordpiece

_AT = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6  # token types; 1 is normal, 5 unused
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
# Limit on the sum of squared token lengths; Gemma's 262,144 tokens have about 2 ** 24.
_MAX_SQUARES = 1 << 28
# Control tokens with these texts end a turn, whatever the metadata name.
_ENDS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>", "<turn|>", "<EOT>", "</s>",
}  # fmt: skip


@dataclass(frozen=True)
class Pre:
    """The meaning of a name in `tokenizer.ggml.pre`: patterns that split a text one after the
    other, a flag to keep a piece that is a token whole, and a flag for bos by default."""

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False


def _named(pre: Pre, names: str) -> dict[str, Pre]:
    return dict.fromkeys(names.split(), pre)


PRE = {
    **_named(Pre(usual.DEFAULT), "default"),
    **_named(Pre((usual.GPT2,)), "gpt-2 phi-2 mellum olmo exaone4 modern-bert"),
    **_named(
        Pre((usual.LLAMA3,), whole=True, bos=True), "llama-bpe llama3 llama-v3 falcon3 pixtral"
    ),
    **_named(Pre((usual.LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    **_named(Pre((usual.QWEN2,)), "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan"),
    **_named(Pre((usual.QWEN35,)), "qwen35"),
    **_named(
        Pre((usual.DIGIT, usual.GPT2)), "smollm starcoder refact command-r codeshell minerva-7b"
    ),
    **_named(Pre((usual.GPT4O,)), "gpt-4o llama4"),
    **_named(Pre(deepseek.DEEPSEEK), "deepseek-llm"),
    **_named(Pre(deepseek.DEEPSEEK3), "deepseek-v3 hunyuan-dense"),
    **_named(Pre(deepseek.DEEPSEEK_CODER), "deepseek-coder"),
    **_named(Pre((usual.TEKKEN,), whole=True, bos=True), "tekken"),
}


class Vocabulary:
    """The tokens of a file and their attributes. Raises ModelError if lists' lengths differ."""

    def __init__(self, gguf: Gguf) -> None:
        self.where = str(gguf.path)
        self.fields = Fields(gguf.metadata, self.where)
        tokens = gguf.metadata.get(f"{_AT}tokens")
        if not isinstance(tokens, Texts):
            raise ModelError(f"{self.where}: {_AT}tokens is not a list of texts")
        if len(tokens) > MAX_VOCAB:
            raise ModelError(f"{self.where}: {len(tokens)} tokens; at most {MAX_VOCAB} are read")
        self.tokens: Sequence[str] = tokens
        self.ids: dict[str, int] = {}  # after `decode`
        self.types = self._numbers(gguf, "token_type", "iu")
        self.scores = self._numbers(gguf, "scores", "iuf")

    def decode(self) -> None:
        """Decodes all tokens. Raises ModelError for one that is there twice."""
        self.tokens = tokens = list(self.tokens)
        self.ids = ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) < len(tokens):
            twice = next(t for i, t in enumerate(tokens) if ids[t] != i)
            raise ModelError(f"{self.where}: {_AT}tokens holds {twice[:60]!r} twice")

    def _numbers(self, gguf: Gguf, name: str, kinds: str) -> np.ndarray | None:
        """Returns one finite number per token, or None."""
        found = gguf.metadata.get(_AT + name)
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
            raise ModelError(f"{self.where}: {_AT}{name} is not a list of numbers")
        if len(found) != len(self.tokens) or not np.isfinite(found).all():
            raise ModelError(
                f"{self.where}: {_AT}{name} has {len(found)} entries; expected "
                f"{len(self.tokens)} finite ones, one per token"
            )
        return found

    def of_type(self, *types: int) -> list[int]:
        """Returns the ids of tokens with one of `types`, in order."""
        if self.types is None:
            return []
        found: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return found

    def id_of(self, name: str) -> int | None:
        """Returns the id that the metadata give a special token, or None."""
        found: int | None = self.fields.integer(f"{_AT}{name}_token_id", 0, (1 << 32) - 1, None)
        if found == (1 << 32) - 1:  # some writers' spelling of "none"
            return None
        if found is not None and found >= len(self.tokens):
            raise ModelError(
                f"{self.where}: {_AT}{name}_token_id is {found}; there are "
                f"{len(self.tokens)} tokens"
            )
        return found


def token_ids(gguf: Gguf) -> TokenIds:
    """Returns the ids that end, begin and pad a text."""
    if f"{_AT}tokens" not in gguf.metadata:
        return TokenIds()
    v = Vocabulary(gguf)
    named = [v.id_of(name) for name in ("eos", "eot", "eom")]
    spelled = [i for i in v.of_type(_CONTROL) if v.tokens[i] in _ENDS]
    ends = dict.fromkeys(i for i in [*named, *spelled] if i is not None)
    return TokenIds(tuple(ends), v.id_of("bos"), v.id_of("padding"))


def read_tokenizer(gguf: Gguf) -> TokenizerContent | None:
    """Returns the tokenizer of a file, or None without tokens. Raises ModelError for one that is
    not supported or inconsistent."""
    if f"{_AT}tokens" not in gguf.metadata:
        return None
    v, cache, key = Vocabulary(gguf), disk.programs(), _key(gguf)
    if (data := cache.get(key)) is None:
        cache.put(key, data := _tokenizer_json(v))
    return TokenizerContent(data, _config(v))


def _key(gguf: Gguf) -> str:
    """Returns a key of all that the metadata say about the tokenizer."""
    total = hashlib.sha256()
    for name, value in gguf.metadata.items():
        if name.startswith(_AT):
            raw = isinstance(value, Texts | np.ndarray)
            data = bytes(value.data) if raw else repr(value).encode()
            kind = getattr(value, "dtype", type(value))
            total.update(repr((name, kind, len(data))).encode() + data)
    return f"tokenizer.json {stamp('tokenizers')} {total.hexdigest()}"


def _tokenizer_json(v: Vocabulary) -> bytes:
    """Returns the content of tokenizer.json. Raises ModelError as `read_tokenizer` does."""
    v.decode()
    listed = partial(_sentencepiece, listed=True)
    kinds: dict[str, Callable[[Vocabulary], dict[str, Any]]]
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": listed}
    kinds |= {"bert": wordpiece, "t5": unigram}
    model = v.fields.text(f"{_AT}model", "none")
    if model not in kinds:
        raise ModelError(
            f"{v.where}: {_AT}model is {model[:60]!r}, which is not supported; "
            f"supported: {', '.join(kinds)}"
        )
    content = {
        "version": "1.0",
        "added_tokens": _added(v, model != "gpt2"),
        **kinds[model](v),
    }
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as e:
        raise ModelError(f"{v.where}: a token or a merge is not valid UTF-8: {e.reason}") from None


def _config(v: Vocabulary) -> dict[str, Any]:
    """Returns the content of tokenizer_config.json."""
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
    ids = {short: v.id_of(name) for short, name in names.items()}
    found = {f"{short}_token": v.tokens[i] for short, i in ids.items() if i is not None}
    template = v.fields.text("tokenizer.chat_template", None)
    return found if template is None else found | {"chat_template": template}


def _added(v: Vocabulary, spaces: bool) -> list[dict[str, Any]]:
    """Returns the tokens that are matched in a text before anything else. With `spaces`, runs of
    spaces are excluded, because merges produce them."""
    users = set(v.of_type(_USER))
    return [
        {
            "id": i, "content": v.tokens[i], "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": i not in users,
        }
        for i in v.of_type(_UNKNOWN, _CONTROL, _USER)
        if v.tokens[i] and not (spaces and not v.tokens[i].strip(" "))
    ]  # fmt: skip


def _around(v: Vocabulary, bos: bool) -> dict[str, Any] | None:
    """Returns the post-processor that adds bos (by default if `bos`) and eos around a text."""
    pieces: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    tokens: dict[str, Any] = {}
    for name, default, at in (("bos", bos, 0), ("eos", False, 1)):
        if not v.fields.flag(f"{_AT}add_{name}_token", default):
            continue
        i = v.id_of(name)
        if i is None:
            raise ModelError(f"{v.where}: {name} goes around a text, but {_AT}{name}_token_id is "
                             "missing")  # fmt: skip
        text = v.tokens[i]
        tokens[text] = {"id": text, "ids": [i], "tokens": [text]}
        pieces.insert(at * len(pieces), {"SpecialToken": {"id": text, "type_id": 0}})
    if not tokens:
        return None
    return {
        "type": "TemplateProcessing", "single": pieces,
        "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": tokens,
    }  # fmt: skip


def _byte_level(v: Vocabulary) -> dict[str, Any]:
    """Returns BPE on the bytes of a text, each written as a letter."""
    name = v.fields.text(f"{_AT}pre", "default")
    if name not in PRE:
        raise ModelError(
            f"{v.where}: {_AT}pre is {name[:60]!r}, which is not supported; "
            f"supported: {', '.join(PRE)}"
        )
    pre = PRE[name]
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in pre.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [*splits, level | {"use_regex": False}],
        },
        "post_processor": between(v) if name == "modern-bert" else _around(v, pre.bos),
        "decoder": level | {"use_regex": True},
        "model": _bpe(v.ids, _merges(v), ignore_merges=pre.whole),
    }  # fmt: skip


def _merges(v: Vocabulary) -> list[tuple[str, str]]:
    """Returns the pairs of the file's list, "first second", where a part may begin with a space."""
    found = v.fields.data.get(f"{_AT}merges")
    if not isinstance(found, Texts):
        raise ModelError(f"{v.where}: {_AT}merges is not a list of texts")
    pairs, ids = [], v.ids
    for merge in found:
        a, space, b = merge[1:].partition(" ")
        a = merge[:1] + a
        if not space or a not in ids or b not in ids or a + b not in ids:
            raise ModelError(
                f"{v.where}: {_AT}merges holds {merge[:60]!r}; expected two tokens, a space "
                "between them, that make a third"
            )
        pairs.append((a, b))
    return pairs


def _sentencepiece(v: Vocabulary, listed: bool = False) -> dict[str, Any]:
    """Returns BPE on characters, with "▁" for spaces; unknown characters fall back to their bytes.
    Merges come from the file if it has them `listed`, else from scores."""
    if v.scores is None and not listed:
        raise ModelError(
            f"{v.where}: {_AT}scores is missing; a tokenizer of model llama needs scores"
        )
    for i in v.of_type(_BYTE):
        if not _BYTE_TOKEN.fullmatch(v.tokens[i]):
            raise ModelError(
                f"{v.where}: token {i}, a byte, is spelled {v.tokens[i][:60]!r}; expected <0x..>"
            )
    # Runs of spaces are spelled as spaces in the file; BPE sees "▁".
    spelled = [t if t.strip(" ") or not t else "▁" * len(t) for t in v.tokens]
    ids = {token: i for i, token in enumerate(spelled)}
    unknown = v.id_of("unknown")
    unknown = next(iter(v.of_type(_UNKNOWN)), None) if unknown is None else unknown
    prefix = v.fields.flag(f"{_AT}add_space_prefix", not listed)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    first = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    back = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*first, replace]},
        "pre_tokenizer": None,
        "post_processor": _around(v, True),
        "decoder": {"type": "Sequence", "decoders": [*back, *strip]},
        "model": _bpe(
            ids, _merges(v) if listed else _scored_merges(v, ids, spelled),
            byte_fallback=True, fuse_unk=True,
            unk_token=None if unknown is None else spelled[unknown],
        ),
    }  # fmt: skip


def _scored_merges(
    v: Vocabulary, ids: Mapping[str, int], spelled: Sequence[str]
) -> list[tuple[str, str]]:
    """Returns every split of a token into two others, highest score first."""
    assert v.scores is not None
    if sum(len(token) ** 2 for token in spelled) > _MAX_SQUARES:
        longest = max(map(len, spelled))
        raise ModelError(f"{v.where}: {_AT}tokens are too long for merges, up to {longest} letters")
    made = {*v.of_type(_UNKNOWN, _CONTROL, _BYTE)}
    found: list[tuple[float, str, str]] = []
    for i, (token, score) in enumerate(zip(spelled, v.scores.tolist())):
        if i in made:
            continue
        pairs = [
            (a, b) for at in range(1, len(token))
            if (a := token[:at]) in ids and (b := token[at:]) in ids
        ]  # fmt: skip
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, a, b) for a, b in pairs]
    found.sort(key=lambda m: (m[0], len(m[1]), len(m[2])), reverse=True)
    return [(a, b) for _, a, b in found]


def _bpe(ids: Mapping[str, int], merges: Sequence[Any], **more: Any) -> dict[str, Any]:
    plain = {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False,
    }  # fmt: skip
    return {"type": "BPE", **plain, **more, "vocab": ids, "merges": merges}
