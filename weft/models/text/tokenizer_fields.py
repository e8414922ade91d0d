"""Applies tokenizer_config.json to a tokenizer.json, like transformers 5.

The tokenizer.json is the base, whatever class a folder names. Tokens that only the config lists,
and its settings of BertNormalizer and ByteLevel, change the file itself. So later readers (a page,
a compiled model) have them too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import listed, say, say_unknown
from weft.core.text import shown
from weft.models.arch.inert_fields import TOKENIZER
from weft.models.text.tokenizer_plain import TEKKEN

OLDER_TOKENS = "added_tokens.json"  # also the key of that file's tokens in the settings
FIX = "fix_mistral_regex"
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_SIDES = ("left", "right")
_READ = (
    "model_max_length", "chat_template", "response_template", "truncation_side",
    "split_special_tokens", "added_tokens_decoder", "additional_special_tokens",
    "extra_special_tokens", "clean_up_tokenization_spaces", OLDER_TOKENS, FIX,
)  # fmt: skip
_LARGE = 100_000  # tokens; transformers corrects the pattern of larger tokenizers
# Classes whose code sets these fields, whatever tokenizer.json says; other classes ignore them.
_BERT = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars",
         "strip_accents": "strip_accents"}  # fmt: skip
_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
_BYTE_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "Qwen2Tokenizer",
                 "CodeGenTokenizer", "LongformerTokenizer")  # fmt: skip
_STEPS = {"normalizer": ("normalizers", "Prepend"), "pre_tokenizer": ("pretokenizers", ""),
          "decoder": ("decoders", "Strip")}  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

Token = dict[str, Any]


def say_fields(where: str, config: Mapping[str, Any]) -> None:
    """Reports unknown fields. Names of tokens end in `_token`."""
    data = {k: v for k, v in config.items() if not (k.endswith("_token") and content_of(v))}
    say_unknown(where, data, _READ, TOKENIZER, NAMED, _BERT, ("add_prefix_space",))


def content_of(value: object) -> str | None:
    """Returns a token's text in either spelling of the file."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def flag_of(where: str, config: Mapping[str, Any], name: str) -> bool | None:
    """Returns a field that is true, false or missing (None). Raises ModelError for another
    value."""
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise ModelError(f"{where}: {name} is {shown(value, 40)}; expected true or false")


def side_of(where: str, config: Mapping[str, Any]) -> str | None:
    """Returns the side on which long texts are cut, if the file sets it."""
    side = config.get("truncation_side")
    if side is None or side in _SIDES:
        return side
    raise ModelError(f"{where}: truncation_side is {shown(side, 40)}; expected left or right")


def applied(where: str, data: bytes, config: Mapping[str, Any], vocab: int) -> bytes | None:
    """Returns the tokenizer.json `data` with the changes of `config`, for a model of `vocab`
    tokens; None if there are none. Raises ModelError for invalid values."""
    try:
        head = _head(data)
        if not _change(where, head, config, None):
            return None
        whole = json.loads(data)
        if not _change(where, whole, config, vocab):
            return None
        return json.dumps(whole, ensure_ascii=False).encode()
    except ModelError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration, RecursionError):
        return None  # the library reports the fault of the file


def _head(data: bytes) -> dict[str, Any]:
    """Returns a tokenizer.json without its model, which is last and nearly all of it."""
    at = data.find(b'"model":')
    try:
        head = json.loads(data[:at].rstrip().removesuffix(b",") + b"}")
        if {"added_tokens", "normalizer", "pre_tokenizer", "post_processor"} <= head.keys():
            return dict(head)
    except ValueError:
        pass
    return dict(json.loads(data))


def _change(where: str, file: dict[str, Any], config: Mapping[str, Any], vocab: int | None) -> bool:
    """Changes `file` and returns True if anything changed. Without `vocab`, only returns if it
    would."""
    kind = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    changed = _add(where, file, config, vocab)
    changed |= _normalize(where, file.get("normalizer"), config, kind)
    changed |= kind == "LlamaTokenizer" and _no_prefix(where, file, config)
    changed |= kind in _BYTE_CLASSES and _prefix(where, file.get("pre_tokenizer"), config)
    if flag_of(where, config, FIX):
        changed |= vocab is None or _mend_pattern(file)
    return changed


# -- tokens ---------------------------------------------------------------------------------------


def _add(where: str, file: dict[str, Any], config: Mapping[str, Any], vocab: int | None) -> bool:
    have = {token["content"]: token for token in file.get("added_tokens") or ()}
    wanted = [t for t in _wanted(where, config, have) if t["content"]]
    if vocab is None or not wanted:
        return bool(wanted)
    words, tokens = _words(file["model"]), file.setdefault("added_tokens", [])
    outside, before = [], len(tokens)
    for token in wanted:
        old = have.get(token["content"])
        if old is not None:
            old |= token
            continue
        highest = max((t["id"] for t in tokens), default=-1)
        number = words.get(token["content"], max(highest + 1, len(words)))
        if number >= vocab:
            outside.append(token["content"])
            continue
        tokens.append({"id": number} | token)
        have[token["content"]] = tokens[-1]
    if outside:
        say(f"{where}: the model has no place for the tokens {listed(outside)}; to weft they are "
            "plain text")  # fmt: skip
    return len(tokens) > before or any(t["content"] not in outside for t in wanted)


