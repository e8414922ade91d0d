"""What of a traced model's code is refused, and how its attention is known."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import FileFormatError, ModelError

pytest.importorskip("transformers")
import causal_zoo as kit
import torch
from rows import few
from zoo_kit import here, loaded

from weft.importers.safetensors import open_checkpoint
from weft.models.zoo import operators
from weft.models.zoo.decoders import traced_model
from weft.models.zoo.defaults import Numbers
from weft.models.zoo.eager import Eager
from weft.models.zoo.rows import mixed

pytestmark = pytest.mark.usefixtures("traced_types")


def form_of(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    checkpoint = open_checkpoint(folder)
    names = {name: list(checkpoint.info(name).shape) for name in checkpoint}
    found: dict[str, Any] = here("here", "x", {"config": config, "names": names})["traced"]
    return found


@pytest.fixture(scope="module")
def traced_once(causal: Any) -> str:
    return json.dumps(form_of(causal("stablelm")[0]))


@pytest.fixture
def form(traced_once: str) -> Any:
    """StableLM's graph, for a test to change."""
    return json.loads(traced_once)


REFUSED = {
    "git": "adds a bias of its own to the scores",
    "xlnet": "no attention that the engine can keep a cache for",
    "minimax": "tells tokens apart by their place",
    "electra": "later tokens too",  # as an encoder
}


# The others are refused in test_zoo_recomputed.py too.
@pytest.mark.parametrize("kind", few(REFUSED, "minimax"))
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
    causal: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    folder, _ = causal(kind)
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
    causal: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, method: str
) -> None:
    folder, _ = causal(kind)
    cls = getattr(sys.modules[f"transformers.models.{kind}.modeling_{kind}"], name)
    original = getattr(cls, method)

    def other(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return (found[0] * 1.01, *found[1:]) if isinstance(found, tuple) else found * 1.01

    monkeypatch.setattr(cls, method, other)
    with pytest.raises(ModelError, match=f"its {name} computes something else"):
        form_of(folder)


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
def test_operators_that_join_tokens_are_found(form: Any, target: str) -> None:
    """After the same model, one operator along the tokens, in either layout of rows."""
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


def test_positions_of_the_models_own_are_found(form: Any) -> None:
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


def test_windows_longer_than_the_text_that_shows_them(tmp_path: Path) -> None:
    kit.written("gpt_neo", tmp_path, max_position_embeddings=4096, window_size=1500)
    with pytest.raises(ModelError, match="its window_size of 1500 is too long"):
        loaded(tmp_path)


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
def test_forms_that_do_not_hold(form: Any, change: Callable[[dict[str, Any]], Any]) -> None:
    change(form)
    with pytest.raises(FileFormatError):
        traced_model(form, "here")
