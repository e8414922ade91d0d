"""Files beside a tokenizer.json, with transformers' AutoTokenizer as the truth."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as rules, strategies as st
from model_zoo import write_tokenizer
from rows import few

from weft.core.errors import ModelError
from weft.models.arch.config import TokenIds
from weft.models.text.tokenizer import Tokenizer
from weft.models.text.tokenizer_fields import FIX
from weft.models.text.tokenizer_settings import read_settings
from weft.models.weights import writing
from weft.quantize.gguf_tokens import tokenizer_metadata

WORDS = ["HelloWorld", "abcDEF", "ÀÉmile", "12345", "won't", "  ", " ", "\n\n", "...//", "<s>",
         "</s>", "<new>", "<Other>", "naïve", "ICloud", "日本", "x <new>y", "\t-- "]  # fmt: skip


def texts(seed: int, count: int = 60) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(count)]


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value))


def theirs(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def equal(folder: Path, vocab: int, seed: int = 0) -> Tokenizer:
    ours, reference = Tokenizer(folder, vocab), theirs(folder)
    again = Tokenizer(folder, vocab, made=ours.made())
    for text in texts(seed):
        want = reference(text)["input_ids"]
        assert ours.encode(text) == want, text
        assert again.encode(text) == want, text
        assert ours.decode(want, False) == reference.decode(want)
    assert ours.added == {i: str(t) for i, t in reference.added_tokens_decoder.items()}
    named = {n: str(getattr(reference, n)) for n in ("bos_token", "eos_token", "unk_token")
             if getattr(reference, n) is not None}  # fmt: skip
    assert {k: v for k, v in ours.special_tokens.items() if k in ("bos_token", "eos_token",
            "unk_token")} == named  # fmt: skip
    return ours


# -- fix_mistral_regex ----------------------------------------------------------------------------

STEPS: dict[str, Any] = {
    "sequence": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated",
         "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]},
    "bytes": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True},
    "metaspace": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never",
                  "split": False},
    "none": None,
}  # fmt: skip
LARGE = 100_050


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose tokenizer has more than 100,000 tokens, with merges across the words that
    the patterns cut differently."""
    folder = tmp_path_factory.mktemp("large")
    write_tokenizer(folder, "bytes")
    file = json.loads((folder / "tokenizer.json").read_text())
    vocab, merges = file["model"]["vocab"], file["model"]["merges"]
    for a, b in (
        ("o", "W"),
        ("c", "D"),
        ("1", "2"),
        ("3", "4"),
        ("I", "C"),
        ("/", "/"),
        (".", "/"),
    ):
        vocab.setdefault(a + b, len(vocab))
        merges.append([a, b])
    for i in range(len(vocab), LARGE):
        vocab[f"<u{i}>"] = i
    write(folder, "tokenizer.json", file)
    return folder


def mistral(
    large: Path, folder: Path, step: str = "sequence", config: Any = None, fix: Any = True
) -> Path:
    file = json.loads((large / "tokenizer.json").read_text())
    file["pre_tokenizer"] = STEPS[step]
    write(folder, "tokenizer.json", file)
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>"} | ({} if fix is None else {FIX: fix}))  # fmt: skip
    if config is not None:
        write(folder, "config.json", config)
    return folder


OLD = {"model_type": "mistral", "transformers_version": "4.57.1"}


@pytest.mark.parametrize("step", few(STEPS, "sequence", "none"))
def test_the_pattern_of_mistral_is_mended(step: str, large: Path, tmp_path: Path) -> None:
    equal(mistral(large, tmp_path, step, OLD), LARGE + 20)


CONFIGS: list[dict[str, str] | None] = [
    None, {"model_type": "mistral"}, {"model_type": "mistral3", "transformers_version": "4.0.0"},
    {"model_type": "llama", "transformers_version": "4.57.1"}, {"transformers_version": "4.57.1"},
    {"model_type": "mistral", "transformers_version": "5.0.0"},
    {"model_type": "mistral", "transformers_version": "5.0.0rc1"},
    {"model_type": "mistral", "transformers_version": "5.0.0.dev0"},
    {"model_type": "mistral", "transformers_version": "5.1"},
    {"model_type": "mistral", "transformers_version": "10.0.0"},
]  # fmt: skip


