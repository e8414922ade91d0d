"""weft quantize: calibration, plans and the folders it writes, on the model in the box."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from model_zoo import write_model

from weft.cli.quantize import quantize as command
from weft.core.dtypes import float16
from weft.core.errors import ModelError, UsageError
from weft.core.packed import dequantized
from weft.hub.box import box_folder
from weft.importers.safetensors import open_checkpoint
from weft.models import load
from weft.models.arch.weights import held
from weft.models.weights.random_weights import random_folder
from weft.quantize import job
from weft.quantize.calibrate import Calibration
from weft.quantize.compressed import packed_from
from weft.quantize.job import QuantizeOptions, quantize
from weft.quantize.kept import quantised
from weft.quantize.plan import choose
from weft.quantize.schemes import Scheme
from weft.quantize.search import Search
from weft.training.model import folder_weights

pytestmark = pytest.mark.usefixtures("few_candidates")


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    tokenizer = load(box_folder(), device="cpu").tokenizer
    assert tokenizer is not None
    tokens = tokenizer.encode(Path(textwrap.__file__).read_text())
    return np.asarray(tokens[: 12 * 32], np.int32).reshape(12, 32)


def test_moments_are_those_of_the_inputs(ids: np.ndarray) -> None:
    """Against the same layer with an identity matrix for a projection: what goes in comes out."""
    config, weights = folder_weights(box_folder())
    calibration = Calibration(config, weights, ids)
    layer = {r: v for r, v in weights.items() if r.startswith("0.")}
    stages = calibration.stages(0, layer)
    assert [sorted(s) for s in stages] == [["0.k", "0.q", "0.v"], ["0.o"], ["0.gate", "0.up"],
                                           ["0.down"]]  # fmt: skip
    x = calibration.stream[0].astype(np.float64)
    norm = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + config.norm_eps)
    norm = norm * (np.asarray(layer["0.attn_norm.w"], np.float64) + config.norm_offset)
    moments = calibration.moments(0, layer, "0.q")
    np.testing.assert_allclose(moments, norm.T @ norm, rtol=1e-3, atol=1e-2)
    squares = calibration.advance(0, layer)
    np.testing.assert_allclose(squares["0.v"], (norm * norm).mean(axis=0), rtol=1e-3, atol=1e-6)
    calibration.advance(1, {r: v for r, v in weights.items() if r.startswith("1.")})
    assert len(calibration.programs) == 2  # layers that are alike share theirs


def read_back(folder: Path, scheme: Scheme) -> dict[str, np.ndarray]:
    checkpoint, out = open_checkpoint(folder), {}
    for name in checkpoint:
        base = name.removesuffix(".weight_packed")
        if base != name:
            depth = int(checkpoint[f"{base}.weight_shape"][1])
            form = scheme.form(depth)
            assert form is not None
            out[f"{base}.weight"] = dequantized(*packed_from(checkpoint, base, form))
    return out


def test_a_folder(tmp_path: Path, ids: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written whole; and the same bytes after an interruption."""
    options = QuantizeOptions("int4-zero", method="gptq")
    found = quantize(box_folder(), tmp_path / "whole", options, ids)
    assert 4.62 < found.bits < 4.63 and found.after < found.before / 2
    source, made = open_checkpoint(box_folder()), read_back(tmp_path / "whole", Scheme("int4-zero"))
    assert len(made) == 7 * 6
    for name, value in made.items():
        x = source[name].astype(np.float32)
        assert np.linalg.norm(value - x) < 0.125 * np.linalg.norm(x)

    def broken(what: str, done: int, of: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(box_folder(), tmp_path / "again", options, ids, report=broken)
    assert not (tmp_path / "again").exists()
    calls: list[int] = []
    real = job._Job.quantised
    monkeypatch.setattr(job._Job, "quantised", lambda *a: (calls.append(a[1]), real(*a))[1])
    quantize(box_folder(), tmp_path / "again", options, ids)
    assert calls == [4, 5, 6]
    assert not list(tmp_path.glob(".*"))
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [str(box_folder()), "-o", str(out), "--scheme", "int8", "--method", "search"]
    found = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    said = json.loads(found.stdout)
    assert said["bits_per_weight"] == pytest.approx(8.5, abs=0.01)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["format"] == "pack-quantized" and config["config_groups"]["group_0"]["weights"][
        "group_size"
    ] == 32  # fmt: skip
    with pytest.raises(UsageError, match="already"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    short = tmp_path / "short.txt"
    short.write_text("def f(): pass")
    with pytest.raises(UsageError, match="calibration wants"):
        CliRunner().invoke(
            command, [str(box_folder()), "-o", str(tmp_path / "x"), "--text", str(short)],
            catch_exceptions=False,
        )  # fmt: skip
    assert not (tmp_path / "x").exists()


def test_a_mixed_plan(tmp_path: Path, ids: np.ndarray) -> None:
    options = QuantizeOptions("int4", bits=5.5, method="search")
    found = quantize(box_folder(), tmp_path / "out", options, ids)
    assert 5.2 < found.bits <= 5.5
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    groups = {g["weights"]["num_bits"]: g["targets"] for g in config["config_groups"].values()}
    assert sorted(groups) == [4, 8] and sum(map(len, groups.values())) == 42
    checkpoint = open_checkpoint(tmp_path / "out")
    for bits, names in groups.items():
        for name in names:
            n, k = checkpoint[f"{name}.weight_shape"]
            assert checkpoint[f"{name}.weight_packed"].shape == (n, k * bits // 32)
    with pytest.raises(UsageError, match="below that"):
        quantize(box_folder(), tmp_path / "low", QuantizeOptions("int4", bits=4.2, method="search"))


def test_a_plan_spends_bits_where_they_help_most() -> None:
    losses = {"a": {"x": 0.1, "y": 0.0}, "b": {"x": 0.3, "y": 0.1}, "c": {"x": 0.9, "y": 0.1}}
    bits = {"x": 4.0, "y": 8.0}
    plan = choose({"a": 10, "b": 10, "c": 20}, "xy", lambda r, s: bits[s], losses, 6.0)
    assert plan == {"a": "x", "b": "x", "c": "y"}
    plan = choose({"a": 10, "b": 10, "c": 20}, "xy", lambda r, s: bits[s], losses, 5.9)
    assert plan == {"a": "x", "b": "y", "c": "x"}


def test_quantised_on_the_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    prompt = [5, 99, 1023, 7]
    config, weights = folder_weights(box_folder())
    model = load(box_folder(), quant="int4")
    assert "packed" in model.precision and model.config.forms
    first = model.logits(prompt)
    form = Scheme("int4").form(config.hidden)
    assert form is not None
    wanted = Search(form, float16)(weights["0.q.w"])
    assert all(np.array_equal(model.weights[f"0.q.w.{p}"], v) for p, v in wanted.items())
    (kept,) = (tmp_path / "cache/quantised").iterdir()
    with monkeypatch.context() as m:  # what is kept is not searched for again
        m.setattr(Search, "__call__", None)
        assert np.array_equal(load(box_folder(), quant="int4").logits(prompt), first)
    kept.write_bytes(kept.read_bytes()[:-100])  # a damaged file is made anew
    assert np.array_equal(load(box_folder(), quant="int4").logits(prompt), first)
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert np.array_equal(load(box_folder(), quant="int4").logits(prompt), first)
    with pytest.raises(UsageError, match="no scheme"):
        load(box_folder(), quant="int3")
    with pytest.raises(UsageError, match="dtype is given"):
        load(box_folder(), quant="int4", dtype="float32")


@pytest.mark.slow
def test_experts_in_a_written_folder(tmp_path: Path) -> None:
    """A layer per expert, packed again as one; the same bits as widened, whether rows come at once
    or one by one, with integers too."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "moe_intermediate_size": 32}
    write_model("qwen3_moe", tmp_path / "in", changed=sizes)
    quantize(tmp_path / "in", tmp_path / "out", QuantizeOptions("int4", method="search"))
    names = set(open_checkpoint(tmp_path / "out"))
    assert "model.layers.0.mlp.experts.6.down_proj.weight_packed" in names
    assert "model.layers.0.mlp.gate.weight" in names
    ids = np.random.default_rng(0).integers(0, 200, 24).tolist()
    wide = load(tmp_path / "out", device="cpu", context=32, dtype="float32").logits(ids)
    for act in ("float32", "int8"):
        model = load(tmp_path / "out", device="cpu", context=32, act_dtype=act)
        forms = dict(model.config.forms)
        assert {"0.gate_exps.w", "2.down_exps.w"} <= forms.keys() and "0.router.w" not in forms
        scores = model.logits(ids)
        if act == "float32":
            np.testing.assert_array_equal(scores, wide)
        runner = model.runner(1)
        runner.prefill(0, ids[:22])
        for t in (22, 23):
            np.testing.assert_array_equal(runner.rows([ids[t]], [0], [t])[0], scores[t])


@pytest.mark.parametrize("scheme", ["int4-zero", "int8-channel", "fp8"])
def test_a_written_folder_stays_packed(scheme: str, tmp_path: Path) -> None:
    """What weft writes it reads as packed weights, the very codes and scales."""
    quantize(box_folder(), tmp_path / "out", QuantizeOptions(scheme, method="search"))
    model = load(tmp_path / "out", device="oracle")
    form = Scheme(scheme).form(192)
    assert form is not None
    weight = folder_weights(box_folder())[1]["2.o.w"]
    wanted = dequantized(form, Search(form, Scheme(scheme).scale_dtype)(weight))
    found = dict(model.config.forms)["2.o.w"]
    parts = {p: np.asarray(model.weights[f"2.o.w.{p}"]) for p in found.parts}
    assert np.array_equal(dequantized(found, parts), wanted)


def test_what_no_scheme_packs_on_the_way_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router stays floats; a model of nothing else is refused."""
    monkeypatch.setenv("WEFT_CACHE", "off")
    monkeypatch.setenv("WEFT_DEVICE", "abacus")  # the search takes none but the CPU
    moe = {
        "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_experts": 4, "head_dim": 16,
        "num_key_value_heads": 2,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "tie_word_embeddings": True,
    }  # fmt: skip
    model = load(random_folder(tmp_path, moe), device="oracle", quant="int8")
    experts = ("gate_exps", "up_exps", "down_exps")
    packed = {"embed", *(f"0.{r}.w" for r in (*"qkvo", *experts))}
    assert {role for role, _ in model.config.forms} == packed
    config, _ = folder_weights(box_folder())
    with pytest.raises(ModelError, match="no matrix"):
        quantised(tmp_path, config, {"0.q.w": held(np.ones((4, 7), np.float32))}, "int8")


@pytest.mark.parametrize("name", ["mamba", "falcon_h1"])
def test_folders_with_state_spaces(tmp_path: Path, name: str) -> None:
    """Weights that stay floats in a packed folder are turned as in any other."""
    write_model(name, tmp_path / "plain")
    quantize(tmp_path / "plain", tmp_path / "packed", QuantizeOptions("int8", method="search"))
    ids = np.random.default_rng(0).integers(0, 200, 20).tolist()
    want, got = (load(tmp_path / x, device="oracle").logits(ids) for x in ("plain", "packed"))
    assert np.abs(got - want).mean() < 0.02 * np.abs(want).mean()
