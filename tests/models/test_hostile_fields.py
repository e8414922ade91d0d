"""Every field of a model folder's JSON files with odd values: a named error, or a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model_zoo import write_model, write_tokenizer
from rows import few
from test_config_fields import CASES, TABLES, read, written

from weft.cli.main import invoke
from weft.core.errors import ModelError, WeftError
from weft.core.text import shown
from weft.importers.hf_config import parse_json, read_config
from weft.models.arch.family_fields import ALIASES
from weft.models.arch.inert_fields import REFUSED
from weft.models.run import sentence_folder
from weft.models.run.sentence_folder import makes_vectors, read_pooling
from weft.models.text import tokenizer_fields
from weft.models.text.token_ids import read_token_ids
from weft.models.text.tokenizer import Tokenizer
from weft.training.tokens import end_token


def nested(depth: int, begin: str = "[", end: str = "]", inner: str = "") -> str:
    return begin * depth + inner + end * depth


# As JSON text: what Python reads of it, or that it cannot.
ODD = [
    "null", "true", "false", '""', f'"{"x" * 10_000}"', r'"a\nb\u001b[31m"', r'"\ud800"', "[]",
    '["a"]', "[null]", "[1.5, -1]", "{}", '{"a": {}}', '{"": null}', "NaN", "1e400", "-1e400",
    "-1", "0", "1", "2", "1.5", "1" + "0" * 30, "1" + "0" * 4000, "1" + "0" * 5000, "[[[]]]",
    nested(900), nested(960), nested(990), nested(10_000), nested(900, '{"a":', "}", "1"),
    json.dumps(list(range(5000))), '{"rope_type": ["x"]}', '{"rope_type": {}, "type": 5}',
    '{"full_attention": []}', '{"rope_type": "yarn", "factor": "x"}',
    '{"rope_type": "yarn", "factor": 1e400, "beta_fast": NaN}',
    '{"rope_type": "longrope", "short_factor": [NaN], "long_factor": {}}',
    '{"content": 5}', '{"content": "<q>", "lstrip": "x"}', r'{"5": {"content": "\ud800"}}',
    '{"5": []}', '{"-1": "a"}', '{"٥": "a"}', '{"99999999999999999999999": "a"}',
    '{"5": "a", "05": "b"}', '[{"content": "z"}]', '{"a": 5}', r'{"a": "\ud800"}', '[["a"]]',
]  # fmt: skip


def named(work: Callable[[], Any]) -> None:
    """Runs it; an error is one of weft's, in one or two lines that a terminal can show."""
    try:
        work()
    except WeftError as error:
        said = str(error)
        assert said.count("\n") <= 1 and len(said) < 2000, said[:300]
        assert said.replace("\n", " ").isprintable(), ascii(said)[:300]


def values() -> list[Any]:
    found = []
    for text in ODD:
        with suppress(WeftError):
            found.append(parse_json(text.encode(), "x"))
    return found


@pytest.mark.parametrize("name", few(CASES, "llama2", "gemma4", "qwen3_next", "bert"))
def test_config(name: str) -> None:
    raw = written(name)
    kind = raw["model_type"]
    more = {"architectures", "rope_scaling", "rope_parameters", "layer_types", "quantization"}
    fields = {*TABLES[kind], *ALIASES.get(kind, {}), *REFUSED, *more} - {"model_type"}
    for field in sorted(fields):
        for value in values():
            named(partial(read, raw | {field: value}))


@pytest.mark.parametrize("kind", ["mistral3", "gemma4", "qwen3_5"])
def test_wrappers(kind: str) -> None:
    text = written("llama2")
    for field in ("text_config", "tie_word_embeddings"):
        for value in values():
            named(partial(read, {"model_type": kind, "text_config": text, field: value}))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_model("llama2", folder)
    write_tokenizer(folder, "bytes")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def use(folder: Path) -> None:
    """All that reads a tokenizer's settings."""
    found = Tokenizer(folder, 400)
    found.decode(found.encode("a<q>b</s>"))
    assert found.special_tokens is not None and found.added
    found.made()


def each_reader(folder: Path) -> None:
    named(lambda: use(folder))
    named(lambda: end_token(folder))
    named(lambda: read_token_ids(folder, read_config(folder)))


