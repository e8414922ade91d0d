"""A model's terms go where its weights go: quantised, merged or trained on."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import adapter_kit
import pytest
import yaml
from hypothesis import given, strategies as st

from weft.hub.box import box_folder
from weft.models.weights.terms import Terms, copy_terms, gguf_terms, read_terms
from weft.quantize.job import QuantizeOptions, quantize
from weft.training.merge import merge_folders

CARD = "---\nlicense: other\nlicense_name: own-1\nlicense_link: LICENSE\nbase_model: org/one\n---\n"
OWN = Terms("own-1", "LICENSE", ("org/one",))
LINE = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20)
NAME = LINE.map(str.strip).filter(bool)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terms") / "model"
    shutil.copytree(box_folder(), folder)
    for file in folder.iterdir():
        if file.name.upper().startswith(("LICEN", "README", "NOTICE")):
            file.unlink()
    (folder / "README.md").write_text(CARD)
    (folder / "LICENSE").write_text("do good")
    return folder


@given(NAME, LINE.map(str.strip), st.lists(NAME, max_size=3))
def test_a_card_says_what_was_read(licence: str, link: str, base: list[str]) -> None:
    """The card that weft writes is YAML, and weft reads the same from it."""
    fields = {"license": licence, "license_link": link, "base_model": base}
    said = {key: value for key, value in fields.items() if value}
    head = yaml.safe_dump(said, width=10**6, allow_unicode=True)
    if re.search(r'(: |- )"', head):
        return  # escapes of YAML's double quotes, which weft does not read
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name) / "first", Path(name) / "second"
        first.mkdir()
        second.mkdir()
        (first / "README.md").write_text(f"---\n{head}---\n", encoding="utf-8")
        copy_terms(first, second)
        text = (second / "README.md").read_text(encoding="utf-8").split("---\n")[1]
        assert yaml.safe_load(text) == said
        assert read_terms(second) == read_terms(first) == Terms(licence, link, tuple(base))


@pytest.mark.usefixtures("few_candidates")
def test_a_quantised_model_keeps_them(source: Path, tmp_path: Path) -> None:
    """A folder has the licence file and a card, a GGUF file the metadata, which the gguf package
    reads."""
    import gguf

    quantize(source, tmp_path / "folder", QuantizeOptions("int8", method="search"))
    assert (tmp_path / "folder" / "LICENSE").read_text() == "do good"
    assert read_terms(tmp_path / "folder") == OWN
    quantize(source, tmp_path / "model.gguf", QuantizeOptions("int8", method="search"))
    assert read_terms(tmp_path / "model.gguf") == OWN
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert fields[gguf.Keys.General.LICENSE].contents() == "own-1"
    assert fields[gguf.Keys.General.BASE_MODEL_COUNT].contents() == 1
    assert fields[gguf.Keys.General.BASE_MODEL_NAME.format(id=0)].contents() == "one"
    assert fields[gguf.Keys.General.BASE_MODEL_ORGANIZATION.format(id=0)].contents() == "org"


def test_a_merged_model_keeps_them(source: Path, tmp_path: Path) -> None:
    adapter_kit.adapter(tmp_path / "adapter", source, ["q_proj"], 2, 1)
    merge_folders(source, tmp_path / "adapter", tmp_path / "merged")
    assert read_terms(tmp_path / "merged") == OWN
    assert (tmp_path / "merged" / "LICENSE").read_text() == "do good"


def test_terms_of_a_gguf_file_are_read_with_care(tmp_path: Path) -> None:
    """Wrong types and counts say nothing."""
    assert gguf_terms(Terms()) == {}
    assert gguf_terms(Terms("mit"))["general.license"] == "mit"
    assert read_terms(tmp_path / "no.weft") == read_terms(tmp_path) == Terms()
