"""Families by what sets them apart, compiled: tiny checkpoints with odd shapes against
transformers, and what every family promises."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_zoo import FAMILIES, reference_greedy, reference_logits, write_model
from rows import few
from stepping import scores

import weft
from weft.core.errors import ModelError, UsageError
from weft.core.notices import say
from weft.importers.safetensors import open_checkpoint, save_file
from weft.quantize.job import QuantizeOptions, check

IDS = np.random.default_rng(0).integers(0, 200, 30).tolist()
PROMPTS = [IDS[:9], IDS[12:23]]
# One family on each of the other targets; the rest on interp:cuda.
ELSEWHERE = {
    "lfm2": "interp:webgpu",
    "qwen3_5": "interp:webgpu",
    "qwen3_5_moe": "interp:hip-wave64",
    "qwen3_next": "interp:cuda",
    "gpt_oss": "interp:hip-wave64",
    "qwen3_moe": "interp:cuda",
    "phi3": "vulkan",
    "gemma4": "interp:webgpu",
    "gemma4_moe": "interp:cuda",
    "smollm3": "interp:hip-wave64",
    "ministral3": "interp:cuda",
    "granite": "interp:webgpu",
    "olmo2": "interp:cpu-neon",
    "olmo3": "interp:cpu-avx2",
    "mamba": "interp:webgpu",
    "mamba2": "interp:hip-wave64",
    "falcon_h1": "vulkan",
    "jamba": "vulkan",
    "nemotron_h": "interp:webgpu",
}


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


# Made of parts that families compiled with the default suite have: running states (qwen3_next,
# mamba, mamba2, lfm2), latents (deepseek_v3), experts (gpt_oss, qwen3_moe, llama4), gates, norms
# and parallel parts (gemma4, olmo3, cohere2, stablelm_parallel). The default suite compares each
# of these on the oracle (test_family_in_gguf).
LIKE_OTHERS = (
    "qwen3_5", "qwen3_5_moe", "falcon_h1", "falcon_h1_normed", "gemma3n", "deepseek_v2",
    "nemotron_h", "granitemoehybrid", "granitehybrid_dense", "granitemoe", "qwen2_moe", "jamba",
    "olmoe", "llama4_many", "phi3", "phi", "stablelm", "gpt_neox", "ernie4_5_moe", "ernie4_5",
    "gemma4_moe", "falcon_mamba", "cohere", "bamba", "starcoder2", "mixtral", "glm4_moe", "granite",
    "olmo", "olmo2", "hunyuan", "seed_oss", "nemotron", "ministral3", "smollm3", "exaone4_full",
    "gpt_neox_serial", "phi_normed", "glm4", "gemma",
)  # fmt: skip


@pytest.mark.parametrize("name", few(FAMILIES, *(n for n in FAMILIES if n not in LIKE_OTHERS)))
def test_family(tmp_path: Path, name: str) -> None:
    """Logits of every position, greedy tokens, and the bits: a prefill is its tokens one by one,
    and neither a sequence beside it nor how it was cut shows."""
    reference = write_model(name, tmp_path)
    model = weft.load(tmp_path, device="cpu", context=64, max_batch=2)
    runner = model.runner(2)
    found = scores(runner, IDS)
    close(found, reference_logits(reference, IDS))
    runner.prefill(1, IDS[7:20])  # another sequence, which the next one takes the place of
    whole = runner.prefill(1, IDS).copy()
    np.testing.assert_array_equal(whole, found[-1])
    runner.prefill(0, IDS[:11])
    runner.prefill(0, IDS[11:16], 11)
    runner.prefill(1, IDS[5:17])
    for t in range(16, 24):
        both = runner.rows([IDS[t], IDS[t + 1]], [0, 1], [t, t - 4])
        np.testing.assert_array_equal(both[0], found[t])
    for prompt, made in zip(PROMPTS, model.generate(PROMPTS, max_new_tokens=12)):
        assert list(made.ids) == reference_greedy(reference, prompt, made.ids)


@pytest.mark.parametrize("name", few(FAMILIES, "lfm2", "gpt_oss", "phi3", "olmo2", "mamba"))
def test_family_elsewhere(tmp_path: Path, name: str) -> None:
    reference = write_model(name, tmp_path)
    runner = weft.load(tmp_path, device=ELSEWHERE.get(name, "interp:cuda"), context=16).runner()
    want = reference_logits(reference, IDS[:9])
    close(runner.prefill(0, IDS[:8]), want[7])
    close(runner.rows([IDS[8]], [0], [8])[0], want[8])


def test_a_ring_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution's rows in a ring much shorter than the context: long prompts in steps, and a
    sequence that goes on from its middle only where the ring still holds what is looked back at."""
    monkeypatch.setattr("weft.models.arch.inputs.CHUNK", 8)
    monkeypatch.setattr("weft.models.run.runner.CHUNK", 8)
    monkeypatch.setattr("weft.models.run.compiled_runner.step_sizes", lambda caps: (1, 8))
    reference = write_model("lfm2", tmp_path)
    runner = weft.load(tmp_path, device="cpu", context=64).runner()
    want = reference_logits(reference, IDS)
    close(scores(runner, IDS), want)
    whole = runner.prefill(0, IDS).copy()
    close(whole, want[-1])
    # The ring keeps ten rows, 20 to 29, and each looks back at two.
    assert runner.resumes(30, 22) and not runner.resumes(30, 21)
    assert not runner.resumes(0, 1)  # pages that another sequence filled have no such rows
    with pytest.raises(UsageError, match="cannot go on from 21"):
        runner.prefill(0, IDS[21:], 21)
    runner.prefill(0, IDS[22:], 22)
    np.testing.assert_array_equal(runner.prefill(0, IDS[22:], 22), whole)


