"""weft quantize into GGUF: the gguf package and weft read what the search gave, of every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_zoo
import numpy as np
import pytest
from family_zoo import MORE
from rows import few

from weft.core.dtypes import float16
from weft.core.errors import UsageError
from weft.core.packed import dequantized
from weft.hub.box import box_folder
from weft.models import load
from weft.quantize.job import QuantizeOptions, quantize
from weft.quantize.schemes import Scheme
from weft.quantize.search import Search
from weft.training.model import folder_weights

pytestmark = pytest.mark.usefixtures("few_candidates")


def test_a_gguf_file(tmp_path: Path) -> None:
    """The gguf package finds the matrices that the search gave, and weft the same model."""
    import gguf

    config, weights = folder_weights(box_folder())
    for scheme, kind in (("int8", "Q8_0"), ("q5_k", "Q5_0"), ("int4", "Q4_0")):
        path = tmp_path / f"{scheme}.gguf"
        quantize(box_folder(), path, QuantizeOptions(scheme, method="search"))
        tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
        found = tensors["blk.1.ffn_up.weight"]
        assert found.tensor_type.name == kind
        form = Scheme(scheme).form(config.hidden)
        assert form is not None
        wanted = dequantized(form, Search(form, float16)(weights["1.up.w"]))
        assert np.array_equal(gguf.quants.dequantize(found.data, found.tensor_type), wanted)
        model = load(path, device="cpu")
        np.testing.assert_array_equal(model.weights["norm.w"], weights["norm.w"])
        prompt = [5, 99, 1023, 7]
        plain = load(box_folder(), device="cpu")
        for text in ("def f(x):\n    return [x, 'é']\n", "  tabs\tand 12345"):
            assert model.tokenizer and plain.tokenizer
            assert model.tokenizer.encode(text) == plain.tokenizer.encode(text)
        lost = np.abs(model.logits(prompt) - plain.logits(prompt)).max()
        assert 0 < lost < (0.2 if scheme == "int8" else 4)


EVEN = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
HALF = {**model_zoo.LONG, "partial_rotary_factor": 0.5}
WRITTEN_MORE = (
    "gemma", "seed_oss", "exaone4", "glm4", "ernie4_5", "hunyuan", "phi", "stablelm",
    "stablelm_parallel", "starcoder2", "cohere", "cohere2", "nemotron", "olmo", "gpt_neox",
    "gpt_neox_serial",
)  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {
    **{name: {"intermediate_size": 64} for name in model_zoo.DECODERS if name != "gpt2"},
    **dict.fromkeys(("ministral3", "granite", "olmo2", "olmo3"), EVEN),
    "smollm3": {**EVEN, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    "phi3": {k: v for k, v in EVEN.items() if k != "head_dim"} | {"rope_parameters": HALF},
    "lfm2": {**EVEN, "block_multiple_of": 32, "conv_bias": False},
    **{name: {key: EVEN[key] for key in EVEN if key in MORE[name][1]} for name in WRITTEN_MORE},
}  # fmt: skip


@pytest.mark.parametrize("name", few(WRITTEN, *list(WRITTEN)[::3]))
def test_a_gguf_file_of_every_family(name: str, tmp_path: Path) -> None:
    """A GGUF file and a folder of the same packed weights give the same logits, but for the
    rounding of what slows a rope."""
    model_zoo.write_model(name, tmp_path / "hf", changed=WRITTEN[name])
    options, ids = (
        QuantizeOptions("int8", head="none", method="search"),
        [5, 3, 100, 7, 7, 90, 12, 11, 2],
    )
    models = []
    for out in ("m.gguf", "out"):
        quantize(tmp_path / "hf", tmp_path / out, options)
        models.append(load(tmp_path / out, device="oracle", act_dtype="float32"))
    found, wanted = (m.logits(ids) for m in models)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "moe_intermediate_size": 32}
LATENT = {
    **_SIZES, "intermediate_size": 96, "num_key_value_heads": 4, "kv_lora_rank": 32,
    "qk_nope_head_dim": 32, "v_head_dim": 32,
}  # fmt: skip
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {**EVEN, "num_key_value_heads": 2},
    "qwen2_moe": {
        **_SIZES, "mlp_only_layers": [], "use_sliding_window": False,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_moe": {**_SIZES, "head_dim": 16, "mlp_only_layers": [], "norm_topk_prob": True},
    "olmoe": {**EVEN, "norm_topk_prob": False, "clip_qkv": None},
    "glm4_moe": {**_SIZES, **EVEN, "num_key_value_heads": 2},
    "deepseek_v2": {**LATENT, "qk_nope_head_dim": 20},
    "deepseek_v3": {
        **LATENT, "q_lora_rank": 32, "attention_bias": False,
        "rope_parameters": {**MORE["deepseek_v3"][1]["rope_parameters"], "mscale": 0.8},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", few(EXPERTS, "mixtral", "qwen2_moe", "deepseek_v2"))
def test_a_gguf_file_of_experts(name: str, tmp_path: Path) -> None:
    """The file gives the logits of the same search while loading."""
    model_zoo.write_model(name, tmp_path / "hf", changed=EXPERTS[name])
    options = QuantizeOptions("int8", embed="int8", method="search")
    quantize(tmp_path / "hf", tmp_path / "m.gguf", options)
    found, wanted = (
        load(tmp_path / "m.gguf", device="oracle", act_dtype="float32"),
        load(tmp_path / "hf", device="oracle", quant="int8", act_dtype="float32"),
    )
    assert dict(found.config.forms).keys() == dict(wanted.config.forms).keys()
    ids = [5, 3, 100, 7, 7, 90, 12, 11, 2]
    np.testing.assert_allclose(found.logits(ids), wanted.logits(ids), atol=2e-5)


def test_what_gguf_does_not_say_is_refused(tmp_path: Path) -> None:
    """A reader of the file takes every fourth layer to be without a rope."""
    model_zoo.write_model("smollm3", tmp_path / "hf", changed=EVEN)
    with pytest.raises(UsageError, match="rope of layer 1 is None, a reader"):
        quantize(tmp_path / "hf", tmp_path / "m.gguf", QuantizeOptions("int8", method="search"))
