"""Writes a tokenizer.json as GGUF metadata: the reverse of models/gguf_tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.importers.hf_config import parse_json, read_bounded, read_object
from weft.models.arch.config import TokenIds
from weft.models.text.chat import read_template
from weft.models.text.gguf_tokenizer import PRE
from weft.models.text.tokenizer_fields import applied
from weft.models.text.tokenizer_plain import GPT2
from weft.models.text.tokenizer_settings import SETTINGS, read_settings

_AT = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6


def tokenizer_metadata(folder: Path, vocab: int, ids: TokenIds) -> dict[str, Any]:
    """Returns the metadata of the tokenizer in `folder`, {} without one. Raises UsageError for a
    tokenizer that llama.cpp cannot name; raises FileFormatError."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return {}
    config = read_settings(folder)
    changed = applied(str(folder / SETTINGS), read_bounded(path), config, vocab)
    raw = read_object(path) if changed is None else parse_json(changed, str(path))
    model = raw.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise UsageError(f"{path}: weft writes BPE tokenizers into GGUF, no other kind")
    spelled = bool(model.get("byte_fallback"))
    tokens, types = _tokens(raw, vocab, spelled)
    merges = [m.split(" ", 1) if isinstance(m, str) else m for m in model.get("merges", [])]
    found: dict[str, Any] = {f"{_AT}tokens": tokens, f"{_AT}token_type": np.asarray(types, "i4")}
    if spelled:
        found |= {f"{_AT}model": "llama", f"{_AT}scores": _scores(tokens, merges)}
        found[f"{_AT}add_space_prefix"] = '"Prepend"' in str(raw.get("normalizer")).replace(
            "'", '"'
        )
    else:
        found |= {f"{_AT}model": "gpt2", f"{_AT}pre": _pre(raw, model, path)}
        found[f"{_AT}merges"] = [f"{a} {b}" for a, b in merges]
    first = str(raw.get("post_processor"))
    bos = ids.bos is not None and ids.bos < vocab and repr(tokens[ids.bos]) in first
    found[f"{_AT}add_bos_token"] = bos
    named = {"bos": ids.bos, "eos": next(iter(ids.eos), None), "padding": ids.pad}
    found |= {
        f"{_AT}{k}_token_id": np.uint32(v)
        for k, v in named.items()
        if v is not None and 0 <= v < vocab
    }
    template = read_template(folder, config)
    return found | ({} if template is None else {"tokenizer.chat_template": template})


def _tokens(raw: dict[str, Any], vocab: int, spelled: bool) -> tuple[list[str], list[int]]:
    """Returns every id's text and type; ids without a token get a name of their own."""
    tokens = [f"[PAD{i}]" for i in range(vocab)]
    types = [_UNUSED] * vocab
    model = raw["model"]
    for token, i in model["vocab"].items():
        if 0 <= i < vocab:
            byte = spelled and len(token) == 6 and token.startswith("<0x")
            tokens[i], types[i] = token, _BYTE if byte else _NORMAL
            if token == model.get("unk_token"):
                types[i] = _UNKNOWN
    for added in raw.get("added_tokens", []):
        i = added["id"]
        if 0 <= i < vocab and types[i] != _UNKNOWN:
            tokens[i], types[i] = added["content"], _CONTROL if added["special"] else _USER
    return tokens, types


def _scores(tokens: list[str], merges: list[list[str]]) -> np.ndarray:
    """Returns scores float32 that keep the order of merges: the earlier, the higher."""
    rank: dict[str, int] = {}
    for i, (a, b) in enumerate(merges):
        rank.setdefault(a + b, i + 1)
    last = len(merges) + 1
    return np.array([-float(rank.get(t, last)) for t in tokens], np.float32)


def _pre(raw: dict[str, Any], model: dict[str, Any], path: Path) -> str:
    """Returns llama.cpp's name for the pre-tokenizer."""
    steps = raw.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    patterns = [s["pattern"].get("Regex") for s in steps if s.get("type") == "Split"]
    patterns += [GPT2 for s in steps if s.get("type") == "ByteLevel" and s.get("use_regex", True)]
    digits = [r"\p{N}" for s in steps if s.get("type") == "Digits"]
    patterns = digits + patterns
    whole = bool(model.get("ignore_merges"))
    for name, pre in PRE.items():
        if list(pre.patterns) == patterns and pre.whole == whole:
            return name
    raise UsageError(
        f"{path}: llama.cpp cannot split text like this tokenizer ({str(patterns)[:80]}), so weft "
        f"cannot write the model as GGUF; write a folder"
    )
