"""LoRA adapters exchanged with PEFT itself, where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_zoo import VOCAB, write_model
from stepping import scores

import weft
from weft.core.errors import ModelError
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models.weights import adapter_stack, adapters, peft_files
from weft.training.merge import merge_folders
from weft.training.model import folder_weights

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, VOCAB, 13).astype(np.int32)
SIZES = {"vocab_size": VOCAB}
FAMILIES = [
    ("gpt2", ("c_attn", "c_proj")),
    ("llama2", ()),
    ("llama2", ("k_proj", "o_proj", "gate_proj", "down_proj")),
    ("gpt_neox", ()),
    ("phi", ()),
    ("cohere2", ("q_proj", "up_proj")),
]


@pytest.fixture(scope="module")
def peft() -> Any:
    """PEFT, whose import takes seconds that only these tests have to wait."""
    return pytest.importorskip("peft")


def logits_of(model: Any) -> np.ndarray:
    """PyTorch's logits of IDS."""
    with torch.no_grad():
        return model(torch.tensor(IDS[None].astype(np.int64))).logits[0].numpy()


def agree(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=2e-5 * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize(("name", "targets"), FAMILIES)
def test_peft_reads_what_weft_writes(
    name: str, targets: tuple[str, ...], tmp_path: Path, peft: Any
) -> None:
    base, low, out = (tmp_path / n for n in ("base", "low", "out"))
    reference = write_model(name, base, changed=SIZES).eval()
    plain = logits_of(reference)
    low.mkdir()
    config, _ = folder_weights(base)
    weights = adapters.fresh(config, adapters.target_roles(config, targets), rank=3, seed=0)
    weights = {k: RNG.standard_normal(v.shape).astype(np.float32) / 4 for k, v in weights.items()}
    adapters.write(low, config, adapters.Adapter(3, 8.0, 0.1, str(base), weights))
    ours = weft.load(low, device="cpu", context=16).logits(IDS)
    merge_folders(base, low, out)
    merged = weft.load(out, device="cpu", context=16).logits(IDS)

    theirs = peft.PeftModel.from_pretrained(reference, str(low)).eval()
    agree(ours, logits_of(theirs))
    agree(merged, logits_of(theirs.merge_and_unload()))
    assert np.abs(ours - plain).max() > 0.1


@pytest.mark.parametrize(("name", "targets"), FAMILIES)
def test_weft_reads_what_peft_writes(
    name: str, targets: tuple[str, ...], tmp_path: Path, peft: Any
) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    reference = write_model(name, base, changed=SIZES).eval()
    options = {"target_modules": list(targets)} if targets else {}
    torch.manual_seed(0)
    theirs = peft.get_peft_model(
        reference,
        peft.LoraConfig(
            r=2, lora_alpha=5, init_lora_weights=False, task_type="CAUSAL_LM", **options
        ),
    ).eval()
    theirs.save_pretrained(str(low))
    config = json.loads((low / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    (low / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": str(base)})
    )
    agree(weft.load(low, device="cpu", context=16).logits(IDS), logits_of(theirs))


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("gpt2", "c_attn", "c_proj c_fc"), ("llama2", "q_proj v_proj", "o_proj up_proj down_proj")],
)
def test_several_at_once_are_what_peft_gives(
    name: str, first: str, second: str, tmp_path: Path, peft: Any
) -> None:
    """Other ranks, scales and layers, one with rsLoRA's scale; PEFT switches between them."""
    base = tmp_path / "base"
    reference = write_model(name, base, changed=SIZES).eval()
    torch.manual_seed(0)
    made = {
        "one": peft.LoraConfig(r=2, lora_alpha=5, target_modules=first.split()),
        "two": peft.LoraConfig(r=7, lora_alpha=3, target_modules=second.split(), use_rslora=True),
    }
    theirs = None
    for adapter, config in made.items():
        config.task_type, config.init_lora_weights = "CAUSAL_LM", False
        if theirs is None:
            theirs = peft.get_peft_model(reference, config, adapter)
        else:
            theirs.add_adapter(adapter, config)
    assert theirs is not None
    theirs.eval().save_pretrained(str(tmp_path))
    folders = {adapter: tmp_path / adapter for adapter in made}
    model = weft.load(base, device="cpu", context=16, adapters=folders)
    for adapter in made:
        theirs.set_adapter(adapter)
        agree(scores(model.runner(), IDS.tolist(), adapter=adapter), logits_of(theirs))
    with theirs.disable_adapter():
        agree(model.logits(IDS), logits_of(theirs))


@pytest.mark.parametrize("stabilized", [False, True])
def test_ranks_and_alphas_of_their_own(stabilized: bool, tmp_path: Path, peft: Any) -> None:
    """rank_pattern, alpha_pattern and layers_to_transform, alone and beside another adapter."""
    base, low, other = (tmp_path / n for n in ("base", "low", "other"))
    reference = write_model("llama2", base).eval()
    torch.manual_seed(0)
    more: dict[str, Any] = {} if stabilized else {
        "rank_pattern": {"q_proj": 5, "1.self_attn.v_proj": 3},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 11},
    }  # fmt: skip
    config = peft.LoraConfig(
        r=2, lora_alpha=5, init_lora_weights=False, task_type="CAUSAL_LM", use_rslora=stabilized,
        target_modules=["q_proj", "v_proj", "down_proj"], layers_to_transform=[1, 2], **more,
    )  # fmt: skip
    theirs = peft.get_peft_model(reference, config).eval()
    theirs.save_pretrained(str(low))
    path = low / "adapter_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(base)})
    )
    want = logits_of(theirs)
    agree(weft.load(low, device="cpu", context=16).logits(IDS), want)
    made, _ = folder_weights(base)
    weights = adapters.fresh(made, adapters.target_roles(made, ()), rank=4, seed=0)
    other.mkdir()
    adapters.write(other, made, adapters.Adapter(4, 8.0, 0.0, str(base), weights))
    stack = adapter_stack.stacked(
        made, {"a": peft_files.read(low, made), "b": peft_files.read(other, made)}, {}
    )
    assert stack.arrays["1.q.loras_a"].shape[0] % 16 == 0
    merge_folders(base, low, tmp_path / "out")
    agree(weft.load(tmp_path / "out", device="cpu", context=16).logits(IDS), want)


