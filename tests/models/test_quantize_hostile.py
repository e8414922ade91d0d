"""What weft quantize and quant= must survive: what lies in the way, weights at the edge of a dtype,
shapes that few models have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from weft.cli.quantize import quantize as command
from weft.core.dtypes import float16
from weft.core.errors import ModelError, UsageError
from weft.core.packed import Form, dequantized
from weft.host.files import owned
from weft.hub.box import box_folder
from weft.importers.packed import compressed
from weft.importers.packed.gptq import awq, gptq
from weft.importers.packed.layer import LayerTensors
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import load
from weft.quantize import search as search_
from weft.quantize.job import QuantizeOptions, check, quantize
from weft.quantize.plan import choose
from weft.quantize.search import Search

QUICK = QuantizeOptions("int8", method="search")


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_, "STEPS", {4: 1, 5: 1, 8: 1})


def small(folder: Path, hidden: int = 24, layers: int = 1, ffn: int = 40, head: int = 16) -> Path:
    """A llama with random weights."""
    folder.mkdir()
    rng, vocab = np.random.default_rng(0), 64
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1,
        "vocab_size": vocab, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "head_dim": head,
        "tie_word_embeddings": True, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "self_attn.q_proj": (2 * head, hidden), "self_attn.k_proj": (head, hidden),
        "self_attn.v_proj": (head, hidden), "self_attn.o_proj": (hidden, 2 * head),
        "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    named = {f"layers.{i}.{n}": s for i in range(layers) for n, s in shapes.items()}
    named |= {"embed_tokens": (vocab, hidden), "norm": (hidden,)}
    weights = {
        f"model.{n}.weight": (rng.standard_normal(s) * 0.1).astype(np.float32)
        for n, s in named.items()
    }
    save_file(folder / "model.safetensors", weights, {"format": "pt"})
    return folder


def test_what_lies_in_the_way_stays(tmp_path: Path) -> None:
    source = small(tmp_path / "m")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exists already"):
        quantize(source, link, QUICK)
    foreign = tmp_path / ".out.quantizing"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="did not make"):
        quantize(source, tmp_path / "out", QUICK)
    assert (foreign / "thesis.txt").read_text() == "years of work"
    with owned(tmp_path / ".two.quantizing"), pytest.raises(UsageError, match="another process"):
        quantize(source, tmp_path / "two", QUICK)


def test_another_model_under_the_same_name_begins_anew(tmp_path: Path) -> None:
    source = small(tmp_path / "m", layers=2)

    def broken(what: str, done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "out", QUICK, report=broken)
    checkpoint = open_checkpoint(source)
    twice = {name: checkpoint[name] * 2 for name in checkpoint}
    save_file(source / "model.safetensors", twice, {"format": "pt"})
    was = (source / "model.safetensors").stat().st_mtime_ns
    os.utime(source / "model.safetensors", ns=(was, was + 10**9))
    quantize(source, tmp_path / "out", QUICK)
    made, w = open_checkpoint(tmp_path / "out"), twice["model.layers.0.mlp.up_proj.weight"]
    scales = made["model.layers.0.mlp.up_proj.weight_scale"].astype(np.float32)
    assert 128 * np.abs(scales).max() > 0.7 * np.abs(w).max()
    assert not (tmp_path / "out/quantize.json").exists()


def test_rows_of_24_and_40_come_back(tmp_path: Path) -> None:
    """Their groups are of 8: the folder says so, and loads."""
    source = small(tmp_path / "m")
    quantize(source, tmp_path / "out", QUICK)
    said = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    weights = [g["weights"] for g in said["config_groups"].values()]
    assert [(w["strategy"], w["group_size"]) for w in weights] == [("group", 8), ("group", 32)]
    assert said["ignore"] == ["lm_head"]  # tied to the embeddings, which stay as they are
    got, wanted = (load(f, device="oracle").logits([1, 2, 3]) for f in (tmp_path / "out", source))
    assert 0 < np.abs(got - wanted).max() < 0.05
    kept = load(source, device="cpu", quant="int8").logits([1, 2, 3])
    assert np.abs(kept - wanted).max() < 0.05


def test_what_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    source, out = small(tmp_path / "m"), tmp_path / "out"
    for options, name, said in (
        (QuantizeOptions("int5"), "out", "does not hold int5"),
        (QuantizeOptions("int4"), "out.GGUF", "holds 4-bit int, "),
        (QuantizeOptions("int4", embed="int8"), "out", "GGUF only"),
        (QuantizeOptions("int4", bits=4.0), "out", "below that"),
        (QuantizeOptions("int4", bits=float("nan")), "out", "below that"),
    ):
        with pytest.raises(UsageError, match=said):
            check(source, tmp_path / name, options)
    with pytest.raises(ModelError, match="runs of 8"):
        check(small(tmp_path / "odd", 20, ffn=20, head=2), out, QuantizeOptions(head="none"))
    with pytest.raises(UsageError, match="tokens is 1"):
        CliRunner().invoke(
            command,
            [str(box_folder()), "-o", str(out), "--text-tokens", "1"],
            catch_exceptions=False,
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "odd"]


def test_a_plan_for_a_scheme_that_is_the_best_already() -> None:
    plan = choose({"a": 10}, ["int8", "int5", "int8"], lambda r, s: float(s[3]) + 0.5,
                  {"a": {"int8": 0.1, "int5": 0.2}}, 9.0)  # fmt: skip
    assert plan == {"a": "int8"}
    assert choose({"a": 10}, ["int8", "int8"], lambda r, s: 8.5, {"a": {"int8": 0.1}}, 9.0) == plan


@pytest.mark.parametrize("form", [Form(4, 32, offset=8), Form(8, 32, shift="zero")])
def test_denormal_weights_become_zeros(form: Form) -> None:
    w = np.zeros((4, 32), np.float32)
    w[0, 3], w[1, :2], w[2] = 1e-40, (-3e-39, 2e-38), np.linspace(-1, 1, 32)
    w[3] = 65504
    made = dequantized(form, Search(form, float16)(w))
    assert not made[:2].any() and np.abs(made[2] - w[2]).max() < 0.1
    np.testing.assert_allclose(made[3], 65504, rtol=0.02)


def test_a_kept_file_with_nan_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    source = small(tmp_path / "m")
    first = load(source, quant="int4").logits([1, 2])
    (path,) = (tmp_path / "cache/quantised").iterdir()
    parts = {n: v.copy() for n, v in open_checkpoint_file(path).items()}
    parts["0.q.w.scales"][:] = np.nan
    save_file(path, parts)
    assert np.array_equal(load(source, quant="int4").logits([1, 2]), first)


def open_checkpoint_file(path: Path) -> dict[str, np.ndarray]:
    from weft.importers.safetensors import SafetensorsFile

    return dict(SafetensorsFile(path))


def test_layers_of_nothing_are_refused() -> None:
    def i4(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int32)

    f2 = np.ones((2, 16), np.float16)
    empty = {"qweight": i4(0, 16), "qzeros": i4(2, 2), "scales": f2, "g_idx": i4(0)}
    with pytest.raises(ModelError, match="nothing"):
        gptq(LayerTensors("here", empty), True)
    empty = {"qweight": i4(8, 0), "qzeros": i4(2, 0), "scales": f2[:, :0]}
    with pytest.raises(ModelError, match="nothing"):
        awq(LayerTensors("here", empty))
    blocks = {"weight": np.ones((8, 16), np.int8), "weight_scale": f2[:, :2],
              "weight_zero_point": np.ones((2, 2), np.int8)}  # fmt: skip
    with pytest.raises(ModelError, match="zero points"):
        compressed.eight_bits(LayerTensors("here", blocks), (4, 8), "weight_scale")
