"""The bytes of tokens, against llguidance's own reader of tokenizer.json and against decoding."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from weft.core.errors import UsageError
from weft.hub.box import box_folder
from weft.importers.gguf_values import Texts
from weft.models.grammar import grammars as grammar
from weft.models.grammar.grammars import Grammars
from weft.models.grammar.vocabulary import token_bytes
from weft.models.text.gguf_tokenizer import read_tokenizer
from weft.models.text.tokenizer import Tokenizer

TEXT = ["the quick brown fox, jumps over 13 lazy dogs", "größer als 🙂 zero", '{"a": [1, 2]}']


def byte_level() -> Any:
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, show_progress=False)
    raw.train_from_iterator(TEXT, trainer)
    return raw


def pieces(prefix: bool = False) -> Any:
    """What Llama 2 and Gemma have: "▁" for spaces, bytes for what is no piece."""
    listed = [f"<0x{b:02X}>" for b in range(256)] + [
        "▁",
        *'abcdefghij{}[]:,"0123456789',
        "▁a",
        "ab",
    ]
    vocab = {"<unk>": 0} | {t: i + 1 for i, t in enumerate(listed)}
    raw = tokenizers.Tokenizer(
        models.BPE(vocab, [("▁", "a"), ("a", "b")], byte_fallback=True, unk_token="<unk>")
    )
    steps = [normalizers.Prepend("▁")] if prefix else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return raw


def metaspace() -> Any:
    raw = tokenizers.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("▁the", -1.0), ("x", -2.0), ("é", -2.0)], 0)
    )
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    raw.decoder = decoders.Metaspace(prepend_scheme="never")
    return raw


def saved(raw: Any, folder: Path) -> Tokenizer:
    raw.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True)])
    raw.add_tokens([tokenizers.AddedToken("<tool_call>", special=False, normalized=False)])
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return Tokenizer(folder, raw.get_vocab_size())


@pytest.mark.parametrize("make", [byte_level, pieces, lambda: pieces(True)])
def test_bytes_are_those_that_llguidance_reads_itself(make: Any, tmp_path: Path) -> None:
    import llguidance

    tokenizer = saved(make(), tmp_path)
    tokens, special = token_bytes(tokenizer, tokenizer.size)
    theirs = llguidance.LLTokenizer((tmp_path / "tokenizer.json").read_text())
    end = tokenizer.encode("<|end|>", special=False)[-1]
    assert special == {end} and tokens[end + 1] == b"<tool_call>"
    for i, ours in enumerate(tokens):
        if not theirs.is_special_token(i):
            assert theirs.decode_bytes([i]) == ours, i


def test_pieces_of_unigrams(tmp_path: Path) -> None:
    """llguidance does not read these; decoding two tokens gives both texts."""
    tokenizer = saved(metaspace(), tmp_path)
    tokens, _ = token_bytes(tokenizer, tokenizer.size)
    x = tokenizer.encode("x", special=False)[-1]
    for i in range(1, tokenizer.size):
        assert tokenizer.decode([x, i, x], skip_special=False) == f"x{tokens[i].decode()}x"


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_the_bytes_of_a_text_are_those_of_its_tokens(text: str) -> None:
    tokenizer = Tokenizer(box_folder(), 2048)
    tokens, special = token_bytes(tokenizer, 2048)
    ids = tokenizer.encode(text, special=False)
    if not special & set(ids):
        assert b"".join(tokens[i] for i in ids) == text.encode()


@pytest.mark.parametrize("make", [byte_level, pieces])
def test_special_tokens_are_no_text(make: Any, tmp_path: Path) -> None:
    tokenizer = saved(make(), tmp_path)
    tokens, special = token_bytes(tokenizer, tokenizer.size)
    (end,) = special
    made = Grammars(tokenizer, tokenizer.size, [end])
    mask = made.compile(grammar.regex(r"<\|end\|>|<tool_call>"))().allowed()
    shown = {tokens[i] for i in np.flatnonzero(mask)}
    assert b"<tool_call>" in shown and b"<" in shown and b"<|end|>" not in shown


def test_tokens_without_bytes_are_refused(tmp_path: Path) -> None:
    raw = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    tokenizer = saved(raw, tmp_path)
    with pytest.raises(UsageError, match="WordPiece"):
        token_bytes(tokenizer, tokenizer.size)


def test_a_gguf_files_vocabulary(tmp_path: Path) -> None:
    """Pieces of SentencePiece as GGUF has them: spaces, bytes, a control token, a user's."""
    spelled = [
        "<unk>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "\u2581a",
        "b",
        "  ",
        "<tool>",
    ]
    count = len(spelled)
    listed = [len(t.encode()).to_bytes(8, "little") + t.encode() for t in spelled]
    tokens = Texts(b"".join(listed), [0, *itertools.accumulate(map(len, listed))])
    types = [2, 3, *[6] * 256, 1, 1, 1, 4]
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types), "tokenizer.ggml.scores": np.zeros(count),
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    path = tmp_path / "model.gguf"
    made = read_tokenizer(SimpleNamespace(metadata=metadata, path=path))  # type: ignore[arg-type]
    assert made is not None
    tokenizer = Tokenizer(path, count, made=made)
    found, special = token_bytes(tokenizer, count)
    assert special == {0, 1}
    assert found[2:258] == [bytes([b]) for b in range(256)]
    assert found[258:] == [b" a", b"b", b"  ", b"<tool>"]
