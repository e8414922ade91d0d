"""`weft export web`: what its options about numbers do to the folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_kit import LLAMA, bare
from test_encoder import BERT, minilm_folder

from weft.cli.main import invoke
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder
from weft.web.licences import write_model_terms

ROOT = Path(__file__).resolve().parents[2]
Folders = tuple[str, str]


@pytest.fixture(autouse=True)
def without_code() -> Iterator[None]:
    with bare():
        yield


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A tiny decoder and a tiny encoder."""
    llama = random_folder(tmp_path / "llama", {**LLAMA, "num_hidden_layers": 1})
    bert = random_folder(tmp_path / "bert", BERT)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, llama)
    shutil.copy(minilm_folder() / "tokenizer.json", bert)
    return str(llama), str(bert)


def test_numbers_of_the_model_and_of_the_search(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """int8 inputs are in the Programs of the text alone, int8 weights in the search's."""
    (llama, bert), out = folders, tmp_path / "page"
    given = ["export", "web", llama, "-o", str(out), "--quant", "int4", "--act-dtype", "int8"]
    assert invoke([*given, "--search", bert, "--search-quant", "int8", "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest == json.loads((out / "manifest.json").read_text())
    for folder, rounded in ((out, True), (out / "search", False)):
        tensors = json.loads((folder / "manifest.json").read_text())["tensors"]
        programs = json.loads((folder / "wasm.json").read_text())["programs"]
        kernels = [k["name"] for p in programs.values() for k in p["kernels"]]
        assert any(name.startswith("quantize_") for name in kernels) == rounded
        assert any(name.endswith(".codes") for name in tensors)


def test_licences_go_with_the_page(folders: Folders, tmp_path: Path) -> None:
    """weft's terms and those in the folders of both models; no visit fetches them."""
    (llama, bert), out = folders, tmp_path / "page"
    for name in ("LICENSE", "NOTICE.txt", "USE_POLICY.md", "licensed.txt", "LICENCE-MIT"):
        (Path(llama) / name).write_text(f"terms of {name}")
    (Path(bert) / "COPYING").write_text("terms of the encoder")
    (Path(bert) / "LICENSE").write_bytes(b"x" * (2 << 20))  # too long to be one
    assert invoke(["export", "web", llama, "-o", str(out), "--search", bert]) == 0
    for name in ("LICENSE", "NOTICE"):
        assert (out / name).read_bytes() == (ROOT / name).read_bytes()
    copied = {str(p.relative_to(out)): p.read_text() for p in out.rglob("model-*")}
    names = {"LICENSE", "NOTICE.txt", "USE_POLICY.md", "LICENCE-MIT"}
    assert copied == {f"model-{n}": f"terms of {n}" for n in names} | {
        "search/model-COPYING": "terms of the encoder"
    }
    cached = re.search('FILES = "(.*?)"', (out / "sw.js").read_text())
    assert cached and not re.search("LICEN|NOTICE|COPYING|POLICY", cached[1])
    assert json.loads((out / "manifest.json").read_text())["terms"] == {
        "licence": "", "base": [], "files": sorted(f"model-{name}" for name in names)
    }  # fmt: skip


CARDS = {
    "license: apache-2.0\nbase_model: org/small  # as said": ("apache-2.0", ["org/small"]),
    'license: other\nlicense_name: "own: 1"\nbase_model:\n- a/b\n  - "c/d"': (
        "own: 1", ["a/b", "c/d"]
    ),
    "license: [mit, bsd]\nbase_model:\ntags:\n- text": ("mit, bsd", []),
    "tags:\n- text": None,
    "license:": None,
}  # fmt: skip


@pytest.mark.parametrize("head", CARDS)
def test_terms_of_a_card(head: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n# A model\nlicense: none\n")
    found = write_model_terms(tmp_path, tmp_path)
    want = CARDS[head]
    assert found == (
        {} if want is None else {"terms": {"licence": want[0], "base": want[1], "files": []}}
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--act-dtype", "int8"], "act_dtype is int8, for inputs of packed weights"),
        (["--act-dtype", "float16"], "'float16' is not one of 'float32', 'bfloat16', 'int8'"),
        (["--search-quant", "int8"], "--search-quant int8 is for the encoder that --search names"),
        (["--search", "{bert}", "--search-quant", "int9"], "int9"),
    ],
)
def test_numbers_that_cannot_be(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    more: list[str], said: str,
) -> None:  # fmt: skip
    (llama, bert), out = folders, tmp_path / "page"
    more = [each.format(bert=bert) for each in more]
    assert invoke(["export", "web", llama, "-o", str(out), *more]) != 0
    error = capsys.readouterr().err
    lines = 4 if error.startswith("Usage") else 2  # wrong usage also says how the command is used
    assert said in error and len(error.splitlines()) <= lines
    assert not out.exists()


def test_an_encoder_has_no_int8_inputs(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["export", "web", folders[1], "-o", str(tmp_path / "page"), "--quant", "int8"]
    assert invoke([*given, "--act-dtype", "int8"]) == 2
    assert "bert is an encoder, whose inputs are not quantised" in capsys.readouterr().err


def test_a_page_takes_the_place_of_a_page_alone(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of somebody's own web page, which has a manifest.json too, nor of what was added."""
    out = tmp_path / "site"
    out.mkdir()
    given = ["export", "web", folders[0], "-o", str(out)]
    for said in ('{"name": "My app", "icons": [], "format": 1}', "[]", "x"):
        (out / "manifest.json").write_text(said)
        (out / "app.js").write_text("mine")
        assert invoke(given) == 2
        assert "is not a page of weft's" in capsys.readouterr().err
        assert (out / "app.js").read_text() == "mine"
    shutil.rmtree(out)
    assert invoke(given) == 0 and invoke(given) == 0
    for name in (".git", "CNAME", "photos"):
        (out / name).mkdir()
        (out / name / "mine").write_text("mine")
        capsys.readouterr()
        assert invoke(given) == 2
        assert repr(name) in capsys.readouterr().err
        assert (out / name / "mine").read_text() == "mine"
        shutil.rmtree(out / name)
    assert invoke(given) == 0