@pytest.mark.parametrize(("change", "what"), [
    ({"rank_pattern": {"q.*": 3}}, "expected"),
    ({"rank_pattern": {"(q+)+": 3}}, "rank_pattern holds"),
    ({"alpha_pattern": {"q(?=x)": 3}}, "alpha_pattern holds"),
    ({"alpha_pattern": {"(q": 3}}, "alpha_pattern holds"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save names lm_head"),
    ({"use_dora": True}, "layer '0.q' has half of what DoRA needs"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices are missing"),
    ({"bias": "some"}, "bias is 'some'"),
    ({"layer_replication": [[0, 2]]}, "layer_replication"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ({"rank_pattern": {"q_proj": 3}}, "expected"),
    ({"layers_to_transform": [0]}, "layers_to_transform"),
    ({"kasa_config": {"x": 1}}, "kasa_config"),
])  # fmt: skip
def test_what_an_adapter_asks_for_and_does_not_hold(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    write_model("llama2", base)
    config, _ = folder_weights(base)
    low.mkdir()
    weights = adapters.fresh(config, adapters.target_roles(config, ()), rank=2, seed=0)
    adapters.write(low, config, adapters.Adapter(2, 8.0, 0.0, str(base), weights))
    path = low / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=what):
        peft_files.read(low, config)


@pytest.mark.parametrize(("name", "what"), [
    ("lm_head.lora_A.weight", r"lora_A.weight' has shape \[2, 3\]; expected \[2, 32\]"),
    ("model.embed_tokens.lora_embedding_A", "expected"),
    ("model.embed_tokens.lora_magnitude_vector", "DoRA's or a bias of the embedding"),
    ("lm_head.modules_to_save.weight", "expected"),
    ("model.embed_tokens.token_adapter.trainable_tokens_delta", r"expected \[0, "),
    ("score.modules_to_save.weight", "head of a classifier"),
    ("model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", "expected"),
    ("model.layers.9.self_attn.q_proj.lora_A.weight", "no layer"),
    ("model.layers.0.mlp.experts.lora_A.weight", "lacks a half"),
    ("model.layers.0.self_attn.q_proj.lora_C.weight", "no layer"),
    ("x", "no layer"),
])  # fmt: skip
def test_tensors_of_an_adapter_beyond_linear_layers(name: str, what: str, tmp_path: Path) -> None:
    base, low = tmp_path / "base", tmp_path / "low"
    write_model("llama2", base)
    config, _ = folder_weights(base)
    low.mkdir()
    weights = adapters.fresh(config, adapters.target_roles(config, ()), rank=2, seed=0)
    adapters.write(low, config, adapters.Adapter(2, 8.0, 0.0, str(base), weights))
    file = low / "adapter_model.safetensors"
    tensors = {n: np.array(v) for n, v in SafetensorsFile(file).items()}
    save_file(file, tensors | {f"base_model.model.{name}": np.ones((2, 3), np.float32)})
    with pytest.raises(ModelError, match=what):
        peft_files.read(low, config)
