"""GGUF files whose content does not fit, or that are none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_zoo import arch_of, write_gguf
from model_zoo import write_model

from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.core.text import listed
from weft.models import load
from weft.models.arch.family_gguf import GGUF, architectures


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "hf"
    write_model("llama2", folder)
    return folder


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"llama.block_count": 2}, r"'blk\.2\..*' is not part .* with 2 layers"),
        ({"llama.block_count": 4}, r"'blk\.3\..*' is missing; the file holds"),
        ({"llama.block_count": "3"}, "llama.block_count is '3'; expected an integer"),
        (
            {"llama.embedding_length": 64},
            r"shape \[300, 32\]; the metadata ask for \[300, 64\]",
        ),
        ({"llama.vocab_size": 301}, r"'token_embd.weight' has shape .* ask for \[301, 32\]"),
        ({"llama.attention.head_count": 5}, "5 heads are not a multiple of 2 key/value heads"),
        ({"llama.attention.head_count_kv": 3}, "4 heads are not a multiple of 3 key/value heads"),
        ({"llama.attention.head_count_kv": [2, 2, 4]}, r"differs from layer to layer \(2 to 4\)"),
        ({"llama.attention.head_count_kv": [2, 2, 0]}, "head_count_kv is .*; expected an integer"),
        ({"llama.feed_forward_length": 1 << 30}, "llama.feed_forward_length is .*; expected"),
        ({"llama.attention.key_length": 0}, "llama.attention.key_length is 0; expected"),
        ({"llama.attention.value_length": 16}, "value_length is 16: not that of keys, which is 8"),
        ({"llama.rope.dimension_count": 4}, "dimension_count is 4: rotating a part of 8"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope': supported are none, linear, yarn"),
        ({"llama.rope.freq_base": float("nan")}, "llama.rope.freq_base is nan; expected a number"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing; expected an integer"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2},
            r"'blk\.0\.ffn_.*' is not part of a model",
        ),
        ({"llama.attention.causal": False}, "attention.causal is False: other than True"),
        ({"llama.attention.sliding_window_pattern": [True]}, "expected 3 truth values"),
        ({"general.architecture": "rwkv6"}, "architecture 'rwkv6' is not supported; supported in"),
        ({"general.architecture": 3}, "architecture 3 is not supported"),
        ({"general.architecture": "qwen2"}, "qwen2.block_count is missing"),
    ],
)
def test_metadata_that_do_not_fit(llama: Path, tmp_path: Path, keys: Any, said: str) -> None:
    file = write_gguf(llama, tmp_path / "m.gguf", keys=keys)
    with pytest.raises(ModelError, match=said) as caught:
        load(file, device="oracle")
    assert str(file) in str(caught.value)


def test_the_list_of_what_is_supported_is_whole(llama: Path, tmp_path: Path) -> None:
    file = write_gguf(llama, tmp_path / "m.gguf", keys={"general.architecture": "rwkv7"})
    with pytest.raises(ModelError, match=re.escape(listed(architectures()))):
        load(file, device="oracle")
    nemotron = {"model_type": "nemotron_h", "layers_block_type": ["moe"]}
    known = {arch_of({"model_type": name}) for name in GGUF} | {arch_of(nemotron)}
    assert known == set(architectures())


def edited(name: str, value: np.ndarray | None) -> Any:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value

    return change


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("output_norm.weight", None, "'output_norm.weight' is missing"),
        ("blk.1.ffn_gate_inp.weight", np.ones((8, 32)), "'blk.1.ffn_gate_inp.weight' is not part"),
        ("blk.0.attn_q.bias", np.ones(32, np.float32), r"'blk\.0\.attn_k\.bias' is missing"),
        ("rope_freqs.weight", np.ones(3, np.float32), r"shape \[3\]; expected \[4\]"),
        ("rope_freqs.weight", np.zeros(4, np.float32), "holds what is not above 0"),
        (
            "blk.0.ffn_up.weight",
            np.ones((48, 32), np.int8),
            "is I8; expected F32, F16, BF16 or",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    llama: Path, tmp_path: Path, name: str, value: Any, said: str
) -> None:
    if value is not None and value.dtype == np.float64:
        value = value.astype(np.float32)
    file = write_gguf(llama, tmp_path / "m.gguf", change=edited(name, value))
    with pytest.raises(ModelError, match=said):
        load(file, device="oracle")


def test_a_weight_that_is_no_number_is_named_as_the_file_names_it(
    llama: Path, tmp_path: Path
) -> None:
    bad = edited("blk.1.attn_q.weight", np.full((32, 32), np.nan, np.float32))
    model = load(write_gguf(llama, tmp_path / "m.gguf", change=bad), device="oracle")
    with pytest.raises(ModelError, match=r"weight 'blk\.1\.attn_q\.weight' holds NaN"):
        model.logits(range(40))


def test_files_that_are_none(llama: Path, tmp_path: Path) -> None:
    file = write_gguf(llama, tmp_path / "m.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(FileFormatError, match=r"cut\.gguf"):
        load(cut, device="oracle")
    with pytest.raises(FileFormatError, match="not a GGUF file"):
        load(llama / "model.safetensors", device="oracle")
    with pytest.raises(ModelError, match=r"gone\.gguf does not exist"):
        load(tmp_path / "gone.gguf", device="oracle")
    with pytest.raises(UsageError, match="dtype is 'int8'"):
        load(file, device="oracle", dtype="int8")
    with pytest.raises(UsageError, match=r"m\.gguf has no tokenizer: pass token ids"):
        load(file, device="oracle").generate("text")
