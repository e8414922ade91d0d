"""Several adapters in one batch: each row has the bits that it has alone, and rows without one
those of a model without adapters."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_kit import adapter
from model_zoo import write_model
from present import opened
from rows import few
from stepping import scores

import weft
from weft.conform.models import CONFIGS
from weft.core import notices
from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.host.files import write_json
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models import random_folder
from weft.models.arch.inputs import PAGE
from weft.models.weights import adapters
from weft.training.merge import merge_folders

IDS = np.random.default_rng(3).integers(0, 90, 40).tolist()
LLAMA = {**CONFIGS["llama"], "max_position_embeddings": 128}
TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gpt2": (("c_attn",), ("c_proj", "c_fc")),
    "qwen3_5": (("in_proj_qkv", "q_proj"), ("in_proj_z", "out_proj", "down_proj")),
    "qwen3_moe": (("q_proj",), ("o_proj", "gate")),
    "deepseek_v2": (("kv_b_proj", "q_proj"), ("kv_b_proj", "kv_a_proj_with_mqa", "o_proj")),
    "": (("q_proj", "v_proj"), ("o_proj", "gate_proj", "down_proj")),
}


def two(folder: Path, base: Path, family: str = "") -> dict[str, Path]:
    """Adapters of different ranks, scales and layers."""
    first, second = TARGETS.get(family, TARGETS[""])
    return {
        "a": adapter(folder / "a", base, first, 3, 1),
        "b": adapter(folder / "b", base, second, 20, 2, stabilized=True),
    }


def paged(model: Any, slots: int = 5) -> Any:
    columns = -(-model.context // PAGE)
    runner = model.new_runner(slots, slots * columns)
    runner.tables[:] = np.arange(runner.tables.size).reshape(runner.tables.shape)
    return runner


def alone(model: Any, name: str = "") -> np.ndarray:
    """Logits of IDS from the thirtieth on: read in one go, then one by one."""
    runner = paged(model)
    rows = [runner.prefill(1, IDS[:30], 0, name).copy()]
    rows += [runner.rows([IDS[t]], [1], [t], [name] * bool(name))[0].copy() for t in range(30, 40)]
    return np.stack(rows)


def check(plain: Any, both: Any, singles: dict[str, Any]) -> None:
    """`both` has adapters a and b, `singles` one of them each."""
    want = {"": alone(plain)} | {name: alone(model, name) for name, model in singles.items()}
    for name, rows in want.items():
        np.testing.assert_array_equal(alone(both, name), rows)
    runner, names = paged(both), ["b", "", "a", "b", ""]
    for slot, name in enumerate(names):
        runner.prefill(slot, IDS[:11], 0, name)
        last = runner.prefill(slot, IDS[11:30], 11, name)
        np.testing.assert_array_equal(last, want[name][0])
    slots, pos = [*range(5)] * 2, [t for t in (30, 31) for _ in range(5)]
    order = np.argsort(slots, kind="stable")  # rows of a slot side by side
    rows = [[IDS[pos[i]] for i in order], [slots[i] for i in order], [pos[i] for i in order]]
    got = runner.rows(*rows, [names[s] for s in rows[1]])
    for row, slot, at in zip(got, *rows[1:]):
        np.testing.assert_array_equal(row, want[names[slot]][at - 29])
    assert all(np.abs(want[n] - want[""]).max() > 0.05 for n in singles)
    assert np.abs(want["a"] - want["b"]).max() > 0.05


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "cpu", {}),
    ("llama", "vulkan", {}),
    ("llama", "cpu", {"quant": "int4", "act_dtype": "int8"}),
    ("llama", "vulkan", {"quant": "int8"}),
    ("llama", "cpu", {"dtype": "bfloat16"}),
    ("gpt2", "cpu", {}),
    ("qwen3_5", "cpu", {}),
    ("qwen3_moe", "cpu", {}),
    ("deepseek_v2", "cpu", {}),
    ("gemma2", "interp:hip-wave64", {}),
]


@pytest.mark.parametrize(
    ("family", "device", "options"),
    few(CASES, CASES[2]),
)
def test_rows_are_what_they_are_alone(
    tmp_path: Path, family: str, device: str, options: dict[str, Any]
) -> None:
    """Of a model with one adapter, in steps with others, in other cuts."""
    opened(device)
    base = random_folder(tmp_path / "base", LLAMA if family == "llama" else CONFIGS[family], 1, 0.2)
    folders = two(tmp_path, base, family)

    def load(*names: str) -> Any:
        beside = {name: folders[name] for name in names}
        return weft.load(base, device=device, context=64, adapters=beside, **options)

    check(load(), load("a", "b"), {"a": load("a"), "b": load("b")})


@pytest.mark.parametrize(
    ("family", "device"),
    few(itertools.product(["llama2", "gpt2", "gemma3"], ["cpu", "oracle"]), ("gpt2", "cpu")),
)  # fmt: skip
def test_they_are_what_merging_gives(tmp_path: Path, family: str, device: str) -> None:
    base = tmp_path / "base"
    write_model(family, base)
    folders = two(tmp_path, base, family)
    model = weft.load(base, device=device, context=40, adapters=folders)
    for name, folder in folders.items():
        merge_folders(base, folder, tmp_path / f"{name}-merged")
        merged = weft.load(tmp_path / f"{name}-merged", device=device, context=40)
        want = scores(merged.runner(), IDS)
        got = scores(model.runner(), IDS, adapter=name)
        np.testing.assert_allclose(got, want, atol=3e-5 * np.abs(want).max())
        made = [m.generate(IDS[:9], 12, adapter=n).ids for m, n in ((model, name), (merged, ""))]
        assert made[0] == made[1]


def test_heads_that_meet_latents(tmp_path: Path) -> None:
    """An adapter of the matrix that such heads have in two parts is what one merged in gives."""
    base = random_folder(tmp_path / "base", CONFIGS["deepseek_v2"], 1, 0.2)
    model = weft.load(base, device="cpu", context=64, adapters=two(tmp_path, base, "deepseek_v2"))
    for name in ("a", "b"):
        want = scores(weft.load(tmp_path / name, device="cpu", context=64).runner(), IDS)
        got = scores(model.runner(), IDS, adapter=name)
        np.testing.assert_allclose(got, want, atol=3e-5 * np.abs(want).max())
        packed = weft.load(tmp_path / name, device="cpu", context=64, quant="int8").logits(IDS)
        assert np.abs(packed - want).mean() < 0.02 * np.abs(want).max()


def test_many_of_one_model(tmp_path: Path) -> None:
    """More adapters than rows of most steps; prompts of several share a page of none."""
    base = random_folder(tmp_path / "base", LLAMA, 1, 0.2)
    folders = {f"n{i}": adapter(tmp_path / f"n{i}", base, ("v_proj",), 2 + i, i) for i in range(9)}
    model = weft.load(base, device="cpu", context=64, adapters=folders)
    texts = {n: model.generate(IDS[:12], 10, adapter=n).ids for n in ("", *folders)}
    for name, folder in folders.items():
        one = weft.load(base, device="cpu", context=64, adapters={"x": folder})
        assert one.generate(IDS[:12], 10, adapter="x").ids == texts[name]
    assert len(set(texts.values())) > 5


def test_what_is_refused(tmp_path: Path) -> None:
    base = random_folder(tmp_path / "base", LLAMA, 1, 0.2)
    folder = adapter(tmp_path / "a", base, ("v_proj",), 4, 0)
    model = weft.load(base, device="cpu", context=64, adapters={"a": folder})
    assert model.adapters == ("a",)
    with pytest.raises(UsageError, match="unknown adapter 'b'; loaded: a"):
        model.generate(IDS[:3], adapter="b")
    with pytest.raises(UsageError, match="unknown adapter 'b'; loaded: a"):
        paged(model).rows([1], [0], [0], ["b"])
    with pytest.raises(UsageError, match="unknown adapter 'a'"):
        weft.load(base, device="cpu", context=64).generate(IDS[:3], adapter="a")
    for name in ("", "x" * 300, "a\nb", 3):
        with pytest.raises(UsageError, match="an adapter is called"):
            weft.load(base, adapters={name: folder})  # type: ignore[dict-item]
    with pytest.raises(ModelError, match=r"no adapter_config\.json; expected a LoRA adapter"):
        weft.load(base, device="cpu", adapters={"a": base})
    write_model("bert", tmp_path / "encoder")
    with pytest.raises(UsageError, match="takes no adapters"):
        weft.load(tmp_path / "encoder", device="cpu", adapters={"a": folder})


CONFIG_CHANGES = [
    ({"use_dora": True}, "use_dora"),
    ({"bias": "most"}, "bias"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"rank_pattern": {"(q|k)+_proj": 2}}, "rank_pattern"),
    ({"peft_type": "IA3"}, "peft_type"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
    ({"r": 0}, "r"),
    ({"r": 5}, "shape"),
    ({"r": 1 << 40}, "r"),
    ({"r": "4"}, "r"),
    ({"lora_alpha": float("nan")}, "lora_alpha"),
    ({"lora_alpha": -1}, "lora_alpha"),
    ({"use_rslora": "yes"}, "use_rslora"),
]


@pytest.mark.parametrize(("change", "named"), CONFIG_CHANGES)
def test_configs_that_are_not_taken(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    base = random_folder(tmp_path / "base", LLAMA, 1, 0.2)
    folder = adapter(tmp_path / "a", base, ("v_proj",), 4, 0)
    config = json.loads((folder / adapters.CONFIG).read_text()) | change
    write_json(folder / adapters.CONFIG, config)
    with pytest.raises(ModelError, match=named):
        weft.load(base, device="cpu", adapters={"a": folder})


def _changed(name: str, value: Any) -> Any:
    return lambda tensors: {**tensors, name: value}


V = "base_model.model.model.layers.0.self_attn.v_proj.lora_{}.weight"
OTHER = V.format("A").replace("model.layers", "model.language_model.layers")
WEIGHT_CHANGES = [
    (lambda t: {}, "no tensor"),
    (lambda t: {k: v for k, v in t.items() if k != V.format("B")}, "half of the adapter"),
    (_changed(V.format("A"), np.zeros((4, 65), np.float32)), "shape"),
    (_changed(V.format("A"), np.zeros((4, 64, 1), np.float32)), "shape"),
    (_changed(V.format("A"), np.zeros((4, 64), np.int32)), "int32"),
    (_changed(V.format("A"), np.full((4, 64), np.nan, np.float32)), "NaN"),
    (_changed(V.format("A"), np.full((4, 64), 1e300)), "infinity"),
    (_changed(V.format("B"), np.full((32, 4), 3e38, np.float32)), "overflows"),
    (_changed("base_model.model.lm_head.lora_A.weight", np.zeros((4, 64), np.float32)), "lm_head"),
    (_changed(V.format("magnitude_vector"), np.zeros(32, np.float32)), "DoRA"),
    (_changed(V.format("A").replace("layers.0", "layers.7"), np.zeros((4, 64))), "no layer"),
    (_changed(OTHER, np.zeros((4, 64))), "another name"),
]


@pytest.mark.parametrize(("change", "named"), WEIGHT_CHANGES)
def test_tensors_that_are_not_taken(tmp_path: Path, change: Any, named: str) -> None:
    base = random_folder(tmp_path / "base", LLAMA, 1, 0.2)
    folder = adapter(tmp_path / "a", base, ("v_proj",), 4, 0)
    path = folder / adapters.WEIGHTS
    tensors = {name: np.array(value) for name, value in SafetensorsFile(path).items()}
    assert V.format("A") in tensors
    path.unlink()
    save_file(path, change(tensors), {})
    with pytest.raises(ModelError, match=named):
        weft.load(base, device="cpu", adapters={"a": folder})


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_files_that_are_cut(tmp_path: Path, size: int) -> None:
    base = random_folder(tmp_path / "base", LLAMA, 1, 0.2)
    folder = adapter(tmp_path / "a", base, ("v_proj",), 4, 0)
    path = folder / adapters.WEIGHTS
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FileFormatError):
        weft.load(base, device="cpu", adapters={"a": folder})
    path.unlink()
    with pytest.raises(FileFormatError):
        weft.load(base, device="cpu", adapters={"a": folder})


def test_a_model_and_an_adapter_in_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is read without the adapter, which is said. Without a model's weights the folder
    is an adapter's, whatever config.json stands there too, as some trainers leave it."""
    notices.say.cache_clear()
    base = random_folder(tmp_path / "base", LLAMA, 0)
    made = adapter(tmp_path / "a", base, ["q_proj"], 3, 1)
    plain = weft.load(base, device="oracle").logits(IDS)
    want = weft.load(made, device="oracle").logits(IDS)
    assert (plain != want).any() and not capsys.readouterr().err
    shutil.copy(base / "config.json", made)
    np.testing.assert_array_equal(weft.load(made, device="oracle").logits(IDS), want)
    assert not capsys.readouterr().err
    shutil.copy(base / "model.safetensors", made)
    for _ in range(2):
        np.testing.assert_array_equal(weft.load(made, device="oracle").logits(IDS), plain)
    assert capsys.readouterr().err.count("weft reads the model without it") == 1
    (made / "adapter_model.safetensors").unlink()
    np.testing.assert_array_equal(weft.load(made, device="oracle").logits(IDS), plain)
    assert "does not read its adapter_config.json" in capsys.readouterr().err
