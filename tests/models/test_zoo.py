"""Models without a family here, traced from transformers' code, against transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.presets import caps_of
from weft.core.errors import DeviceError, FileFormatError, ModelError, UsageError
from weft.host.confined import Limits
from weft.models.run import saved

pytest.importorskip("transformers")
import causal_zoo as kit
import torch
from rows import by_turns, few
from zoo_kit import here, loaded

from weft.models.zoo import ask, operators
from weft.models.zoo.decoders import traced_model
from weft.models.zoo.defaults import Numbers
from weft.models.zoo.eager import Eager
from weft.models.zoo.rows import mixed

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
DEFAULT = (
    "stablelm", "deepseek_v3", "opt", "roberta", "bart", "lfm2_moe", "kimi_linear", "falcon_mamba",
    "bloom", "gpt_neo", "recurrent_gemma",
)  # fmt: skip


@pytest.fixture(autouse=True)
def traced_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ask, "_asked", here)
    monkeypatch.setattr("weft.models.run.loader.DECODERS", {})
    yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    found: dict[str, tuple[Path, Any]] = {}

    def make(kind: str) -> tuple[Path, Any]:
        if kind not in found:
            folder = tmp_path_factory.mktemp("zoo") / kind
            found[kind] = folder, kit.written(kind, folder)
        return found[kind]

    return make


@pytest.mark.parametrize("kind", few(SAMPLE, *DEFAULT))
def test_equals_transformers(made: Any, kind: str) -> None:
    folder, reference = made(kind)
    model, ids = loaded(folder), kit.prompt(reference)
    wanted = kit.eager(reference, ids)
    np.testing.assert_allclose(model.logits(ids), wanted, atol=2e-5 * np.abs(wanted).max())
    assert list(model.generate(ids, kit.NEW).ids) == kit.greedy(reference, ids)


@pytest.mark.parametrize(
    "kind",
    few(["cohere2", "mixtral", "deepseek_v3", "opt", "lfm2_moe", "qwen3_next", "kimi_linear",
         "falcon_mamba", "bamba", "zamba", "bloom", "gpt_neo"],
        "deepseek_v3", "lfm2_moe", "falcon_mamba", "bamba", "bloom"),
)  # fmt: skip
def test_one_row_has_the_bits_of_many(made: Any, kind: str) -> None:
    """A prompt cut anywhere, and sequences side by side, give each row the same bits."""
    folder, reference = made(kind)
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
        few(["stablelm", "mixtral", "qwen3_next", "bloom"], "stablelm", "mixtral", "bloom"),
        [{"dtype": "bfloat16"}, {"quant": "int4"}, {"dtype": "float16"}, {"quant": "int8"}],
    ),
)
def test_other_numbers(made: Any, kind: str, options: dict[str, str]) -> None:
    """Weights of fewer bits change the logits by about as much as they lose."""
    folder, reference = made(kind)
    ids = kit.prompt(reference)
    got, wanted = loaded(folder, **options).logits(ids), kit.eager(reference, ids)
    lost = {"bfloat16": 0.01, "float16": 0.002, "int8": 0.02, "int4": 0.2}
    error = np.median(np.abs(got - wanted)) / np.abs(wanted).max()
    assert 0 < error < lost[next(iter(options.values()))]


@pytest.mark.parametrize(
    ("kind", "device"),
    by_turns(["mixtral", "deepseek_v3", "kimi_linear", "bamba", "bloom"], ["vulkan", "oracle"]),
)
def test_other_devices(made: Any, device: str, kind: str) -> None:
    try:
        if device != "oracle":
            registry.get(device)
    except DeviceError as error:
        pytest.skip(str(error))
    folder, reference = made(kind)
    ids = kit.prompt(reference)
    wanted = kit.eager(reference, ids)
    np.testing.assert_allclose(loaded(folder, device=device).logits(ids), wanted, atol=1e-4)


@pytest.mark.parametrize(
    "kind", few(["cohere2", "qwen3_next", "falcon_mamba"], "cohere2", "falcon_mamba")
)
def test_a_compiled_file_has_the_same_bits(made: Any, tmp_path: Path, kind: str) -> None:
    folder, reference = made(kind)
    model, ids = loaded(folder), kit.prompt(reference)
    saved.save(model, tmp_path / "m.weft", "cpu", caps_of("cpu"), {}, False)
    again = weft.load(tmp_path / "m.weft", device="cpu")
    np.testing.assert_array_equal(again.logits(ids), model.logits(ids))
    assert again.generate(ids, 8).ids == model.generate(ids, 8).ids
    assert again.generate(ids[:9], 8).ids == model.generate(ids[:9], 8).ids  # resumes, or cannot


def test_adapters_attach_by_name(made: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder, _ = made("stablelm")
    base = kit.MODEL_FOR_CAUSAL_LM_MAPPING[type(kit.config_of("stablelm"))].from_pretrained(folder)
    wanted = peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(base, wanted).eval()
    adapted.save_pretrained(tmp_path / "lora")
    model, ids = loaded(folder, adapters={"one": tmp_path / "lora"}), kit.prompt(base)
    got = model.generate(ids, kit.NEW, adapter="one").ids
    assert list(got) == kit.greedy(adapted, ids)
    assert list(model.generate(ids, kit.NEW).ids) != list(got)


# -- what is refused ------------------------------------------------------------------------------

REFUSED = {
    "git": "adds a bias of its own to the scores",
    "xlnet": "no attention that the engine can keep a cache for",
    "minimax": "tells tokens apart by their place",
    "electra": "later tokens too",  # as an encoder
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_the_engine_would_get_wrong(tmp_path: Path, kind: str) -> None:
    more = {"is_decoder": False} if kind == "electra" else {}
    kit.written(kind, tmp_path, **more)
    with pytest.raises(
        ModelError, match=rf"architecture {kind} is not supported: .*{REFUSED[kind]}"
    ):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    few([("qwen3_next", "causal_conv1d_fn"), ("qwen3_next", "torch_chunk_gated_delta_rule"),
         ("bamba", "mamba2_chunk_scan"), ("falcon_mamba", "mamba_selective_scan"),
         ("rwkv", "rwkv_linear_attention")],
        ("falcon_mamba", "mamba_selective_scan"), ("rwkv", "rwkv_linear_attention")),
)  # fmt: skip
def test_functions_that_are_not_what_their_name_says(
    made: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    folder, _ = made(kind)
    home = sys.modules[f"transformers.models.{kind}.modeling_{kind}"]
    original = getattr(home, name)

    def other(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return (found[0] * 1.01, found[1]) if isinstance(found, tuple) else found * 1.01

    monkeypatch.setattr(home, name, other)
    with pytest.raises(ModelError, match=f"its {name} computes something else"):
        form_of(folder)


@pytest.mark.parametrize(
    ("kind", "name", "method"),
    few(
        [("recurrent_gemma", "RecurrentGemmaRglru", "_rnn_scan"), ("jetmoe", "JetMoeMoA", "map"),
         ("xmod", "XmodOutput", "lang_adapter")],
        ("jetmoe", "JetMoeMoA", "map"),
    ),
)  # fmt: skip
def test_methods_that_are_not_what_their_name_says(
    made: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, method: str
) -> None:
    folder, _ = made(kind)
    cls = getattr(sys.modules[f"transformers.models.{kind}.modeling_{kind}"], name)
    original = getattr(cls, method)

    def other(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return (found[0] * 1.01, *found[1:]) if isinstance(found, tuple) else found * 1.01

    monkeypatch.setattr(cls, method, other)
    with pytest.raises(ModelError, match=f"its {name} computes something else"):
        form_of(folder)


def form_of(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    from weft.importers.safetensors import open_checkpoint

    checkpoint = open_checkpoint(folder)
    names = {name: list(checkpoint.info(name).shape) for name in checkpoint}
    found: dict[str, Any] = here("here", "x", {"config": config, "names": names})["traced"]
    return found


MIXES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "aten.cumsum.default": ([1], {}),
    "aten.flip.default": ([[1]], {}),
    "aten.roll.default": ([[1], [1]], {}),
    "aten.mean.dim": ([[1], True], {}),
    "aten.softmax.int": ([1], {}),
    "aten.select.int": ([1, 0], {}),
    "aten.sort.default": ([1], {}),
    "aten.slice.Tensor": ([1, 1], {}),
    "aten.constant_pad_nd.default": ([[0, 0, 1, -1]], {}),
    "aten.amax.default": ([[0], True], {}),
}


@pytest.mark.parametrize("target", MIXES)
def test_operators_that_join_tokens_are_found(made: Any, target: str) -> None:
    """After the same model, one operator along the tokens, in either layout of rows."""
    form = form_of(made("stablelm")[0])
    assert mixed(traced_model(form, "here").config) == ""
    args, kwargs = MIXES[target]
    out: Any = ["bad", "other"] if target == "aten.sort.default" else "bad"
    form["calls"].append([target, [form["result"], *args], kwargs, out, "here"])
    form["calls"].append(
        ["aten.add.Tensor", [form["result"], {"ref": "bad"}], {}, "last", "here"]
        if target not in ("aten.slice.Tensor", "aten.select.int")
        else ["aten.mul.Tensor", [{"ref": "bad"}, 1.0], {}, "last", "here"]
    )
    form["result"] = {"ref": "last"}
    assert mixed(traced_model(form, "here").config)


def test_positions_of_the_models_own_are_found(made: Any) -> None:
    form = form_of(made("stablelm")[0])
    size = ["aten.sym_size.int", [form["result"], 1], {}, "n", ""]
    row = ["aten.arange.default", [{"ref": "n"}], {"dtype": {"dtype": "float32"}}, "row", ""]
    column = ["aten.view.default", [{"ref": "row"}, [1, -1, 1]], {}, "column", ""]
    form["calls"] += [size, row, column]
    form["calls"].append(["aten.add.Tensor", [form["result"], {"ref": "column"}], {}, "last", ""])
    form["result"] = {"ref": "last"}
    assert "place in the step" in mixed(traced_model(form, "here").config)


MASKS: dict[str, tuple[Any, int | None, tuple[Any, ...] | None]] = {
    "causal": (lambda b, h, q, k: k <= q, None, (0, 0, True)),
    "window": (lambda b, h, q, k: (k <= q) & (k > q - 7), 7, (7, 0, True)),
    "chunk": (lambda b, h, q, k: (k <= q) & (k // 7 == q // 7), 7, (0, 7, True)),
    "whole": (lambda b, h, q, k: k >= 0, None, (0, 0, False)),
    "a far window of its own": (lambda b, h, q, k: (k <= q) & (k > q - 70_000), None, None),
    "a prefix": (lambda b, h, q, k: (k <= q) | (k < 3), None, None),
    "other heads": (lambda b, h, q, k: (k <= q) & ((h == 0) | (k > 3)), None, None),
    "a wider window": (lambda b, h, q, k: (k <= q) & (k > q - 8), 7, None),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_known_by_what_they_show(name: str) -> None:
    function, size, wanted = MASKS[name]
    found = operators.mask(mask_function=function, local_size=size)
    assert found.known == (wanted is not None)
    assert not wanted or (found.window, found.chunk, found.causal) == wanted


def biased(bias: Any, length: int = 40) -> list[Any]:
    """Returns the kinds of attention in softmax(q k^T * 0.3 + bias) v."""
    q, k, v = (torch.empty((1, 2, length, 8), device="meta") for _ in range(3))
    run, ids = Eager(), torch.arange(length)[None]
    with run.probe(), run.over(ids, ids), Numbers(notes=False):
        scores = torch.matmul(q, k.transpose(-1, -2)) * 0.3
        torch.matmul(torch.softmax(bias(scores), -1), v)
    return [(kind.heads, kind.kv_heads, kind.scale, kind.window, kind.slopes)
            for kind in run.kinds]  # fmt: skip


AT = torch.arange(40)
AWAY = AT[:, None] - AT
CAUSAL = torch.where(AWAY >= 0, 0.0, -1e30)
LEARNED = torch.empty((2, 40, 40), device="meta")
SLOPES = torch.tensor([0.5, 0.25])[:, None, None]
BIASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "causal": (lambda s: s + CAUSAL, (0, ())),
    "window": (lambda s: (s + CAUSAL).masked_fill(AWAY >= 7, -1e9), (7, ())),
    "where": (lambda s: torch.where(AWAY >= 0, s, torch.tensor(-1e9)), (0, ())),
    "multiplied": (lambda s: s * (AWAY >= 0).float() + -1e4 * (AWAY < 0), (0, ())),
    "alibi": (lambda s: s - SLOPES * AWAY + CAUSAL, (0, (0.5, 0.25))),
    "alibi of keys": (lambda s: SLOPES * AT + s + CAUSAL, (0, (0.5, 0.25))),
    "whole": (lambda s: s + 0.0, "neither causal"),
    "a prefix": (lambda s: s + torch.where((AWAY >= 0) | (AT < 3), 0.0, -1e30), "neither causal"),
    "a window of one head": (lambda s: s + CAUSAL + torch.where(
        AWAY > 6, SLOPES * 4 * -1e9 + 1e9, 0.0), "neither causal"),
    "roots": (lambda s: s - AWAY.clamp(min=0) ** 0.5 + CAUSAL, "does not fall"),
    "queries": (lambda s: s * AT[:, None].float().clamp(max=1) + CAUSAL, "neither causal"),
    "lost": (lambda s: s * (AWAY % 2).float() + CAUSAL, "neither causal"),
    "half": (lambda s: s * torch.where(AWAY > 3, 0.5, 1.0) + CAUSAL, "numbers of its own"),
    "a soft fill": (lambda s: (s + CAUSAL).masked_fill(AWAY > 3, -1.0), "numbers of its own"),
    "a cap": (lambda s: (s / 5.0).tanh() * 5.0 + CAUSAL, "does tanh"),
    "weights": (lambda s: s + LEARNED + CAUSAL, "a bias of its own"),
    "turned": (lambda s: CAUSAL - s, "not known here|turns scores around"),
}  # fmt: skip


@pytest.mark.parametrize("name", BIASES)
def test_attention_that_is_written_out_is_known_by_numbers(name: str) -> None:
    bias, wanted = BIASES[name]
    if isinstance(wanted, str):
        with pytest.raises(operators.Refused, match=wanted):
            biased(bias)
    else:
        found = biased(bias)
        assert len(found) == 1
        assert found[0][:4] == (2, 2, 0.3, wanted[0])
        assert found[0][4] == pytest.approx(wanted[1])


def test_numbers_that_weights_changed_are_none() -> None:
    mask, weight = torch.zeros(4, 4), torch.empty((4,), device="meta")
    with Numbers() as mode:
        mask[1:].copy_(weight)
        assert (mask + 1).is_meta
        assert not (torch.zeros(4, 4) + 1).is_meta
    assert len(mode.met) == 1


def test_masks_may_be_large_tables(tmp_path: Path) -> None:
    reference = kit.written("gpt_neo", tmp_path, max_position_embeddings=2048, window_size=100)
    ids = kit.prompt(reference, 130)
    wanted = kit.eager(reference, ids)
    got = loaded(tmp_path, context=256).logits(ids)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * np.abs(wanted).max())


def test_windows_longer_than_the_text_that_shows_them(tmp_path: Path) -> None:
    kit.written("gpt_neo", tmp_path, max_position_embeddings=4096, window_size=1500)
    with pytest.raises(ModelError, match="its window_size of 1500 is too long"):
        loaded(tmp_path)


def test_a_cache_that_would_lose_positions_is_refused(made: Any) -> None:
    folder, reference = made("bloom")
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


def test_weights_that_do_not_fit(made: Any, tmp_path: Path) -> None:
    folder, _ = made("stablelm")
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


@pytest.mark.parametrize("kind", ["cohere2", "mixtral", "opt"])
def test_traced_models_show_attention_and_linear_layers(made: Any, kind: str) -> None:
    folder, reference = made(kind)
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
def test_gradients_are_pytorchs(made: Any, kind: str) -> None:
    folder, reference = made(kind)
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


def test_recurrences_have_no_derivative(made: Any) -> None:
    folder, reference = made("bamba")
    with pytest.raises(UsageError, match="a recurrence, which have no derivative"):
        model, ids = loaded(folder, device="oracle"), kit.prompt(reference)
        model.gradients(ids, lambda logits: logits.sum(), "model.layers.0.mamba.in_proj.out")


def test_machines_are_refused(made: Any) -> None:
    from weft.models.arch.shares import check_columns
    from weft.models.arch.stages import check_parts

    config = loaded(made("stablelm")[0]).config
    for check in (check_parts, check_columns):
        with pytest.raises(UsageError, match="traced from another library's code"):
            check(config, 2, "here")


HOSTILE: list[Callable[[dict[str, Any]], Any]] = [
    lambda form: form.pop("calls"),
    lambda form: form["calls"].append(["aten.add.Tensor"]),
    lambda form: form["calls"].append(["aten.add.Tensor", [{"ref": "gone"}, 1], {}, "x", ""]),
    lambda form: form["calls"].append(form["calls"][0]),
    lambda form: form.update(result={"ref": "gone"}),
    lambda form: form.update(result=None),
    lambda form: form["attends"].append({"heads": 1}),
    lambda form: form["constants"].update(x={"dtype": "float32", "shape": [9], "data": "AA=="}),
    lambda form: form["constants"].update(x={"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}),
    lambda form: form.update(inputs=[]),
]


@pytest.mark.parametrize("change", HOSTILE)
def test_forms_that_do_not_hold(made: Any, change: Callable[[dict[str, Any]], Any]) -> None:
    form = form_of(made("stablelm")[0])
    change(form)
    with pytest.raises(FileFormatError):
        traced_model(form, "here")


# -- the process ----------------------------------------------------------------------------------

SECOND = """
import sys
import weft
model = weft.load(sys.argv[1], device="cpu", context=64)
print(model.generate([5, 6, 7], 4).ids, sorted({"torch", "transformers"} & set(sys.modules)))
"""


def test_a_process_of_its_own_traces_once(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first load traces in a child; a later process finds the graph on disk. Neither imports
    PyTorch."""
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, _ = made("gptj")  # no family here
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
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, int]
) -> None:
    folder = changed(made("gptj")[0], tmp_path / "m", **fields)
    monkeypatch.undo()
    monkeypatch.setattr(ask, "LIMITS", Limits(6, 4 << 30, 1 << 20))
    with pytest.raises(ModelError, match=r"ran for more than|is not supported|took more than"):
        loaded(folder)


def test_without_transformers(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_version", lambda name: "")
    with pytest.raises(ModelError, match=r"not supported by weft itself.*\[zoo\]"):
        loaded(made("stablelm")[0])
