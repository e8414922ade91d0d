"""tokenizer_config.json: what changes ids, with transformers' fast tokenizers as the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_zoo import CORPUS, VOCAB as SIZE, write_tokenizer

from weft.core import notices
from weft.core.errors import ModelError
from weft.models.text.tokenizer import Tokenizer

VOCAB = SIZE + 20  # of the model
TEXTS = [
    CORPUS[0],
    "",
    " two",
    "a<s>b </s> c<unk>",
    "x <new> y<new>z",
    "a <Other> b",
    "Ünder the FOX",
]


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    notices.say.cache_clear()
    yield


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"content": content} | plain | flags


def changed(folder: Path, change: dict[str, Any], kind: str, **file: Any) -> Path:
    """A folder whose tokenizer_config.json says `change`, and whose tokenizer.json says `file`."""
    write_tokenizer(folder, kind)
    for name, more in (("tokenizer_config.json", change), ("tokenizer.json", file)):
        path = folder / name
        found = json.loads(path.read_text()) | more
        path.write_text(json.dumps({k: v for k, v in found.items() if v != "left out"}))
    return folder


def theirs(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def equal(folder: Path, reference: Any, vocab: int = VOCAB) -> None:
    ours = Tokenizer(folder, vocab)
    again = Tokenizer(folder, vocab, made=ours.made())  # as a compiled file has it
    for text in TEXTS:
        for special in (True, False):
            want = reference(text, add_special_tokens=special)["input_ids"]
            assert ours.encode(text, special) == want, (text, special)
            assert again.encode(text, special) == want, (text, special)
        ids = reference(text)["input_ids"]
        for skip in (True, False):
            assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
    assert ours.added == {i: str(t) for i, t in reference.added_tokens_decoder.items()}


CHANGES: list[dict[str, Any]] = [
    {"add_bos_token": True}, {"add_eos_token": True}, {"add_bos_token": False},
    {"add_bos_token": True, "add_eos_token": True}, {"add_eos_token": False},
    {"add_bos_token": True, "bos_token": None},
    {"add_bos_token": True, "bos_token": {"__type": "AddedToken"} | token("<new>")},
    {"split_special_tokens": True}, {"split_special_tokens": False},
    {"added_tokens_decoder": {"1": token("</s>", special=False)}},
    {"added_tokens_decoder": {"0": token("<s>", lstrip=True, rstrip=True, special=True)}},
    {"added_tokens_decoder": {"300": token("<new>", special=True), "299": token("<Other>")}},
    {"added_tokens_decoder": {"300": token("<Other>", normalized=True), "2": token("FOX")}},
    {"pad_token": "<new>"}, {"image_token": "<new>"}, {"pad_token": "fox"},
    {"extra_special_tokens": ["<new>", "<Other>"]}, {"additional_special_tokens": ["<new>"]},
    {"extra_special_tokens": {"image_token": "<new>"}, "sep_token": "<Other>"},
    {"add_prefix_space": True}, {"legacy": False}, {"do_lower_case": True},
    {"clean_up_tokenization_spaces": True}, {"padding_side": "left"},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: json.dumps(c)[:50])
@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_ids_equal_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    folder = changed(tmp_path, change, kind)
    equal(folder, theirs(folder))


PROCESSORS: list[Any] = [
    None,
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0], "trim_offsets": True,
     "add_prefix_space": False},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES[:4])
@pytest.mark.parametrize("step", range(len(PROCESSORS)))
def test_whatever_stood_around(step: int, change: dict[str, Any], tmp_path: Path) -> None:
    folder = changed(tmp_path, change, "bytes", post_processor=PROCESSORS[step])
    equal(folder, theirs(folder))


BERT = {
    "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
    "strip_accents": None, "lowercase": False,
}  # fmt: skip


@pytest.mark.parametrize("change", [
    {}, {"do_lower_case": True}, {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False}, {"tokenize_chinese_chars": False},
])  # fmt: skip
@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer"])
def test_what_bert_makes_of_letters(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [
        p + c for c in sorted(set("".join(TEXTS).lower() + "日本üÜABCDEF")) for p in ("", "##")
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    made = BertTokenizer(vocab={w: i for i, w in enumerate(words)})
    made.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw | {"normalizer": BERT}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} | change))
    reference, ours = BertTokenizer.from_pretrained(tmp_path), Tokenizer(tmp_path, 500)
    for text in [*TEXTS, "日本 A"]:
        assert ours.encode(text) == reference(text)["input_ids"]


@pytest.mark.parametrize("space", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_a_space_before_a_text(stored: bool, space: bool, tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    write_tokenizer(tmp_path, "bytes")
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    raw["pre_tokenizer"]["add_prefix_space"] = stored
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    config = {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": space, "bos_token": "<s>",
              "eos_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    equal(tmp_path, GPT2Tokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("stored", ["Prepend", "always", "first", "never"])
def test_no_space_before_a_text_of_llama(stored: str, tmp_path: Path) -> None:
    from transformers import LlamaTokenizer

    write_tokenizer(tmp_path, "fallback")
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    if stored != "Prepend":
        raw["pre_tokenizer"] = {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": stored, "split": False,
        }  # fmt: skip
        raw["normalizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    equal(tmp_path, LlamaTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("stored", ["Left", "Right"])
def test_the_side_that_is_cut(stored: str, side: str | None, tmp_path: Path) -> None:
    cut = {"direction": stored, "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    change = {} if side is None else {"truncation_side": side}
    folder = changed(tmp_path, {"truncation_side": "left out"} | change, "fallback", truncation=cut)
    reference, ours = theirs(folder), Tokenizer(folder, VOCAB, 6)
    want = reference(CORPUS[0], truncation=True, max_length=6)["input_ids"]
    assert ours.encode(CORPUS[0]) == want


def test_a_token_that_the_model_has_no_place_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(tmp_path, {"pad_token": "<new>"}, "bytes")
    size = Tokenizer(folder, VOCAB).size - 1  # as it is without
    assert Tokenizer(folder, size).encode("<new>") == Tokenizer(folder, size).encode("<new>", False)
    assert capsys.readouterr().err.count("no place for the tokens <new>") == 1


def test_unknown_fields_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, {"rotate_tokens": 3, "legacy": True, "x": None}, "bytes")
    Tokenizer(folder, VOCAB)
    Tokenizer(folder, VOCAB)
    said = f"{folder / 'tokenizer_config.json'}: weft does not know rotate_tokens, which changes"
    assert capsys.readouterr().err == f"weft: {said} nothing here\n"


def test_spaces_that_transformers_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(tmp_path, {"clean_up_tokenization_spaces": True}, "bytes")
    Tokenizer(folder, VOCAB).decode([5])
    assert not capsys.readouterr().err  # BPE: transformers leaves the text alone
    path = folder / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "<unk>": 2}, "unk_token": "<unk>"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": model}))
    ours = Tokenizer(folder, VOCAB)
    assert not capsys.readouterr().err
    ours.decode([2])
    ours.decode([2])
    assert capsys.readouterr().err.count("clean_up_tokenization_spaces") == 1


@pytest.mark.parametrize("change", [
    {"truncation_side": "middle"}, {"split_special_tokens": 1},
    {"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"x": {}}},
    {"added_tokens_decoder": {"5": "<s>x", "6": 7}}, {"extra_special_tokens": [5]},
    {"added_tokens_decoder": {"5": token("a") | {"lstrip": "no"}}},
])  # fmt: skip
def test_values_that_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    folder = changed(tmp_path, change, "bytes")
    with pytest.raises(ModelError, match=next(iter(change)) + "|is not a token|lstrip"):
        Tokenizer(folder, VOCAB)
