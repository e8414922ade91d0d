"""What PEFT trains besides low-rank matrices of layers, against PEFT itself: alone with the model,
merged into a folder, over packed weights, and by rows of one step with other adapters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_zoo import VOCAB, write_model
from rows import few
from stepping import scores

import weft
from weft.core.errors import ModelError
from weft.importers.safetensors import SafetensorsFile, open_checkpoint, save_file
from weft.training.merge import merge_folders

IDS = np.random.default_rng(0).integers(0, VOCAB, 13).astype(np.int32)
SIZES = {"vocab_size": VOCAB}
LINEAR = {"target_modules": ["q_proj", "down_proj"]}
# (family, LoraConfig's fields, True if requests can choose it)
FORMS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "dora": ("llama2", {**LINEAR, "use_dora": True}, True),
    "dora of Conv1D": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "use_dora": True}, True),
    "dora, rsLoRA": ("qwen2", {**LINEAR, "use_dora": True, "use_rslora": True}, True),
    "dora of latents beside experts": (
        "deepseek_v2", {"target_modules": ["kv_b_proj", "q_proj"], "use_dora": True}, True,
    ),
    "bias of layers": ("gpt2", {"target_modules": ["c_attn"], "bias": "lora_only"}, True),
    "dora and biases": (
        "gpt2", {"target_modules": ["c_attn"], "bias": "lora_only", "use_dora": True}, True,
    ),
    "all biases": ("gpt2", {"target_modules": ["c_attn"], "bias": "all"}, False),
    "lora_bias": ("gpt2", {"target_modules": ["c_attn"], "lora_bias": True}, True),
    "embedding": ("llama2", {"target_modules": ["embed_tokens", "q_proj"]}, False),
    "tied embedding": ("llama3", {"target_modules": ["embed_tokens", "q_proj"]}, False),
    "head": ("llama2", {"target_modules": ["lm_head", "v_proj"]}, False),
    "tied head": ("llama3", {"target_modules": ["lm_head"]}, False),
    "saved norms": ("llama2", {**LINEAR, "modules_to_save": ["input_layernorm", "norm"]}, False),
    "saved head": ("llama2", {**LINEAR, "modules_to_save": ["lm_head"]}, False),
    "saved tied embedding": ("llama3", {**LINEAR, "modules_to_save": ["embed_tokens"]}, False),
    "saved both": (
        "llama3",
        {**LINEAR, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, False,
    ),
    "tokens": ("llama2", {**LINEAR, "trainable_token_indices": [5, 9, 11]}, False),
    "tied tokens": ("llama3", {**LINEAR, "trainable_token_indices": [5, 9, 11]}, False),
    "tokens by table": (
        "llama2",
        {**LINEAR, "trainable_token_indices": {"embed_tokens": [5, 9], "lm_head": [3]}}, False,
    ),
    "patterns": (
        "llama2",
        {**LINEAR, "rank_pattern": {r".*\.1\..*q_proj": 5, "down_proj": 3},
         "alpha_pattern": {r"layers\.[02]\.mlp\.down_proj": 11}}, True,
    ),
    "excluded layers": (
        "llama2",
        {**LINEAR, "exclude_modules": ["model.layers.1.self_attn.q_proj"],
         "layers_to_transform": [0, 1], "layers_pattern": "layers"}, True,
    ),
    "experts": (
        "mixtral",
        {"target_modules": ["q_proj"], "target_parameters": [
            "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}, False,
    ),
    "experts' down": (
        "qwen3_moe",
        {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"],
         "rank_pattern": {"experts.down_proj": 3}}, False,
    ),
    "experts of gpt-oss": (
        "gpt_oss",
        {"target_modules": ["v_proj"], "target_parameters": [
            "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}, False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def peft() -> Any:
    return pytest.importorskip("peft")


def logits_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(IDS[None].astype(np.int64))).logits[0].numpy()


def agree(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=3e-5 * max(1.0, np.abs(want).max()))


def written(
    peft: Any, family: str, fields: dict[str, Any], base: Path, low: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Writes a model and an adapter of it with random numbers; returns the logits of both."""
    torch.manual_seed(0)
    reference = write_model(family, base, changed=SIZES).eval()
    plain = logits_of(reference)
    config = peft.LoraConfig(r=2, lora_alpha=5, task_type="CAUSAL_LM", init_lora_weights=False,
                             **fields)  # fmt: skip
    theirs = peft.get_peft_model(reference, config).eval()
    marks = ("lora_", "modules_to_save", "bias", "trainable_tokens_delta")
    for name, value in theirs.named_parameters():
        if value.requires_grad and any(mark in name for mark in marks):
            with torch.no_grad():
                near = value if "magnitude" in name or "lora_" not in name else 0
                value.copy_(near + torch.randn_like(value) / 8)
    theirs.save_pretrained(str(low))
    path = low / "adapter_config.json"
    data = json.loads(path.read_text()) | {"base_model_name_or_path": str(base)}
    path.write_text(json.dumps(data))
    theirs = peft.PeftModel.from_pretrained(
        write_model(family, base / "again", changed=SIZES).eval(), str(low)
    )
    return plain, logits_of(theirs.eval())