def _wanted(where: str, config: Mapping[str, Any], have: Mapping[str, Token]) -> list[Token]:
    """Returns the tokens that the config adds, or gives other settings."""
    older = _by_id(where, config, OLDER_TOKENS)
    by_id = _by_id(where, config, "added_tokens_decoder") or older
    order = sorted(by_id.items(), key=lambda item: int(item[0]))
    known = {t["content"]: t for _, value in order for t in [_token(where, value, False)]}
    taken = {str(token["id"]) for token in have.values()} & older.keys()
    hidden = {content_of(older[i]) for i in taken}  # unless they have a name
    found = [t for c, t in known.items() if c not in hidden and not _same(t, have.get(c))]
    special = [(name, _token(where, value, True)) for name, value in _special(where, config)]
    names = {token["content"] for _, token in special}
    for token in found:
        token["special"] |= token["content"] in names
    there = have.keys() | {t["content"] for t in found}
    for name, token in special:  # with equal content, the last counts
        if name in NAMED:
            token = known.get(token["content"], token)
        if token["content"] not in there and token not in found:
            found.append(token)
    return found


def _by_id(where: str, config: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name) or {}
    if isinstance(found, dict) and all(k.isdecimal() and len(k) < 20 for k in found):
        return found
    raise ModelError(f"{where}: {name} is not a table of tokens by their ids")


def _special(where: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (name, token) for named special tokens, then further ones with name ""."""
    for name in NAMED:
        if config.get(name) is not None and content_of(config[name]) is None:
            raise ModelError(f"{where}: {name} is {shown(config[name])}, which is not a token")
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    if extra is not None and not isinstance(extra, dict | list):
        raise ModelError(f"{where}: further special tokens are {shown(extra)}; expected a list")
    others = (k for k in config if k.endswith("_token") and k not in NAMED)
    yield from ((name, config[name]) for name in (*NAMED, *others) if content_of(config.get(name)))
    for value in extra.values() if isinstance(extra, dict) else extra or ():
        yield "", value


def _token(where: str, value: Any, special: bool) -> Token:
    fields = value if isinstance(value, dict) else {"content": value}
    content = content_of(fields)
    if content is None:
        raise ModelError(f"{where}: {shown(value)} is not a token")
    flags = {name: flag_of(where, fields, name) for name in _FLAGS}
    flags["special"] = bool(flags["special"]) or special
    if flags["normalized"] is None:
        flags["normalized"] = not flags["special"]
    return {"content": content} | {name: bool(value) for name, value in flags.items()}


def _same(token: Token, other: Mapping[str, Any] | None) -> bool:
    return other is not None and all(token[k] == other.get(k, False) for k in ("content", *_FLAGS))


def _words(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model["vocab"]
    return vocab if isinstance(vocab, dict) else {piece[0]: i for i, piece in enumerate(vocab)}


# -- steps ----------------------------------------------------------------------------------------


def _normalize(where: str, step: Any, config: Mapping[str, Any], kind: str) -> bool:
    """Sets BertNormalizer's options from BertTokenizer's arguments, including defaults."""
    if not isinstance(step, dict) or step.get("type") != "BertNormalizer":
        return False
    if kind not in _BERT_CLASSES and kind:
        return False
    given: dict[str, bool | None] = {
        ours: flag_of(where, config, name) for name, ours in _BERT.items() if name in config
    }
    if kind:
        given = {"lowercase": True, "handle_chinese_chars": True, "strip_accents": None} | given
    changed = any(step.get(name) != value for name, value in given.items())
    step |= given
    return changed


def _prefix(where: str, step: Any, config: Mapping[str, Any]) -> bool:
    """Sets ByteLevel's option to put a space before a text."""
    space = flag_of(where, config, "add_prefix_space")
    if space is None or not isinstance(step, dict):
        return False
    steps = [s for s in step.get("pretokenizers", [step]) if s.get("type") == "ByteLevel"]
    changed = any(s.get("add_prefix_space") != space for s in steps)
    for s in steps:
        s["add_prefix_space"] = space
    return changed


def _no_prefix(where: str, file: dict[str, Any], config: Mapping[str, Any]) -> bool:
    """Removes the space before a text, if LlamaTokenizer's settings disable it."""
    if flag_of(where, config, "add_prefix_space") is not False:
        return False
    before = json.dumps([file.get(name) for name in _STEPS])
    for name, (inner, kind) in _STEPS.items():
        step = file.get(name) or {}
        rest = [s for s in step.get(inner, [step]) if s.get("type") != kind]
        for s in rest:
            if "prepend_scheme" in s:
                s["prepend_scheme"] = "never"
        if inner in step:
            step[inner] = rest
        elif step and not rest:
            file[name] = None
    return json.dumps([file.get(name) for name in _STEPS]) != before


def mended(data: bytes) -> bytes:
    """Returns the tokenizer.json `data` after FIX."""
    file = json.loads(data)
    return json.dumps(file, ensure_ascii=False).encode() if _mend_pattern(file) else data


def _mend_pattern(file: dict[str, Any]) -> bool:
    """Replaces the first split by the pattern of Mistral's own tokenizers. The vocabulary's size
    shows that a tokenizer was converted with another pattern."""
    tokens = _words(file["model"]).keys() | {t["content"] for t in file.get("added_tokens") or ()}
    step = file.get("pre_tokenizer")
    if not step or len(tokens) <= _LARGE:
        return False
    split = {"type": "Split", "pattern": {"Regex": TEKKEN}, "behavior": "Isolated", "invert": False}
    if step["type"] == "Sequence":
        step["pretokenizers"][:1] = [split]
        return True
    if step["type"] == "Metaspace":  # Metaspace loses spaces after a split
        step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                "use_regex": False}  # fmt: skip
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, step]}
    return True
