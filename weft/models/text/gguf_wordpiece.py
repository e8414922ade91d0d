"""The vocabularies of encoders in GGUF files as tokenizer.json: WordPiece ("bert") and unigrams
("t5")."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import ModelError

if TYPE_CHECKING:
    from weft.models.text.gguf_tokenizer import Vocabulary

_SPACE = "▁"


def wordpiece(v: Vocabulary) -> dict[str, Any]:
    """Returns BERT's WordPiece. In the file a word's first piece begins with "▁", and the others
    lack their "##". llama.cpp lowers all letters and takes off accents."""
    plain = {*v.of_type(1)} if v.types is not None else {*range(len(v.tokens))}
    spelled = [_piece(t) if i in plain else t for i, t in enumerate(v.tokens)]
    ids = {token: i for i, token in enumerate(spelled)}
    unknown = v.id_of("unknown")
    unk = "[UNK]" if unknown is None else spelled[unknown]
    if unk not in ids or len(ids) < len(spelled):
        raise ModelError(f"{v.where}: its WordPiece vocabulary has no {unk[:40]!r}, or twins")
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": True, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": between(v),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": unk, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    }  # fmt: skip


def _piece(token: str) -> str:
    return token[1:] if token.startswith(_SPACE) and len(token) > 1 else f"##{token}"


def unigram(v: Vocabulary) -> dict[str, Any]:
    """Returns SentencePiece's unigrams, as XLM-RoBERTa and T5 have them."""
    if v.scores is None:
        raise ModelError(
            f"{v.where}: tokenizer.ggml.scores is missing; a tokenizer of model t5 needs scores"
        )
    unknown = v.id_of("unknown")
    unknown = next(iter(v.of_type(2)), None) if unknown is None else unknown
    table = v.fields.data.get("tokenizer.ggml.precompiled_charsmap")
    steps: list[dict[str, Any]] = []
    if isinstance(table, np.ndarray) and table.dtype.itemsize == 1 and table.size:
        data = base64.b64encode(table.tobytes()).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": data})
    if v.fields.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        pattern = {"Regex": " {2,}"}
        steps.append({"type": "Replace", "pattern": pattern, "content": " "})
    prefix = v.fields.flag("tokenizer.ggml.add_space_prefix", True)
    space = {"type": "Metaspace", "replacement": _SPACE, "split": True,
             "prepend_scheme": "always" if prefix else "never"}  # fmt: skip
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": space,
        "post_processor": between(v, twice=True),
        "decoder": space,
        "model": {
            "type": "Unigram", "unk_id": unknown, "byte_fallback": False,
            "vocab": [[t, float(s)] for t, s in zip(v.tokens, v.scores.tolist())],
        },
    }  # fmt: skip


def between(v: Vocabulary, twice: bool = False) -> dict[str, Any] | None:
    """Returns the post-processor that adds the tokens before and after a text. Those that the
    metadata name count, unless a flag says otherwise. With `twice` the texts of a pair have the
    last one twice between them, if texts have a first one (XLM-RoBERTa)."""
    flags = {"bos": True, "eos": True}
    found: list[tuple[str, int] | None] = []
    for name, other in (("bos", "cls"), ("eos", "seperator")):
        ids = [i for i in (v.id_of(other), v.id_of(name)) if i is not None]
        wanted = v.fields.flag(f"tokenizer.ggml.add_{name}_token", flags[name])
        wanted = wanted or v.fields.flag("tokenizer.ggml.add_sep_token", False)
        found.append((v.tokens[ids[0]], ids[0]) if ids and wanted else None)
    if not any(found):
        return None
    a, b = ({"Sequence": {"id": which, "type_id": n}} for n, which in enumerate("AB"))

    def special(which: int, part: int) -> list[dict[str, Any]]:
        token = found[which]
        return [] if token is None else [{"SpecialToken": {"id": token[0], "type_id": part}}]

    single = [*special(0, 0), a, *special(1, 0)]
    more = special(1, 0) if twice and special(0, 0) else []
    tokens = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in filter(None, found)}
    return {
        "type": "TemplateProcessing", "single": single, "pair": [*single, *more, b, *special(1, 1)],
        "special_tokens": tokens,
    }  # fmt: skip
