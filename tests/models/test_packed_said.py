"""What a quantization_config asks for beyond the tensors: done, known to change nothing, refused or
named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_zoo import KINDS, checkpoint, write_folder

import weft
from weft.core import notices
from weft.core.errors import ModelError

IDS = [3, 17, 25, 4]


def config_with(kind: str, change: dict[str, Any], where: str = "") -> dict[str, Any]:
    config = checkpoint(kind)[0]
    name = "quantization" if kind.startswith("mlx") else "quantization_config"
    given = dict(config[name])
    if where:
        scheme = dict(given["config_groups"]["group_0"])
        scheme |= change if where == "scheme" else {"weights": {**scheme["weights"], **change}}
        given["config_groups"] = {"group_0": scheme}
    else:
        given |= change
    return {**config, name: given}


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("pack", "", {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}),
    ("pack", "", {"sparsity_config": {"format": "sparse-24-bitmask"}}),
    ("pack", "", {"moe_sparsity_config": {"x": 1}}),
    ("int", "weights", {"dynamic": True}),
    ("pack", "weights", {"symmetric": False}),
    ("int", "weights", {"symmetric": False}),
    ("float", "weights", {"symmetric": False}),
    ("pack zeros", "weights", {"symmetric": True}),
    ("pack", "weights", {"actorder": "group"}),
    ("pack", "weights", {"actorder": "dynamic"}),
    ("pack", "weights", {"actorder": True}),
    ("pack", "weights", {"actorder": "sideways"}),
    ("gptq act-order", "", {"rotation": "hadamard"}),
    ("gptq", "", {"is_marlin_format": True}),
    ("gptq", "", {"adapter": {"name": "lora"}}),
    ("fp8", "", {"fmt": "e5m2"}),
    ("fp8", "", {"expert_dtype": "fp4"}),
]
KEPT: list[tuple[str, str, dict[str, Any]]] = [
    ("pack", "", {"transform_config": {}, "sparsity_config": {"format": "dense"}}),
    ("pack", "", {"transform_config": {"config_groups": {}}, "kv_cache_scheme": {"num_bits": 8}}),
    ("pack", "weights", {"symmetric": True, "actorder": "weight"}),
    ("pack zeros", "weights", {"symmetric": False}),
    ("pack order", "weights", {"symmetric": True, "actorder": "group"}),
    ("pack", "scheme", {"input_activations": {"num_bits": 8, "dynamic": True}}),
    ("gptq", "", {"desc_act": False, "sym": False, "damp_percent": 0.01, "meta": {"by": "x"}}),
    ("gptq act-order", "", {"desc_act": True}),
    ("awq", "", {"zero_point": True, "modules_to_not_convert": None}),
    ("fp8", "", {"activation_scheme": "dynamic", "fmt": "e4m3"}),
    ("nf4", "", {"bnb_4bit_compute_dtype": "bfloat16", "llm_int8_threshold": 6.0}),
    ("mlx", "", {"mode": "affine", "model.layers.0.mlp.up_proj": {"bits": 4}, "lm_head": True}),
]


@pytest.mark.parametrize(("kind", "where", "change"), REFUSED)
def test_what_gives_other_numbers_is_refused(
    kind: str, where: str, change: dict[str, Any], tmp_path: Path
) -> None:
    write_folder(tmp_path, config_with(kind, change, where), checkpoint(kind)[1])
    with pytest.raises(ModelError, match=next(iter(change))):
        weft.load(tmp_path, device="oracle").logits(IDS)


def test_act_order_needs_its_order(tmp_path: Path) -> None:
    tensors = {n: v for n, v in checkpoint("gptq")[1].items() if not n.endswith("g_idx")}
    write_folder(tmp_path, config_with("gptq", {"desc_act": True}), tensors)
    with pytest.raises(ModelError, match="desc_act"):
        weft.load(tmp_path, device="oracle").logits(IDS)


@pytest.mark.parametrize(("kind", "where", "change"), KEPT)
def test_what_changes_nothing_is_taken(
    kind: str, where: str, change: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    notices.say.cache_clear()
    config, tensors, _ = checkpoint(kind)
    want = weft.load(write_folder(tmp_path / "a", config, tensors), device="oracle").logits(IDS)
    changed = write_folder(tmp_path / "b", config_with(kind, change, where), tensors)
    np.testing.assert_array_equal(weft.load(changed, device="oracle").logits(IDS), want)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["gptq", "awq", "pack", "fp8", "nf4", "mlx"])
def test_unknown_keys_are_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notices.say.cache_clear()
    places = ("", "scheme", "weights") if kind == "pack" else ("",)
    for i, where in enumerate(places):
        folder = tmp_path / str(i)
        config = config_with(kind, {f"swirl{i}": "left"}, where)
        write_folder(folder, config, checkpoint(kind)[1])
        weft.load(folder, device="oracle")
        assert f"swirl{i}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_the_zoo_is_known(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notices.say.cache_clear()
    config, tensors, _ = checkpoint(kind)
    weft.load(write_folder(tmp_path, config, tensors), device="oracle")
    assert capsys.readouterr().err == ""


def test_compressed_tensors_old_name(tmp_path: Path) -> None:
    config, tensors, _ = checkpoint("pack")
    want = weft.load(write_folder(tmp_path / "a", config, tensors), device="oracle").logits(IDS)
    config["compression_config"] = config.pop("quantization_config")
    again = weft.load(write_folder(tmp_path / "b", config, tensors), device="oracle")
    np.testing.assert_array_equal(again.logits(IDS), want)
