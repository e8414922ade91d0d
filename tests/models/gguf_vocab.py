"""Vocabularies as the keys of a GGUF file, and what SentencePiece's rule makes of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
from gguf_zoo import write_gguf
from model_zoo import CORPUS

from weft.models import load
from weft.models.run.base import Model

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TEXTS = [
    *CORPUS[:4],
    "  two  spaces, \t tabs \n\n\n and   lines \r\n",
    "Don't I'LL we've 123456 7890.5 x²  Ⅷ ½",
    "don'T stop, CamelCaseWord HTTPServer naïveté ΣΊΣΥΦΟΣ привет 你好，世界！",
    "<s>in the middle</s> of it<unk> <|im_end|>",
    "",
    " ",
    "   ",
    "😀👩‍🚀 \u200d \u0301 x\u0301",
    "a<b>=c ^ d~e | f$g + `h` (i) [j] {k}",
]  # fmt: skip
Write = Callable[[gguf.GGUFWriter], None]


def loaded(folder: Path, path: Path, write: Write) -> Model:
    return load(write_gguf(folder, path, tokenizer=write), device="oracle")


def byte_level(hf: Any, pre: str | None = "gpt-2", **keys: Any) -> Write:
    """The keys that llama.cpp's converter writes for byte-level BPE. `keys`: others to set; None
    leaves one out."""
    whole = json.loads(hf.backend_tokenizer.to_str())
    model, special = whole["model"], {t["id"] for t in whole["added_tokens"]}
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [CONTROL if i in special else NORMAL for i in range(len(tokens))]
    made = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types,
        "merges": [" ".join(pair) for pair in model["merges"]], "bos_token_id": 0,
        "eos_token_id": 1,
    }  # fmt: skip
    return written(made | keys)


def written(keys: dict[str, Any]) -> Write:
    def write(writer: gguf.GGUFWriter) -> None:
        for name, value in keys.items():
            key = name if "." in name else f"tokenizer.ggml.{name}"
            if value is not None:
                kind = gguf.GGUFValueType.get_type(value)
                kind = gguf.GGUFValueType.UINT32 if name.endswith("_id") else kind
                writer.add_key_value(key, value, kind)

    return write


SPECIAL = ["<unk>", "<s>", "</s>"]


def trained_pieces() -> list[tuple[str, float, int]]:
    """(token, score, type) of a vocabulary of 300, as SentencePiece numbers them: special tokens,
    bytes, merged pieces by falling score, letters."""
    from tokenizers import Tokenizer, models
    from tokenizers.trainers import BpeTrainer

    words = [CORPUS[0].replace(" ", "▁")] * 3 + [f"▁{w}" for t in CORPUS[:2] for w in t.split()] * 2
    raw = Tokenizer(models.BPE())
    raw.train_from_iterator(words, BpeTrainer(vocab_size=41, min_frequency=2))
    model = json.loads(raw.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    letters = [t for t in model["vocab"] if len(t) == 1]
    made = [(SPECIAL[0], 0.0, UNKNOWN), (SPECIAL[1], 0.0, CONTROL), (SPECIAL[2], 0.0, CONTROL)]
    made += [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]
    made += [(t, -float(i), NORMAL) for i, t in enumerate(merged)]
    made += [(t, -float(len(merged) + i), NORMAL) for i, t in enumerate(letters)]
    assert len(merged) >= 10 and len(made) == 300
    return made


def instead(
    pieces: Sequence[tuple[str, float, int]], *more: tuple[str, float, int]
) -> list[tuple[str, float, int]]:
    """The vocabulary with `more` at its end in the place of as many merged pieces."""
    merged = [i for i, (t, _, kind) in enumerate(pieces) if kind == NORMAL and len(t) > 1]
    dropped = set(merged[-len(more) :])
    return [p for i, p in enumerate(pieces) if i not in dropped] + list(more)


def sentencepiece(pieces: Sequence[tuple[str, float, int]], **keys: Any) -> Write:
    tokens, scores, types = (list(column) for column in zip(*pieces))
    made = {
        "model": "llama", "pre": "default", "tokens": tokens, "scores": scores,
        "token_type": types, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip
    return written(made | keys)


def by_the_rule(pieces: Sequence[tuple[str, float, int]], text: str) -> list[int]:
    """SentencePiece's BPE: of all neighbours that make a piece, the two that make the one with the
    highest score are joined, the leftmost first, until none do; what is no piece becomes bytes."""
    known = {t: (i, s) for i, (t, s, kind) in enumerate(pieces) if kind == NORMAL}
    ids = {t: i for i, (t, _, _) in enumerate(pieces)}
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(known[a + b][1], -i) for i, (a, b) in enumerate(pairwise(parts))
                 if a + b in known]  # fmt: skip
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    out = []
    for part in parts:
        spelled = [part] if part in known else [f"<0x{b:02X}>" for b in part.encode()]
        out += [ids[p] for p in spelled]
    return out
