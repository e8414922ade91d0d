"""SentencePiece's tokenizers from GGUF files: against its rule and against transformers' reading of
the same file. Vocabularies of both kinds that contradict themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_vocab import (
    BYTE,
    NORMAL,
    TEXTS,
    USER,
    by_the_rule,
    byte_level,
    instead,
    loaded,
    sentencepiece,
    trained_pieces,
)  # fmt: skip
from gguf_zoo import write_gguf

from weft.core.errors import ModelError
from weft.host.cache import DiskCache
from weft.models import load
from weft.models.text import gguf_tokenizer


@pytest.fixture(scope="module")
def pieces() -> list[tuple[str, float, int]]:
    return trained_pieces()


@pytest.mark.parametrize("prefix", [True, False, None])
def test_sentencepiece_by_its_rule(
    prefix: bool | None, folder: Path, pieces: Any, tmp_path: Path
) -> None:
    write = sentencepiece(pieces, add_space_prefix=prefix)
    made = loaded(folder, tmp_path / "m.gguf", write)
    assert made.tokenizer is not None
    for text in TEXTS:
        if "<s>" in text:
            continue
        before = "" if prefix is False or not text else " "
        want = [1, *by_the_rule(pieces, before + text)]  # bos goes first, unless the file says no
        ids = made.tokenizer.encode(text)
        assert ids == want, text
        assert made.tokenizer.decode(ids) == text
    joined = made.tokenizer.encode("lazy<s>dog", special=False)
    before = "" if prefix is False else " "
    want = [*by_the_rule(pieces, f"{before}lazy"), 1, *by_the_rule(pieces, f"{before}dog")]
    assert joined == want  # the space goes before each part, as llama.cpp has it
    assert made.tokenizer._coder._near is not None


def test_a_tokenizer_is_made_once(
    folder: Path, pieces: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_tokenizer.disk, "programs", lambda: DiskCache(tmp_path / "kept"))
    real, found = gguf_tokenizer._tokenizer_json, []
    monkeypatch.setattr(
        gguf_tokenizer, "_tokenizer_json", lambda v: found.append(v) or real(v)
    )  # fmt: skip
    ids = []
    other = [(text, score - 1.0, kind) for text, score, kind in pieces]
    for i, listed in enumerate((pieces, pieces, other)):
        made = loaded(folder, tmp_path / f"{i}.gguf", sentencepiece(listed)).tokenizer
        assert made is not None
        ids.append([made.encode(text) for text in TEXTS])
        assert len(found) == (1, 1, 2)[i]
    assert ids[0] == ids[1] == ids[2]
    monkeypatch.setattr(gguf_tokenizer, "stamp", lambda kind: f"another source of {kind}")
    assert loaded(folder, tmp_path / "0.gguf", sentencepiece(pieces)).tokenizer is not None
    assert len(found) == 3  # made by another source, so made again


def test_sentencepiece_as_transformers_reads_the_file(
    folder: Path, pieces: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    path = tmp_path / "m.gguf"
    ours = loaded(folder, path, sentencepiece(pieces)).tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    assert ours is not None
    for text in TEXTS:
        if text.startswith(" ") or "<s>" in text:
            continue  # it puts no space before a space, nor after a special token
        assert ours.encode(text) == theirs.encode(text), text


def test_runs_of_spaces_of_gemma(folder: Path, pieces: Any, tmp_path: Path) -> None:
    """They are written as spaces, come about by merging, and are no tokens of their own."""
    runs = [("  ", -50.0, USER), ("   ", -51.0, USER), ("    ", -52.0, USER)]
    made = instead(pieces, *runs, ("\n\n", -53.0, USER))
    model = loaded(folder, tmp_path / "m.gguf", sentencepiece(made, add_space_prefix=False))
    assert model.tokenizer is not None
    first = len(made) - 4
    text = "a  b    c\n\nd"
    ids = model.tokenizer.encode(text, special=False)
    a, b, c, d = (by_the_rule(made, x)[0] for x in "abcd")
    assert ids == [a, first, b, first + 2, c, first + 3, d]
    assert model.tokenizer.decode(ids) == text


def test_pieces_with_merges_of_gemma_4(folder: Path, pieces: Any, tmp_path: Path) -> None:
    """Against transformers' tokenizer of the same vocabulary and merges."""
    from transformers import GemmaTokenizer

    made = instead(pieces, ("\n\n", -60.0, NORMAL))
    ids = {token: i for i, (token, _, _) in enumerate(made)}
    splits = ((t[:at], t[at:]) for t in ids if t[0] != "<" for at in range(1, len(t)))
    merges = [pair for pair in splits if all(part in ids for part in pair)]
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    theirs = GemmaTokenizer(ids, merges, pad_token="<unk>", mask_token="<unk>", **names)
    keys = {"model": "gemma4", "pre": None, "merges": [" ".join(m) for m in merges]}
    ours = loaded(folder, tmp_path / "m.gguf", sentencepiece(made, **keys)).tokenizer
    assert ours is not None and len(merges) > 10
    for text in [*TEXTS, "a\n\nb\n\n\nc"]:
        want = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == [1, *want], text
        assert ours.decode(want) == theirs.decode(want, skip_special_tokens=True), text


