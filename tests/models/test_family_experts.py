"""Experts of families: how files hold them, and which rows go to which."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from model_zoo import write_model

import weft
from weft.core.errors import ModelError
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models.arch import feed_forward
from weft.models.arch.feed_forward import pair_blocks

IDS = np.random.default_rng(0).integers(0, 200, 30).tolist()


def test_a_checkpoint_without_one_of_its_experts(tmp_path: Path) -> None:
    write_model("qwen3_moe", tmp_path)
    tensors = dict(open_checkpoint(tmp_path).items())
    gone = next(name for name in tensors if ".experts.3." in name)
    save_file(tmp_path / "model.safetensors", {k: v for k, v in tensors.items() if k != gone})
    with pytest.raises(ModelError, match=f"'{gone}' is missing"):
        weft.load(tmp_path, device="oracle")


def test_one_tensor_for_all_experts(tmp_path: Path) -> None:
    """As Qwen 3.5's checkpoints hold them: gates, and below them what they gate."""
    write_model("qwen3_5_moe", tmp_path)
    want = weft.load(tmp_path, device="oracle").logits(IDS)
    tensors = dict(open_checkpoint(tmp_path).items())
    for i in range(4):
        at = f"model.layers.{i}.mlp.experts."
        gate, up, down = (
            np.stack([tensors.pop(f"{at}{e}.{part}_proj.weight") for e in range(5)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{at}gate_up_proj"] = np.concatenate([gate, up], 1)
        tensors[f"{at}down_proj"] = down
    save_file(tmp_path / "model.safetensors", tensors)
    np.testing.assert_array_equal(weft.load(tmp_path, device="oracle").logits(IDS), want)


def test_gpt_oss_with_packed_experts(tmp_path: Path) -> None:
    """The experts in MXFP4 as OpenAI's files hold them, against the same values as floats."""
    plain, folder = tmp_path / "plain", tmp_path / "packed"
    write_model("gpt_oss", plain, changed={"hidden_size": 32, "intermediate_size": 32})
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    rng = np.random.default_rng(0)
    floats: dict[str, np.ndarray] = {}
    packed: dict[str, np.ndarray] = {}
    for name, value in open_checkpoint(plain).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            floats[name] = packed[name] = value
            continue
        experts, k, n = value.shape
        blocks = rng.integers(0, 256, (experts, n, k // 32, 16), np.uint8)
        scales = rng.integers(121, 125, (experts, n, k // 32), np.uint8)
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(experts, n, k // 32, 32)
        wide = table[codes] * np.exp2(scales[..., None].astype(np.float32) - 127)
        floats[name] = np.ascontiguousarray(wide.reshape(experts, n, k).swapaxes(1, 2))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    folder.mkdir()
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(plain / "model.safetensors", floats)
    save_file(folder / "model.safetensors", packed)
    for device in ("oracle", "cpu"):
        want = weft.load(plain, device=device).logits(IDS)
        model = weft.load(folder, device=device)
        np.testing.assert_array_equal(model.logits(IDS), want)
    assert [role for role, _ in model.config.forms] == [
        f"{i}.{part}_exps.w" for i in (0, 1) for part in ("gate_up", "down")
    ]


@pytest.mark.parametrize(
    ("tokens", "used", "experts"), [(40, 3, 7), (1, 2, 5), (33, 1, 1), (70, 5, 64)]
)
@pytest.mark.parametrize("spread", ["random", "one", "last"])
def test_rows_by_expert(
    tokens: int, used: int, experts: int, spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every real choice stands in a block of its expert, once, within the rows that count, and no
    block is larger or more than it takes; experts that nobody chose have none."""
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
    if spread != "random":
        chosen[:] = np.arange(used) if spread == "one" else experts - 1 - np.arange(used)
    real = np.arange(tokens) < max(tokens - 5, 1)
    monkeypatch.setattr(feed_forward, "first_rows", lambda numbers, counts: (numbers, counts))
    step = SimpleNamespace(
        c=SimpleNamespace(experts=experts),
        real=real[:, None],
        training=SimpleNamespace(derived=False),
    )
    numbers, pair, slot = pair_blocks(step, chosen)  # type: ignore[arg-type]
    token = pair % tokens
    (numbers, counts), size = numbers, token.shape[1]
    assert len(numbers) * size >= tokens * used
    kept = slot[real].reshape(-1)
    assert len(set(kept)) == kept.size == counts.sum()
    np.testing.assert_array_equal(numbers[kept // size], chosen[real].reshape(-1))
    np.testing.assert_array_equal(token.reshape(-1)[kept], np.repeat(np.where(real)[0], used))
    assert (kept % size < counts[kept // size]).all()
    by = np.bincount(chosen[real].reshape(-1), minlength=experts)
    assert (counts > 0).sum() == (-(-by // size)).sum()
