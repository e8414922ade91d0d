"""Updates that would leave something that is not finite: seen before they are kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import few
from train_kit import tiny

import weft
from weft import optim
from weft.core.errors import ModelError
from weft.importers.safetensors import SafetensorsFile
from weft.training import loop
from weft.training.model import folder_weights
from weft.training.report import read_log

WILD = {"lr": 10.0, "betas": [0.0, 0.0], "weight_decay": 10.0, "clip": 0.0, "schedule": "constant"}


def finite(folder: Path) -> bool:
    return all(
        np.isfinite(v).all()
        for path in folder.glob("*.safetensors")
        for v in SafetensorsFile(path).values()
    )


MORE: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"train": {"accumulate": 2}},
    "gpt2": {"model": {"family": "gpt2"}},
    "checkpointing": {"train": {"checkpointing": True}},
    "float16": {"train": {"precision": "float16"}},
    "bfloat16": {"train": {"precision": "bfloat16"}},
    "lora": {"lora": {"rank": 2}},
    "together": {"model": {"family": "gpt2"}, "train": {
        "accumulate": 2, "checkpointing": True, "precision": "bfloat16"}},
}  # fmt: skip


@pytest.mark.parametrize(
    "name,steps",
    few(itertools.product(MORE, (1, 2, 3, 40)), ("plain", 1), ("plain", 40),
        ("together", 2), ("lora", 3)),
)  # fmt: skip
def test_no_run_ends_well_with_weights_that_are_not_finite(
    name: str, steps: int, text: Path, base: Path, tmp_path: Path
) -> None:
    """Whatever a wild optimiser does, and at whichever step it ends: status and weights agree, and
    what was saved on the way is finite."""
    sections = {k: dict(v) for k, v in MORE[name].items()}
    sections.setdefault("train", {})["steps"] = steps
    sections["optimizer"] = dict(WILD)
    if name == "lora":
        sections["model"] = {"from": str(base)}
    run = tmp_path / "run"
    try:
        result = loop.train(tiny(text, run, **sections))
    except ModelError as error:
        assert "finite" in str(error) and "\n" not in str(error)
        assert not (run / "model").exists() and not (run / "adapter").exists()
    else:
        assert finite(result.folder)
        assert np.isfinite(weft.load(result.folder, device="cpu").logits([1, 2, 3])).all()
    assert all(finite(p) for p in run.glob("step-*"))


@pytest.mark.parametrize(
    "more,at",
    few(itertools.product(["plain", "accumulate", "float16"], [0, 1, 3]),
        ("plain", 3), ("float16", 1)),
)  # fmt: skip
def test_an_update_that_overflows_changes_nothing(
    at: int, more: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradient are finite, the new weights are not: weights, moments and count are what
    they were before that step."""
    before: dict[str, np.ndarray] = {}
    real = loop._Run._batch

    def batch(self: Any, number: int) -> Any:
        if number == at:
            now = self.model.arrays()
            none = now["embed"] * np.float32(0)  # all activations and most gradients are zero
            self.model.assign({"0.up.w": np.full_like(now["0.up.w"], 1e38), "embed": none})
            before.update(self.work.state())
            before.update({f"w.{k}": v for k, v in self.model.arrays().items()})
        return real(self, number)

    monkeypatch.setattr(loop._Run, "_batch", batch)
    run = tmp_path / "run"
    o = {"lr": 1.0, "weight_decay": 10.0, "schedule": "constant"}  # a weight w becomes -9 w
    with pytest.raises(ModelError, match=rf"step {at + 1}: .*holds the weights from before") as e:
        loop.train(tiny(text, run, optimizer=o, **MORE[more]))
    what = "weight 0.up.w after the update" if more != "float16" else "not finite is"
    assert what in str(e.value)
    saved = run / f"step-{at:06d}"
    opt = SafetensorsFile(saved / "optimizer.safetensors")
    for name in opt:
        if not name.startswith("scaler."):
            np.testing.assert_array_equal(opt[name], before[name])
    for role, value in folder_weights(saved)[1].items():
        np.testing.assert_array_equal(value, before[f"w.{role}"])
    assert read_log(run / "log.jsonl")[-1]["event"] == "not finite"


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_optimiser_says_what_a_step_would_leave(kind: Any, device: str | None) -> None:
    """Per parameter, eagerly and compiled, with state that overflows too; nothing is written."""
    more = {"momentum": 0.9} if kind is optim.SGD else {}
    good, bad, state = (weft.tensor(np.ones(5, np.float32), requires_grad=True) for _ in range(3))
    opt = kind([("good", good), ("bad", bad), ("state", state)], lr=10.0, **more)

    def look(scale: Any) -> Any:
        for t, by in ((good, 1.0), (bad, scale), (state, 1e38)):
            t.grad = None
            (t * by).sum().backward()
        found = opt.finite()
        opt.zero_grad()
        return found

    run = look if device is None else weft.compile(look, device=device)
    for scale in (np.inf, np.nan, -np.inf):
        found = run(weft.tensor(np.float32(scale)))
        assert found["good"].item() is True and found["bad"].item() is False
        # 1e38 * 10 overflows a weight of SGD's, 1e38 squared a moment of Adam's
        assert found["state"].item() is False
    assert run(weft.tensor(np.float32(3.0)))["bad"].item() is True
    assert opt.count.item() == 0 and np.array_equal(bad.numpy(), np.ones(5, np.float32))


def test_finite_weights_that_give_no_loss_are_no_result(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last update is the only one that no step after it looks at."""
    real = loop._Run._step

    def step(self: Any, number: int) -> None:
        real(self, number)
        if number == 3:
            now = self.model.arrays()
            self.model.assign({"norm.w": np.full_like(now["norm.w"], 3e38)})

    monkeypatch.setattr(loop._Run, "_step", step)
    for name, o in (("a", {"eval_every": 0}), ("b", {"eval_every": 4, "eval_batches": 1})):
        with pytest.raises(ModelError, match=r"step 4: the .*loss.* is .*step-000002 holds"):
            loop.train(tiny(text, tmp_path / name, output=o))
        assert sorted(p.name for p in (tmp_path / name).glob("[sm]*")) == ["step-000002"]


def test_a_model_that_is_not_finite_is_not_trained(text: Path, base: Path, tmp_path: Path) -> None:
    import shutil

    from weft.importers.safetensors import save_file

    for value in (np.nan, np.inf):
        other = tmp_path / str(value)
        shutil.copytree(base, other)
        tensors = {k: v.copy() for k, v in SafetensorsFile(other / "model.safetensors").items()}
        next(iter(tensors.values())).flat[7] = value
        save_file(other / "model.safetensors", tensors)
        with pytest.raises(ModelError, match=r"weight .* is not finite"):
            loop.train(tiny(text, tmp_path / "run", model={"from": str(other)}))