FIELDS = [
    *tokenizer_fields.NAMED, *tokenizer_fields._READ, *tokenizer_fields._BERT, "tokenizer_class",
    "add_prefix_space", "image_token", "padding_side", "what_nobody_knows",
]  # fmt: skip


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("field", FIELDS)
def test_tokenizer_settings(field: str, file: str, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(base, folder)
    kind = "LlamaTokenizer" if field == "add_prefix_space" else "BertTokenizer"
    for text in ODD:
        given = {"tokenizer_class": json.dumps(kind), field: text}
        listed = ", ".join(f"{json.dumps(k)}: {v}" for k, v in given.items())
        (folder / file).write_text(f"{{{listed}}}")
        each_reader(folder)


FILES = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
         "generation_config.json", "config.json"]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_whole_files(file: str, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(base, folder)
    for text in ODD:
        (folder / file).write_text(text)
        each_reader(folder)


@pytest.mark.parametrize("field", [*tokenizer_fields.NAMED, "extra_special_tokens"])
@pytest.mark.parametrize("value", [5, True, 1.5, "list"])
def test_a_token_that_is_none(field: str, value: Any, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(base, folder)
    wrong = [[]] if value == "list" else value
    (folder / "tokenizer_config.json").write_text(json.dumps({field: wrong}))
    with pytest.raises(ModelError, match=r"not a token|expected a list"):
        Tokenizer(folder, 400)


# -- sentence-transformers ------------------------------------------------------------------------

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
SENTENCE_FILES: dict[str, tuple[str, ...]] = {
    "1_Pooling/config.json": sentence_folder._POOLING + sentence_folder._INERT,
    "config_sentence_transformers.json": (
        *sentence_folder._SETTINGS, *sentence_folder._PLAIN, *sentence_folder._EMPTY, "other",
    ),
    "sentence_bert_config.json": (*sentence_folder._LIMITS, "modality_config"),
    "tokenizer_config.json": ("model_max_length",),
}  # fmt: skip


def sentence(folder: Path) -> Path:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


def pooled(folder: Path) -> None:
    read_pooling(folder, 8)
    makes_vectors(folder)


@pytest.mark.parametrize("file", [*SENTENCE_FILES, "modules.json"])
def test_sentence_folders(file: str, tmp_path: Path) -> None:
    sentence(tmp_path)
    for text in ODD:
        (tmp_path / file).write_text(text)
        named(lambda: pooled(tmp_path))
        for field in SENTENCE_FILES.get(file, ()):
            (tmp_path / file).write_text(f"{{{json.dumps(field)}: {text}}}")
            named(lambda: pooled(tmp_path))
        for field in ("idx", "name", "path", "type") if file == "modules.json" else ():
            inner = json.dumps({k: v for k, v in MODULES[1].items() if k != field})[1:-1]
            part = f"{{{inner}, {json.dumps(field)}: {text}}}"
            (tmp_path / file).write_text(f"[{json.dumps(MODULES[0])}, {part}]")
            named(lambda: pooled(tmp_path))


@pytest.mark.parametrize("path", [
    "..", "../x", "/etc", "1_Pooling/..", "a\0b", "C:x", "\\x", "link", "link/1_Pooling", "x" * 300,
])  # fmt: skip
def test_modules_outside_the_folder(path: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    for each in (outside, folder):
        each.mkdir()
        sentence(each)
    (folder / "link").symlink_to(outside)
    (folder / "modules.json").write_text(json.dumps([MODULES[0], MODULES[1] | {"path": path}]))
    with pytest.raises(ModelError, match="leads out of the model folder"):
        read_pooling(folder, 8)


@pytest.mark.parametrize("what", ["long", "many"])
def test_prompts_without_end(what: str, tmp_path: Path) -> None:
    if what == "long":
        prompts = {"q": "x" * (100 << 20)}
    else:
        prompts = {str(i): "x" for i in range(10**6)}
    text = json.dumps({"prompts": prompts})
    (sentence(tmp_path) / "config_sentence_transformers.json").write_text(text)
    with pytest.raises(WeftError, match=r"config_sentence_transformers\.json"):
        read_pooling(tmp_path, 8)


@pytest.mark.parametrize("file, text", [
    ("config.json", f'{{"model_type": {nested(10_000)}}}'),
    ("config.json", '{"model_type": "llama", "vocab_size": NaN}'),
    ("tokenizer_config.json", '{"bos_token": [1]}'),
    ("added_tokens.json", '{"<a>": 1e400}'),
])  # fmt: skip
def test_the_command(
    file: str, text: str, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    shutil.copytree(base, folder)
    (folder / file).write_text(text)
    assert invoke(["run", str(folder), "a"]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said and file in said and said.count("\n") <= 4


def test_shown() -> None:
    for value in values():
        assert "\n" not in shown(value) and len(shown(value)) <= 60
