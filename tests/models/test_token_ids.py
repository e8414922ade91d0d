"""Where a folder may say which ids end, begin and pad a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.importers.hf_config import Fields
from weft.models.text.token_ids import read_token_ids

NAMED = {"eos_token": "</s>", "added_tokens_decoder": {"7": {"content": "</s>"}}}
TOKENS = {"added_tokens": [{"id": 9, "content": "</s>"}, {"id": 8, "content": "<s>"}]}


def ends(folder: Path, config: dict[str, Any], **files: Any) -> tuple[int, ...]:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return read_token_ids(folder, Fields(config, "config.json")).eos


@pytest.mark.parametrize(("config", "files", "want"), [
    ({"eos_token_id": 2}, {"generation_config": {"eos_token_id": [3, 4]}}, (3, 4)),
    ({"eos_token_id": 2}, {"generation_config": {}}, (2,)),
    ({"eos_token_id": 2, "text_config": {"eos_token_id": 5}}, {}, (2,)),
    ({"eos_token_id": None, "text_config": {"eos_token_id": [5, 6]}}, {}, (5, 6)),
    ({"text_config": {"eos_token_id": 5}}, {"tokenizer_config": NAMED}, (5,)),
    ({}, {"tokenizer_config": NAMED}, (7,)),
    ({}, {"tokenizer_config": {"eos_token": {"content": "</s>"}}, "tokenizer": TOKENS}, (9,)),
    ({}, {"tokenizer_config": {"eos_token": "?"}, "tokenizer": TOKENS}, ()),
    ({}, {"tokenizer_config": {"eos_token": 5, "added_tokens_decoder": [1]}}, ()),
    ({}, {}, ()),
])  # fmt: skip
def test_the_end_of_a_text(
    config: dict[str, Any], files: dict[str, Any], want: tuple[int, ...], tmp_path: Path
) -> None:
    assert ends(tmp_path, config, **files) == want


def test_begin_and_padding(tmp_path: Path) -> None:
    config = {"bos_token_id": 1, "text_config": {"bos_token_id": 3, "pad_token_id": 4}}
    found = read_token_ids(tmp_path, Fields(config, "config.json"))
    assert (found.bos, found.pad) == (1, 4)
