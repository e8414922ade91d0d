"""Rows of several conversations: each is computed as if it stood alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from model_zoo import DECODERS, FAMILIES, VOCAB, write_model
from rows import few

import weft
from weft.core.errors import ModelError, UsageError
from weft.training import TrainableDecoder
from weft.training.model import folder_weights
from weft.training.packing import PackedRowsFile, RowBatches, row_evaluation, write_rows

LENGTH = 24
SIZES = {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}
Batch = tuple[np.ndarray, np.ndarray]


def talks(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    """Conversations of these lengths, in which the model says every second token or so; the first
    one too, which nothing predicts."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, VOCAB, n).astype(np.int32) for n in lengths]
    return [np.where(rng.random(len(t)) < 0.4, ~t, t) for t in made]


def rows_of(made: list[np.ndarray], folder: Path) -> PackedRowsFile:
    write_rows(made, folder / "rows.npy")
    return PackedRowsFile(folder / "rows.npy", VOCAB, LENGTH + 1)


def told(
    model: TrainableDecoder, batch: Batch, device: Any = None
) -> tuple[float, dict[str, np.ndarray]]:
    """The sum of the losses of the tokens that count, and the gradients of that sum."""
    counted = int((batch[1] != -100).sum())

    def run(ids: Any, targets: Any) -> Any:
        loss = model.loss(ids, targets) * float(counted)
        loss.backward()
        return loss

    given = [weft.tensor(x.copy()) for x in batch]
    loss = (weft.compile(run, device) if device else run)(*given).item()
    found = {r: np.array(t.grad.numpy()) for r, t in model.named_parameters() if t.grad is not None}
    for _, t in model.named_parameters():
        t.grad = None
    return loss, found


ATOL = {"bfloat16": 1e-2, "float16": 2e-3}  # of gradients, which are added up in parts


def check(folder: Path, lengths: list[int], device: Any = None, **options: Any) -> None:
    atol = ATOL.get(options.get("compute", ""), 1e-4)
    config, weights = folder_weights(folder)
    packed = TrainableDecoder(config, weights, LENGTH, packed=True, **options)
    plain = TrainableDecoder(config, weights, LENGTH, **options)
    rows = rows_of(talks(lengths), folder)
    whole = [rows.row(range(len(lengths)), LENGTH + 1)]
    loss, found = told(packed, (np.stack([whole[0][0]]), np.stack([whole[0][1]])), device)
    parts = [told(plain, b, device) for b in row_evaluation(rows, 1, LENGTH, len(lengths))]
    want = sum(p[0] for p in parts)
    assert abs(loss - want) < 1e-5 * max(abs(want), 1), (loss, want)
    for role, value in found.items():
        total = sum(p[1][role] for p in parts if role in p[1])
        scale = max(np.abs(total).max(), 1e-2)
        np.testing.assert_allclose(value / scale, total / scale, atol=atol, err_msg=role)


@pytest.mark.parametrize("name", few(sorted({*DECODERS, *FAMILIES}), "gpt2", "llama2", "lfm2"))
def test_loss_and_gradients_are_those_of_each_alone(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path, changed=SIZES if name in FAMILIES else None)
    try:
        check(tmp_path, [7, 2, 9, 4])
    except ModelError as error:
        assert "cannot be trained" in str(error)
    except UsageError as error:
        assert "caps its attention scores" in str(error)


@pytest.mark.parametrize(
    "options",
    few(
        [{}, {"checkpointing": True}, {"compute": "bfloat16"}, {"compute": "float16"}],
        {"checkpointing": True},
    ),
    ids=str,
)
def test_compiled_and_in_other_dtypes(options: Any, tmp_path: Path) -> None:
    write_model("llama2", tmp_path)
    check(tmp_path, [7, 2, 9, 4], "cpu", **options)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_rows_mark_where_each_begins(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int
) -> None:
    made = [np.full(n, i + 1, np.int32) for i, n in enumerate(lengths)]  # all of it is said
    rows = rows_of(made, tmp_path_factory.mktemp("rows"))
    batches = RowBatches(rows, 1, LENGTH, seed, True)
    seen = []
    for number in range(batches.batches(1)):
        (ids,), (targets,) = batches.at(number)
        plain = np.where(ids < 0, ~ids, ids)
        begins = np.flatnonzero(np.diff(plain, prepend=plain[0]) * (plain > 0))
        assert begins.tolist() == np.flatnonzero(ids < 0).tolist()
        assert (targets[begins - 1] == -100).all() or not begins.size
        for n in dict.fromkeys(plain[plain > 0].tolist()):
            assert (targets[plain == n] == n).sum() == lengths[n - 1] - 1
            seen.append(n)
    assert sorted(seen) == list(range(1, len(lengths) + 1))


def test_capped_scores_are_refused(tmp_path: Path) -> None:
    write_model("gemma2", tmp_path, changed=SIZES if "gemma2" in FAMILIES else None)
    config, weights = folder_weights(tmp_path)
    with pytest.raises(UsageError, match=r"\[data\] pack: .*caps its attention scores"):
        TrainableDecoder(config, weights, LENGTH, packed=True)