@pytest.mark.parametrize("config", few(CONFIGS, *CONFIGS[::2], CONFIGS[9]), ids=str)
def test_which_models_have_it(config: Any, large: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = mistral(large, tmp_path, "sequence", config)
    ours, reference = Tokenizer(folder, LARGE), PreTrainedTokenizerFast.from_pretrained(folder)
    for text in texts(1):
        assert ours.encode(text) == reference(text)["input_ids"], text


@pytest.mark.parametrize("fix", [False, None])
def test_without_it_the_file_stays(
    fix: Any, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = equal(mistral(large, tmp_path, "sequence", OLD, fix), LARGE)
    assert ours.file() == (tmp_path / "tokenizer.json").read_bytes()
    assert FIX not in capsys.readouterr().err


def test_small_vocabularies_stay(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "bytes")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    write(tmp_path, "tokenizer_config.json", config | {FIX: True})
    write(tmp_path, "config.json", OLD)
    equal(tmp_path, 700)


def test_a_copy_for_training_is_mended(large: Path, tmp_path: Path) -> None:
    """The folder of a run's data has no config.json."""
    source, target = tmp_path / "from", tmp_path / "to"
    target.mkdir()
    source.mkdir()
    ours = Tokenizer(mistral(large, source, "sequence", OLD), LARGE)
    writing.copy_tokenizer(source, target)
    assert Tokenizer(target, LARGE).encode_batch(texts(2)) == ours.encode_batch(texts(2))


def test_gguf_names_the_mended_pattern(large: Path, tmp_path: Path) -> None:
    folder = mistral(large, tmp_path, "sequence", OLD)
    file = json.loads((folder / "tokenizer.json").read_text())
    file["model"]["ignore_merges"] = True  # as Tekken's
    write(folder, "tokenizer.json", file)
    said = tokenizer_metadata(folder, LARGE, TokenIds((1,), 0, None))
    assert said["tokenizer.ggml.pre"] == "tekken"


@pytest.mark.parametrize("value", ["yes", 1, [], {}])
def test_a_fix_that_is_neither(value: Any, large: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{FIX} is .*expected true or false"):
        Tokenizer(mistral(large, tmp_path, "sequence", OLD, value), LARGE)


# -- added_tokens.json and special_tokens_map.json -------------------------------------------------

NEW = ["<new>", "<Other>", "fox", "<unk>", "</s>", "x"]
tokens = st.sampled_from(NEW)
named = st.dictionaries(
    st.sampled_from(["bos_token", "eos_token", "unk_token", "pad_token", "image_token"]),
    st.one_of(tokens, st.none()), max_size=3)  # fmt: skip
maps = st.fixed_dictionaries({}, optional={
    "pad_token": st.one_of(tokens, tokens.map(lambda t: {
        "content": t, "lstrip": True, "rstrip": False, "normalized": False, "single_word": False})),
    "eos_token": tokens,
    "additional_special_tokens": st.lists(tokens, max_size=3, unique=True),
    "extra_special_tokens": st.lists(tokens, max_size=3, unique=True),
})  # fmt: skip
ids = st.dictionaries(tokens, st.integers(0, 700), max_size=4)


@pytest.fixture(scope="module", params=["bytes", "fallback"])
def plain(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_tokenizer(folder, request.param)
    return folder


@given(older=ids, names=maps, config=named, decoder=st.booleans(),
       extra=st.one_of(st.none(), st.lists(tokens, max_size=2, unique=True)))  # fmt: skip
@rules(max_examples=25, deadline=None)
def test_older_files(
    plain: Path, tmp_path_factory: pytest.TempPathFactory, older: dict[str, int],
    names: dict[str, Any], config: dict[str, Any], decoder: bool, extra: list[str] | None,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("older")
    for file in plain.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings |= config | ({} if extra is None else {"extra_special_tokens": extra})
    if decoder:
        settings["added_tokens_decoder"] = {}
    write(folder, "tokenizer_config.json", settings)
    write(folder, "special_tokens_map.json", names)
    write(folder, "added_tokens.json", older)
    equal(folder, 800)


@pytest.mark.parametrize("older", [{"<a>": "5"}, {"<a>": -1}, {"<a>": None}, {"<a>": True},
                                   {"<a>": [1]}, {"<a>": 1.5}])  # fmt: skip
def test_ids_that_are_none(older: Any, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "bytes")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    write(tmp_path, "tokenizer_config.json", settings)
    write(tmp_path, "added_tokens.json", older)
    with pytest.raises(ModelError, match=r"added_tokens\.json: the token '<a>' has the id"):
        read_settings(tmp_path)


def test_a_copy_has_the_older_tokens(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    target.mkdir()
    write_tokenizer(source, "bytes")
    write(source, "tokenizer_config.json", {})
    write(source, "added_tokens.json", {"<new>": 600})
    writing.copy_tokenizer(source, target)
    assert Tokenizer(target, 800).encode("a<new>b") == Tokenizer(source, 800).encode("a<new>b")
    assert "<new>" in Tokenizer(target, 800).added.values()