@pytest.fixture(scope="module")
def plain_lora(peft: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Family -> (folder of a plain adapter, logits of the model with it), each written once."""

    @cache
    def get(family: str) -> tuple[Path, np.ndarray]:
        root = tmp_path_factory.mktemp("plain")
        fields = {"target_modules": ["c_attn"] if family == "gpt2" else ["q_proj"]}
        return root / "low", written(peft, family, fields, root / "base", root / "low")[1]

    return get


@pytest.mark.parametrize("form", FORMS)
def test_alone_merged_and_by_row(
    form: str, tmp_path: Path, peft: Any, plain_lora: Callable[[str], Any]
) -> None:
    family, fields, rows = FORMS[form]
    base, low = tmp_path / "base", tmp_path / "low"
    plain, want = written(peft, family, fields, base, low)
    assert np.abs(want - plain).max() > 0.05
    agree(weft.load(low, device="cpu", context=16).logits(IDS), want)
    if "experts" not in form:  # weft merge takes models that can be trained
        merge_folders(base, low, tmp_path / "out")
        agree(weft.load(tmp_path / "out", device="cpu", context=16).logits(IDS), want)
    if not rows:
        with pytest.raises(
            ModelError, match=r"adapter a: it .*cannot choose.*as a model of its own"
        ):
            weft.load(base, device="cpu", context=16, adapters={"a": low})
        return
    other, second = plain_lora(family)
    model: Any = weft.load(base, device="cpu", context=16, adapters={"a": low, "b": other})
    alone: Any = weft.load(base, device="cpu", context=16, adapters={"b": other})
    agree(scores(model.runner(), IDS.tolist(), adapter="a"), want)
    got = scores(model.runner(), IDS.tolist(), adapter="b")
    agree(got, second)
    assert (got == scores(alone.runner(), IDS.tolist(), adapter="b")).all()
    agree(model.logits(IDS), plain)


@pytest.mark.parametrize(
    "form",
    few(
        [
            "dora",
            "dora and biases",
            "dora of latents beside experts",
            "saved norms",
            "saved head",
            "lora_bias",
        ],
        "dora",
        "saved norms",
        "saved head",
        "lora_bias",
    ),
)
def test_over_packed_weights(form: str, tmp_path: Path, peft: Any) -> None:
    """The adapter over quantised weights is the adapter over what these stand for."""
    family, fields, rows = FORMS[form]
    base, low = tmp_path / "base", tmp_path / "low"
    written(peft, family, fields, base, low)
    options: dict[str, Any] = {
        "device": "cpu",
        "context": 16,
        "quant": "int8",
        "act_dtype": "float32",
        "cache": "float32",
    }
    got = weft.load(low, **options).logits(IDS)
    plain = weft.load(low, device="cpu", context=16).logits(IDS)
    assert 0 < np.abs(got - plain).max() < 0.05 * np.abs(plain).max()
    if rows:
        model: Any = weft.load(base, adapters={"a": low}, **options)
        agree(scores(model.runner(), IDS.tolist(), adapter="a"), got)


def test_what_packed_weights_do_not_take(tmp_path: Path, peft: Any) -> None:
    family, fields, _ = FORMS["tokens"]
    written(peft, family, fields, tmp_path / "base", tmp_path / "low")
    with pytest.raises(ModelError, match="changes rows of 'embed', which is packed"):
        weft.load(tmp_path / "low", device="cpu", quant="int8")


def test_many_forms_on_the_oracle(tmp_path: Path, peft: Any) -> None:
    family, fields, _ = FORMS["dora and biases"]
    _, want = written(peft, family, fields, tmp_path / "base", tmp_path / "low")
    model: Any = weft.load(
        tmp_path / "base", device="oracle", context=16, adapters={"a": tmp_path / "low"}
    )
    agree(scores(model.runner(), IDS.tolist(), adapter="a"), want)


def expert_by_expert(
    folder: Path, base: Path, family: str, names: tuple[str, ...], skip: int
) -> dict[str, np.ndarray]:
    """Writes an adapter of single experts, as older versions of PEFT and transformers name them;
    returns the weights of the model with it."""
    rng = np.random.default_rng(3)
    weights = {n: np.array(v) for n, v in open_checkpoint(base).items()}
    tensors = {}
    for name in list(weights):
        layer = name.removesuffix(".weight")
        if ".experts." not in name or f".experts.{skip}." in name or not layer.endswith(names):
            continue
        out, into = weights[name].shape
        a, b = rng.standard_normal((2, into)), rng.standard_normal((out, 2)) / 4
        tensors[f"base_model.model.{layer}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{layer}.lora_B.weight"] = b.astype(np.float32)
        weights[name] = (weights[name] + 2.5 * b @ a).astype(np.float32)
    assert tensors, f"{family} has no experts of their own: {list(weights)[:9]}"
    folder.mkdir()
    save_file(folder / "adapter_model.safetensors", tensors)
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 5, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return weights


@pytest.mark.parametrize(("family", "names"), [
    ("mixtral", ("w1", "w2", "w3")), ("qwen3_moe", ("gate_proj", "down_proj")),
])  # fmt: skip
def test_experts_one_by_one(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
    base, low, out = (tmp_path / n for n in ("base", "low", "out"))
    write_model(family, base, changed=SIZES)
    weights = expert_by_expert(low, base, family, names, skip=1)
    shutil.copytree(base, out)
    for path in out.glob("*.safetensors*"):
        path.unlink()
    save_file(out / "model.safetensors", weights)
    want = weft.load(out, device="cpu", context=16).logits(IDS)
    agree(weft.load(low, device="cpu", context=16).logits(IDS), want)
    assert np.abs(want - weft.load(base, device="cpu", context=16).logits(IDS)).max() > 0.05
    with pytest.raises(ModelError, match="adapts experts"):
        weft.load(base, device="cpu", adapters={"a": low})
    file = low / "adapter_model.safetensors"
    tensors = {n: np.array(v) for n, v in SafetensorsFile(file).items()}
    some = next(name for name in tensors if "experts.0." in name)
    for change, said in (
        ({some.replace("experts.0.", "experts.99."): tensors[some]}, "expert 99; there are"),
        ({some: tensors[some][:, :-1]}, "has shape"),
        ({some: None}, "half of the adapter"),
    ):
        file.unlink()
        save_file(file, {k: v for k, v in (tensors | change).items() if v is not None})
        with pytest.raises(ModelError, match=said):
            weft.load(low, device="cpu")