@pytest.mark.parametrize(
    "name, last",
    few([("lfm2", "conv.in_proj"), ("qwen3_5", "in_proj_qkv")], ("lfm2", "conv.in_proj")),
)
def test_rows_that_are_looked_back_at_are_kept_whole(tmp_path: Path, name: str, last: str) -> None:
    """A convolution's rows in float32 beside narrow keys and values: 2**20 larger, with taps that
    much smaller, they give the same bits."""
    changed = {"conv_bias": False} if name == "lfm2" else {}
    write_model(name, tmp_path, changed=changed)
    tensors = {k: np.array(v) for k, v in open_checkpoint(tmp_path).items()}
    found = []
    for factor in (1.0, 2.0**20):
        for key, value in tensors.items():
            if key.endswith(f"{last}.weight"):  # of LFM2's b, gate and x, the first
                value[: len(value) // 3 if name == "lfm2" else None] *= factor
            if key.endswith(("conv.conv.weight", "conv1d.weight")):
                value /= factor
        save_file(tmp_path / "model.safetensors", tensors)
        runner = weft.load(tmp_path, device="cpu", context=32, cache="f16").runner()
        runner.prefill(0, IDS[:9])
        found.append(runner.rows([IDS[9]], [0], [9]).copy())
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(*found)


def test_a_memory_of_all_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of every length around the taps and the step, cut anywhere, end in the same bits; a
    memory goes on from its last row alone, and from nothing once a step was interrupted."""
    for place in ("arch.inputs.CHUNK", "run.runner.CHUNK"):
        monkeypatch.setattr(f"weft.models.{place}", 16)
    monkeypatch.setattr("weft.models.run.compiled_runner.step_sizes", lambda caps: (1, 16))
    reference = write_model("qwen3_5", tmp_path)
    ids = np.random.default_rng(1).integers(0, 200, 70).tolist()
    model = weft.load(tmp_path, device="cpu", context=80, max_batch=2)
    runner = model.runner(2)
    want = scores(runner, ids)
    close(want, reference_logits(reference, ids))
    for n in (1, 2, 3, 4, 5, 15, 16, 17, 18, 33, 70):
        np.testing.assert_array_equal(runner.prefill(n % 2, ids[:n]), want[n - 1])
        cut = n * 2 // 3
        if cut:
            runner.prefill(n % 2, ids[:cut])
            np.testing.assert_array_equal(runner.prefill(n % 2, ids[cut:n], cut), want[n - 1])
    with pytest.raises(UsageError, match="cannot go on from 69"):
        runner.rows([0], [0], [69])
    monkeypatch.setattr(runner, "step", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.rows([0], [0], [70])
    with pytest.raises(UsageError, match="has been fed 0 tokens"):
        runner.rows([0], [0], [70])


def test_a_longer_context_has_its_own_rope(tmp_path: Path) -> None:
    """Phi-3's long factors: transformers takes them once there are more tokens than the original
    context, weft when the context that it was loaded for is longer."""
    reference = write_model("phi3", tmp_path)
    short = weft.load(tmp_path, device="cpu", context=8).logits(IDS[:8])
    close(short, reference_logits(reference, IDS[:8]))
    long = weft.load(tmp_path, device="cpu", context=32).logits(IDS)
    close(long, reference_logits(reference, IDS))


def test_gemma_4_as_it_is_published(tmp_path: Path) -> None:
    """Within a model that also sees and hears, whose other weights are left alone, as are the
    keys and values of layers that use those of others; sizes under their first names."""
    reference = write_model("gemma4", tmp_path)
    want = weft.load(tmp_path, device="oracle").logits(IDS)
    config = json.loads((tmp_path / "config.json").read_text())
    size = config.pop("per_layer_config")["1"]["head_dim"]
    plain = dict(open_checkpoint(tmp_path).items())
    tensors = {k.replace("model.", "model.language_model."): v for k, v in plain.items()}
    spare = "model.language_model.layers.3.self_attn.k_proj.weight"
    tensors[spare] = tensors[spare.replace("3", "1")]
    tensors["model.vision_tower.encoder.layers.0.self_attn.q_proj.weight"] = np.ones((2, 2), "f4")
    tensors["model.audio_tower.layers.7.norm.weight"] = np.ones(2, np.float32)
    text = {**config, "global_head_dim": size, "vision_config": {}}
    wrapper = {"model_type": "gemma4", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(wrapper))
    save_file(tmp_path / "model.safetensors", tensors)
    model = weft.load(tmp_path, device="oracle")
    np.testing.assert_array_equal(model.logits(IDS), want)
    close(want, reference_logits(reference, IDS))
    for changed, said in (
        ({"num_kv_shared_layers": 3}, "no layer before 1 has what layer 1 shares"),
        ({"num_kv_shared_layers": 0}, "'.*layers.2.self_attn.k_proj.weight' is missing"),
        ({"use_bidirectional_attention": "all"}, "bidirectional attention is not supported"),
        ({"per_layer_config": {"1": {"head_dim": 14}}}, "layer 3 has other heads than layer 1"),
        ({"vocab_size_per_layer_input": 9}, "another vocabulary is not supported"),
    ):
        wrapper["text_config"] = {**text, **changed}
        (tmp_path / "config.json").write_text(json.dumps(wrapper))
        with pytest.raises(ModelError, match=said):
            weft.load(tmp_path, device="oracle")


@pytest.mark.slow
def test_gemma_4_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding of each layer's inputs stays packed on the device too: rows are picked."""
    monkeypatch.setenv("WEFT_CACHE", "off")
    sizes = {"hidden_size": 64, "hidden_size_per_layer_input": 32, "intermediate_size": 64}
    vocab = {"vocab_size": 1200, "vocab_size_per_layer_input": 1200}
    write_model("gemma4", tmp_path, changed=sizes | vocab)
    # inputs of 15 bits, the default, lose 2e-4
    options = {"quant": "int8", "context": 32, "cache": "f32", "act_dtype": "float32"}
    model = weft.load(tmp_path, device="cpu", **options)
    forms = dict(model.config.forms)
    assert forms.keys() >= {"embed", "layer_embed", "layer_proj.w", "3.input_gate.w"}
    want = weft.load(tmp_path, device="oracle", **options).logits(IDS[:1])
    runner = model.runner()
    close(runner.rows(IDS[:1], [0], [0]), want)
    buffers = runner.session("decode").program.buffers
    assert sum(b.nbytes for b in buffers if b.role == "arena") < 1200 * 4 * 32  # of 4 layers
    with pytest.raises(UsageError, match="does not calibrate gemma4_text"):
        check(tmp_path, tmp_path / "out", QuantizeOptions(text="digest"))


@pytest.mark.parametrize("name, kind", [("ministral3", "mistral3"), ("qwen3_5", "qwen3_5")])
def test_a_model_that_also_sees(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text model of a wrapper: its config in text_config, its tensors under other names. What
    is left alone is said, once; a tower that weft has is not left alone."""
    say.cache_clear()
    write_model(name, tmp_path / "plain")
    want = weft.load(tmp_path / "plain", device="oracle").logits(IDS)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    tensors = dict(open_checkpoint(tmp_path / "plain").items())
    names = (
        lambda name: f"language_model.{name}",
        lambda name: name.replace("model.", "model.language_model."),
    )
    for i, rename in enumerate(names):
        folder = tmp_path / str(i)
        folder.mkdir()
        wrapper = {"model_type": kind, "text_config": config, "vision_config": {}}
        (folder / "config.json").write_text(json.dumps(wrapper))
        eye = {"model.visual.blocks.0.attn.qkv.weight": np.ones((3, 3), np.float32)}
        named = {rename(k): v for k, v in tensors.items()}
        save_file(folder / "model.safetensors", named | eye)
        np.testing.assert_array_equal(weft.load(folder, device="oracle").logits(IDS), want)
        weft.load(folder, device="oracle")
    said = 0 if kind == "mistral3" else len(names)
    assert capsys.readouterr().err.count("text model alone") == said