# -- what is not supported, and files that lie ----------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"pre": "poro-chat"}, "'poro-chat', which is not supported; supported: default"),
        ({"model": "rwkv"}, "'rwkv', which is not supported; supported: gpt2, llama, gemma4"),
        ({"tokens": ["a", "b", "a", *map(str, range(297))], "token_type": None},
         "tokens holds 'a' twice"),
        ({"tokens": [1, 2], "llama.vocab_size": 300}, "tokens is not a list of texts"),
        ({"token_type": [1, 1]}, "token_type has 2 entries; expected 300 finite ones"),
        ({"token_type": "x"}, "token_type is not a list of numbers"),
        ({"merges": None}, "merges is not a list of texts"),
        ({"merges": ["nospace"]}, "merges holds 'nospace'; expected two tokens"),
        ({"merges": ["a 😀"]}, "merges holds 'a 😀'; expected two tokens"),
        ({"bos_token_id": 300}, "bos_token_id is 300; there are 300 tokens"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is missing"),
        ({"add_bos_token": 1}, "add_bos_token is 1; expected true or false"),
        ({"tokenizer.chat_template": 7}, "chat_template is 7; expected a string"),
        ({"model": "llama"}, "scores is missing"),
        ({"model": "llama", "scores": [float("nan")] * 300}, "scores has 300 entries; expected"),
        ({"model": "llama", "scores": [0.0] * 300, "token_type": [BYTE] * 300},
         "token 0, a byte, is spelled '<s>'; expected <0x"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(ModelError, match=said) as caught:
        _ = loaded(folder, path, byte_level(bytes_tokenizer, **keys)).tokenizer
    assert str(path) in str(caught.value)


def test_a_tokenizer_that_has_more_tokens_than_the_model(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    keys = {"llama.vocab_size": 300, "tokens": [str(i) for i in range(400)], "merges": ["1 2"],
            "token_type": None}  # fmt: skip
    model = loaded(folder, tmp_path / "m.gguf", byte_level(bytes_tokenizer, **keys))
    with pytest.raises(ModelError, match="has 400 tokens; the model's vocab_size is 300"):
        _ = model.tokenizer


def test_tokens_too_long_to_take_apart(folder: Path, pieces: Any, tmp_path: Path) -> None:
    """The ways to make a token grow with its length: a long one would take for ever."""
    made = instead(pieces, ("a" * 20_000, -60.0, NORMAL))
    model = loaded(folder, tmp_path / "m.gguf", sentencepiece(made))
    with pytest.raises(ModelError, match="too long for merges, up to 20000 letters"):
        _ = model.tokenizer


def test_bytes_that_are_no_text(folder: Path, pieces: Any, tmp_path: Path) -> None:
    write = sentencepiece(instead(pieces, ("QQQQ", -60.0, NORMAL)))
    path = write_gguf(folder, tmp_path / "m.gguf", tokenizer=write)
    path.write_bytes(path.read_bytes().replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))
    model = load(path, device="oracle")
    with pytest.raises(ModelError, match="a token or a merge is not valid UTF-8"):
        _ = model.tokenizer


def test_a_vocabulary_that_looks_odd_goes_to_a_child(
    folder: Path, pieces: Any, tmp_path: Path
) -> None:
    """A token spelled like an entry that the check looks for: not trusted here, and as good."""
    odd = instead(pieces, ("continuing_subword_prefix", -60.0, NORMAL))
    made = loaded(folder, tmp_path / "m.gguf", sentencepiece(odd)).tokenizer
    assert made is not None and made._coder._near is None
    assert made.encode("the dog") == [1, *by_the_rule(odd, " the dog")]
    assert made.decode(made.encode("the dog")) == "the dog"
