"""Models without a family here, traced from transformers' code, against transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.presets import caps_of
from weft.core.errors import DeviceError, ModelError, UsageError
from weft.host.confined import Limits
from weft.models.run import saved

pytest.importorskip("transformers")
import causal_zoo as kit
import torch
from rows import by_turns, few
from zoo_kit import loaded

from weft.models.zoo import ask

# Biases and partial ropes, parallel parts, windows, experts, latent attention, learned positions,
# positions that count from the padding's id, norms of queries, attention by PyTorch's one function,
# layers that share keys and values, positions counted by the model, short convolutions, delta rules
# that forget by heads and by elements of keys, scans of Mamba 1 (no attention at all) and 2,
# attention that is written out: ALiBi, windows by tables, masks that multiply; sums that fade,
# heads of attention that tokens pick, adapters of languages.
SAMPLE = (
    "stablelm", "gpt_neox", "cohere2", "mixtral", "qwen2_moe", "deepseek_v3", "opt", "biogpt",
    "roberta", "phi", "starcoder2", "glm4_moe", "minimax_m2", "exaone4", "apertus",
    "falcon", "gemma3n_text", "bart", "lfm2_moe", "qwen3_next", "kimi_linear",
    "falcon_mamba", "bamba", "bloom", "gpt_neo", "openai-gpt", "rwkv", "recurrent_gemma", "jetmoe",
    "xmod",
)  # fmt: skip
DEFAULT = (  # test_other_devices compares latents and delta rules, which are longer to compile
    "stablelm", "opt", "roberta", "bart", "lfm2_moe", "falcon_mamba", "bloom", "gpt_neo",
    "recurrent_gemma",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("traced_types")


@pytest.mark.parametrize("kind", few(SAMPLE, *DEFAULT))
def test_equals_transformers(causal: Any, kind: str) -> None:
    folder, reference = causal(kind)
    model, ids = loaded(folder), kit.prompt(reference)
    wanted = kit.eager(reference, ids)
    np.testing.assert_allclose(model.logits(ids), wanted, atol=2e-5 * np.abs(wanted).max())
    assert list(model.generate(ids, kit.NEW).ids) == kit.greedy(reference, ids)


@pytest.mark.parametrize(
    "kind",
    few(["cohere2", "mixtral", "deepseek_v3", "opt", "lfm2_moe", "qwen3_next", "kimi_linear",
         "falcon_mamba", "bamba", "zamba", "bloom", "gpt_neo"],
        "lfm2_moe", "falcon_mamba", "bloom"),
)  # fmt: skip
def test_one_row_has_the_bits_of_many(causal: Any, kind: str) -> None:
    """A prompt cut anywhere, and sequences side by side, give each row the same bits."""
    folder, reference = causal(kind)
    model, ids = loaded(folder, max_batch=4), kit.prompt(reference)
    whole = model.logits(ids)
    runner = model.new_runner(3, 12)
    for cut in (1, 7, 16):
        runner.prefill(0, ids[:cut])
        for at in range(cut, len(ids)):
            row = runner.rows([ids[at]], [0], [at])[0]
            np.testing.assert_array_equal(row, whole[at])
    runner.prefill(1, ids[:5])
    runner.prefill(2, ids[:9])
    rows = runner.rows([ids[5], ids[9], ids[10]], [1, 2, 2], [5, 9, 10])
    np.testing.assert_array_equal(rows, whole[[5, 9, 10]])
    alone = [model.generate(ids[:n], 8).ids for n in (3, 9, 20)]
    assert [g.ids for g in model.generate([ids[:n] for n in (3, 9, 20)], 8)] == alone


@pytest.mark.parametrize(
    ("kind", "options"),
    by_turns(
        few(["stablelm", "mixtral", "qwen3_next", "bloom"], "stablelm", "bloom"),
        [{"dtype": "bfloat16"}, {"quant": "int4"}, {"dtype": "float16"}, {"quant": "int8"}],
    ),
)
def test_other_numbers(causal: Any, kind: str, options: dict[str, str]) -> None:
    """Weights of fewer bits change the logits by about as much as they lose."""
    folder, reference = causal(kind)
    ids = kit.prompt(reference)
    got, wanted = loaded(folder, **options).logits(ids), kit.eager(reference, ids)
    lost = {"bfloat16": 0.01, "float16": 0.002, "int8": 0.02, "int4": 0.2}
    error = np.median(np.abs(got - wanted)) / np.abs(wanted).max()
    assert 0 < error < lost[next(iter(options.values()))]


@pytest.mark.parametrize(
    ("kind", "device"),
    by_turns(["mixtral", "deepseek_v3", "kimi_linear", "bamba", "bloom"], ["vulkan", "oracle"]),
)
def test_other_devices(causal: Any, device: str, kind: str) -> None:
    try:
        if device != "oracle":
            registry.get(device)
    except DeviceError as error:
        pytest.skip(str(error))
    folder, reference = causal(kind)
    ids = kit.prompt(reference)
    wanted = kit.eager(reference, ids)
    np.testing.assert_allclose(loaded(folder, device=device).logits(ids), wanted, atol=1e-4)


@pytest.mark.parametrize("kind", few(["cohere2", "qwen3_next", "falcon_mamba"], "falcon_mamba"))
def test_a_compiled_file_has_the_same_bits(causal: Any, tmp_path: Path, kind: str) -> None:
    folder, reference = causal(kind)
    model, ids = loaded(folder), kit.prompt(reference)
    saved.save(model, tmp_path / "m.weft", "cpu", caps_of("cpu"), {}, False)
    again = weft.load(tmp_path / "m.weft", device="cpu")
    np.testing.assert_array_equal(again.logits(ids), model.logits(ids))
    assert again.generate(ids, 8).ids == model.generate(ids, 8).ids
    assert again.generate(ids[:9], 8).ids == model.generate(ids[:9], 8).ids  # resumes, or cannot


def test_adapters_attach_by_name(causal: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder, _ = causal("stablelm")
    base = kit.MODEL_FOR_CAUSAL_LM_MAPPING[type(kit.config_of("stablelm"))].from_pretrained(folder)
    wanted = peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(base, wanted).eval()
    adapted.save_pretrained(tmp_path / "lora")
    model, ids = loaded(folder, adapters={"one": tmp_path / "lora"}), kit.prompt(base)
    got = model.generate(ids, kit.NEW, adapter="one").ids
    assert list(got) == kit.greedy(adapted, ids)
    assert list(model.generate(ids, kit.NEW).ids) != list(got)


def test_masks_may_be_large_tables(tmp_path: Path) -> None:
    reference = kit.written("gpt_neo", tmp_path, max_position_embeddings=2048, window_size=100)
    ids = kit.prompt(reference, 130)
    wanted = kit.eager(reference, ids)
    got = loaded(tmp_path, context=256).logits(ids)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * np.abs(wanted).max())


def test_a_cache_that_would_lose_positions_is_refused(causal: Any) -> None:
    folder, reference = causal("bloom")
    ids = kit.prompt(reference)
    with pytest.raises(UsageError, match="would lose the positions"):
        loaded(folder, cache="int8")
    got, wanted = loaded(folder, cache="bfloat16").logits(ids), kit.eager(reference, ids)
    assert np.abs(got - wanted).max() < 0.01 * np.abs(wanted).max()


def changed(folder: Path, to: Path, **fields: Any) -> Path:
    shutil.copytree(folder, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return to


def test_weights_that_do_not_fit(causal: Any, tmp_path: Path) -> None:
    folder, _ = causal("stablelm")
    for name, fields, said in (
        ("more", {"num_hidden_layers": 3}, r"lack a tensor for 'model\.layers\.2"),
        ("fewer", {"num_hidden_layers": 1}, r"'model\.layers\.1.*is not part of this model"),
        ("wide", {"vocab_size": 98}, r"has shape \[97, 64\] in the weights; .* \[98, 64\]"),
        ("packed", {"quantization_config": {"quant_method": "awq"}}, "no layer has a tensor"),
        ("strange", {"model_type": "none_such"}, "lacks a causal model of this type"),
    ):
        with pytest.raises(ModelError, match=said):
            loaded(changed(folder, tmp_path / name, **fields))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("inverse", [False, True])
def test_elements_by_turns(tmp_path: Path, axis: int, inverse: bool) -> None:
    """A checkpoint's elements go where transformers' conversion puts them."""
    from transformers.core_model_loading import Interleave

    from weft.importers.safetensors import open_checkpoint, save_file
    from weft.models.zoo.places import _after
    from weft.models.zoo.placing import fill, shape_of

    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    save_file(tmp_path / "model.safetensors", {"x": x}, {"format": "pt"})
    turns = Interleave(axis, inverse)
    wanted = turns.convert({"x": torch.from_numpy(x)}, ["x"], ["y"])["y"].numpy()
    ((place,),) = _after(turns, {"x": [{"tensor": "x"}]}).values()
    out = np.empty(shape_of(place, {"x": x.shape}, "here"), np.float32)
    fill(open_checkpoint(tmp_path), place, out)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("kind", few(["cohere2", "mixtral", "opt"], "opt"))
def test_traced_models_show_attention_and_linear_layers(causal: Any, kind: str) -> None:
    folder, reference = causal(kind)
    model, ids = loaded(folder), kit.prompt(reference)
    found = model.inspect(ids, [*model.places()])
    assert np.array_equal(found.logits, model.logits(ids))
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = reference(torch.tensor([ids]), output_attentions=True).attentions
    for own, their in zip(found.attentions, wanted, strict=True):
        np.testing.assert_allclose(own, their[0], atol=1e-5)
    last = [name for name in model.places() if name.endswith(".out")][-1]
    edit = weft.Edit.replace(last, found[last])
    assert np.array_equal(model.inspect(ids, (), edits=edit).logits, found.logits)
    with pytest.raises(UsageError, match="is traced"):
        model.unembed(np.zeros((1, 64)))


@pytest.mark.parametrize("kind", few(["opt", "mixtral", "bloom"], "mixtral"))
def test_gradients_are_pytorchs(causal: Any, kind: str) -> None:
    folder, reference = causal(kind)
    model, ids, held = loaded(folder, device="oracle"), kit.prompt(reference), {}
    place = next(name for name in model.places() if "layers.0" in name or "h.0" in name)
    place = place.rpartition(".")[0] + ".out"

    def keep(module: Any, given: Any, out: Any) -> None:
        out.retain_grad()
        held["out"] = out

    hook = reference.get_submodule(place.removesuffix(".out")).register_forward_hook(keep)
    reference(torch.tensor([ids]), use_cache=False).logits.square().sum().backward()
    hook.remove()
    _, found = model.gradients(ids, lambda logits: (logits * logits).sum(), place)
    wanted = held["out"].grad[0].numpy()
    np.testing.assert_allclose(found[place], wanted, atol=1e-5 * np.abs(wanted).max())


def test_recurrences_have_no_derivative(causal: Any) -> None:
    folder, reference = causal("bamba")
    with pytest.raises(UsageError, match="a recurrence, which have no derivative"):
        model, ids = loaded(folder, device="oracle"), kit.prompt(reference)
        model.gradients(ids, lambda logits: logits.sum(), "model.layers.0.mamba.in_proj.out")


def test_machines_are_refused(causal: Any) -> None:
    from weft.models.arch.shares import check_columns
    from weft.models.arch.stages import check_parts

    config = loaded(causal("stablelm")[0]).config
    for check in (check_parts, check_columns):
        with pytest.raises(UsageError, match="traced from another library's code"):
            check(config, 2, "here")


# -- the process ----------------------------------------------------------------------------------

SECOND = """
import sys
import weft
model = weft.load(sys.argv[1], device="cpu", context=64)
print(model.generate([5, 6, 7], 4).ids, sorted({"torch", "transformers"} & set(sys.modules)))
"""


def test_a_process_of_its_own_traces_once(
    causal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first load traces in a child; a later process finds the graph on disk. Neither imports
    PyTorch."""
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, _ = causal("gptj")  # no family here
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SECOND, str(folder)], capture_output=True, text=True, check=True
        )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].endswith("[]\n")


@pytest.mark.slow  # waits for a limit, which tests/robust/test_confined.py does by default
@pytest.mark.parametrize("fields", [{"n_layer": 10**6}, {"n_embd": 4 * 10**12}])
def test_configs_without_end(
    causal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, int]
) -> None:
    folder = changed(causal("gptj")[0], tmp_path / "m", **fields)
    monkeypatch.undo()
    monkeypatch.setattr(ask, "LIMITS", Limits(6, 4 << 30, 1 << 20))
    with pytest.raises(ModelError, match=r"ran for more than|is not supported|took more than"):
        loaded(folder)


def test_without_transformers(causal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_version", lambda name: "")
    with pytest.raises(ModelError, match=r"not supported by weft itself.*\[zoo\]"):
        loaded(causal("stablelm")[0])
