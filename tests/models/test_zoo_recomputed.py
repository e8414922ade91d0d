"""Traced models without caches, which compute the whole text again for each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.backends.presets import caps_of
from weft.core.errors import LimitError, ModelError, UsageError
from weft.models.run import saved

pytest.importorskip("transformers")
import causal_zoo as kit
from rows import few
from zoo_kit import loaded

# Positions in queries and keys of an old kind, biases that models make themselves, sparse choices
# of keys, positions as biases, lightning attention, experts that padding moves, hashed attention.
TYPES = (
    "roformer", "git", "doge", "glm_moe_dsa", "hy_v4", "inkling_text", "minimax", "zaya",
    "reformer", "mixtral", "inkling2_text",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("traced_types")


@pytest.mark.parametrize("kind", few(TYPES, "roformer", "doge"))
def test_equals_transformers(causal: Any, kind: str) -> None:
    folder, reference = causal(kind)
    model, ids = loaded(folder, cache="none"), kit.prompt(reference)
    wanted = kit.eager(reference, ids)
    np.testing.assert_allclose(model.logits(ids), wanted, atol=2e-5 * np.abs(wanted).max())
    assert list(model.generate(ids, kit.NEW).ids) == kit.greedy(reference, ids)


def test_texts_of_several_lengths(causal: Any) -> None:
    """Texts are padded to 64 tokens, then to 128 at most, which is the context here."""
    folder, reference = causal("roformer")
    model, ids = loaded(folder, cache="none", context=100), kit.prompt(reference, 90)
    wanted = kit.eager(reference, ids)
    np.testing.assert_allclose(model.logits(ids), wanted, atol=2e-5 * np.abs(wanted).max())
    assert list(model.generate(ids[:60], 12).ids) == kit.greedy(reference, ids[:60], 12)
    with pytest.raises(LimitError, match="the context holds 100"):
        model.logits(ids * 2)


@pytest.mark.parametrize("kind", few(["roformer", "zaya", "minimax"], "roformer"))
def test_one_row_has_the_bits_of_many(causal: Any, kind: str) -> None:
    """A prompt cut anywhere, and sequences side by side, give each row the same bits."""
    folder, reference = causal(kind)
    model, ids = loaded(folder, cache="none", max_batch=4, context=128), kit.prompt(reference, 70)
    whole = model.logits(ids)
    runner = model.new_runner(3, 12)
    for cut in (1, 33, 66):
        np.testing.assert_array_equal(runner.prefill(0, ids[:cut]), whole[cut - 1])
        for at in range(cut, cut + 4):
            row = runner.rows([ids[at]], [0], [at])[0]
            np.testing.assert_array_equal(row, whole[at])
    runner.prefill(1, ids[:5])
    runner.prefill(2, ids[:63])
    rows = runner.rows(ids[5:6] + ids[63:66], [1, 2, 2, 2], [5, 63, 64, 65])
    np.testing.assert_array_equal(rows, whole[[5, 63, 64, 65]])
    alone = [model.generate(ids[:n], 8).ids for n in (3, 9, 62)]
    assert [g.ids for g in model.generate([ids[:n] for n in (3, 9, 62)], 8)] == alone
    held = runner.read_pages([int(runner.tables[2, 0])])
    runner.write_pages([int(runner.tables[1, 0])], held)  # the ids of one text for another's
    np.testing.assert_array_equal(runner.rows([ids[60]], [1], [60])[0], whole[60])


@pytest.mark.parametrize("device", ["oracle", "vulkan"])
def test_other_devices(causal: Any, device: str) -> None:
    from weft.backends import registry
    from weft.core.errors import DeviceError

    try:
        if device != "oracle":
            registry.get(device)
    except DeviceError as error:
        pytest.skip(str(error))
    folder, reference = causal("roformer")
    ids = kit.prompt(reference)
    got = loaded(folder, cache="none", device=device).logits(ids)
    np.testing.assert_allclose(got, kit.eager(reference, ids), atol=1e-4)


@pytest.mark.parametrize("options", [{"quant": "int8"}, {"dtype": "bfloat16"}])
def test_other_numbers(causal: Any, options: dict[str, str]) -> None:
    folder, reference = causal("roformer")
    ids = kit.prompt(reference)
    got, wanted = loaded(folder, cache="none", **options).logits(ids), kit.eager(reference, ids)
    error = np.median(np.abs(got - wanted)) / np.abs(wanted).max()
    assert 0 < error < 0.02


def test_the_cost_is_said(causal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.core import notices

    notices.say.cache_clear()
    for _ in range(2):
        loaded(causal("roformer")[0], cache="none")
    said = capsys.readouterr().err
    assert said.count("each token costs a pass over the whole text before it") == 1


def test_refusals_name_the_option(causal: Any) -> None:
    with pytest.raises(ModelError, match=r'bias of its own.*; cache="none" recomputes the whole'):
        loaded(causal("git")[0])


@pytest.mark.parametrize("kind", ["xlnet", "electra"])
def test_tokens_that_see_later_ones(tmp_path: Path, kind: str) -> None:
    kit.written(kind, tmp_path, **({"is_decoder": False} if kind == "electra" else {}))
    with pytest.raises(ModelError, match="tokens see later ones"):
        loaded(tmp_path, cache="none").logits([5, 6, 7])


def test_code_that_changes_with_the_length_limits_the_context(causal: Any) -> None:
    """Reformer attends in another way to texts beyond its chunks of 64 tokens."""
    with pytest.raises(LimitError, match="context=128 is more than the model's 64 positions"):
        loaded(causal("reformer")[0], cache="none", context=128)


def test_models_with_a_family_keep_their_cache(
    causal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.models.arch.families import DECODERS

    monkeypatch.undo()
    assert "stablelm" in DECODERS
    with pytest.raises(UsageError, match='cache="none" is for models traced from transformers'):
        loaded(causal("stablelm")[0], cache="none")


def test_what_needs_a_cache_says_so(causal: Any, tmp_path: Path) -> None:
    model = loaded(causal("roformer")[0], cache="none")
    with pytest.raises(UsageError, match='not of cache="none"'):
        saved.save(model, tmp_path / "m.weft", "cpu", caps_of("cpu"), {}, False)
    with pytest.raises(UsageError, match="nothing inside can be read"):
        model.places()
