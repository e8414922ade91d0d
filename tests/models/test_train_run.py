"""`train` from settings to a folder: resuming, faults, full disks, wrong settings."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import few
from train_kit import tiny

import weft
from weft.core.errors import FileFormatError, ModelError, StorageError, UsageError
from weft.importers.safetensors import SafetensorsFile
from weft.training import checkpoints, loop
from weft.training.report import Log, draw_curve, interruptible, read_log
from weft.training.settings import example, read_settings, settings_from

WORDS = ["the", "loom", "holds", "warp", "and", "weft", "while", "shuttles", "carry", "thread"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten small text files, a binary one and an empty one."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for i in range(10):
        (folder / f"{i}.txt").write_text(" ".join(rng.choice(WORDS, 300)) + "\n", encoding="utf-8")
    (folder / "bad.txt").write_bytes(b"\x00\xff\xfe")
    (folder / "empty.txt").write_text("")
    return folder


def config(corpus: Path, run: Path, **sections: dict[str, Any]) -> Any:
    """Settings of a tiny model."""
    usual: dict[str, dict[str, Any]] = {
        "train": {"steps": 20}, "optimizer": {"warmup": 3},
        "output": {"eval_every": 10, "eval_batches": 1, "checkpoint_every": 5},
    }  # fmt: skip
    return tiny(
        corpus, run, **{k: usual.get(k, {}) | sections.get(k, {}) for k in usual | sections}
    )


def numbers(run: Path) -> list[Any]:
    """What a log says of losses (times differ from run to run)."""
    kept = ("step", "loss", "norm", "lr", "eval_loss")
    return [{k: r[k] for k in kept if k in r} for r in read_log(run / "log.jsonl") if r["step"]]


def same_tensors(a: Path, b: Path) -> bool:
    one, two = SafetensorsFile(a), SafetensorsFile(b)
    return one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)


HALF = {"precision": "float16", "accumulate": 2}


@pytest.mark.parametrize("more", few([{}, HALF, {"lora": True}, {**HALF, "lora": True}], HALF))
def test_resuming_is_bit_identical(corpus: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    sections: dict[str, Any] = {"model": {"dropout": 0.1}, "train": dict(more)}
    if sections["train"].pop("lora", False):
        loop.train(config(corpus, tmp_path / "base"))
        sections["model"] = {"from": str(tmp_path / "base" / "model")}
        sections["lora"] = {"rank": 2, "dropout": 0.1}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    loop.train(config(corpus, whole, **sections))
    first = loop.train(config(corpus, parts, **sections), until=10)
    assert first.step == 10
    loop.train(config(corpus, parts, **sections), resume=True)
    assert numbers(whole) == numbers(parts)
    name = "adapter_model.safetensors" if "lora" in sections else "model.safetensors"
    for file in (name, "optimizer.safetensors"):
        assert same_tensors(whole / "step-000020" / file, parts / "step-000020" / file)
    final = "adapter" if "lora" in sections else "model"
    assert same_tensors(whole / final / name, parts / final / name)


def test_a_run_leaves_a_model_a_log_and_a_picture(corpus: Path, tmp_path: Path) -> None:
    settings = config(
        corpus, tmp_path / "run", output={"sample_every": 20, "dtype": "bfloat16", "keep": 2}
    )
    result = loop.train(settings)
    run = tmp_path / "run"
    assert [p.name for p in checkpoints.found(run)] == ["step-000015", "step-000020"]
    records = read_log(run / "log.jsonl")
    losses = [r["loss"] for r in records if "loss" in r]
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.5
    start = records[0]
    assert start["event"] == "start" and start["python"] and start["tokens"] > 100
    assert any(r.get("sample") for r in records)
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    model = weft.load(result.folder, device="cpu")
    assert model.weights["embed"].dtype.name == "bfloat16"
    assert isinstance(model.generate("the loom", max_new_tokens=4).text, str)
    transformers = pytest.importorskip("transformers")
    other = transformers.AutoModelForCausalLM.from_pretrained(result.folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.folder)
    ids = tokenizer("the loom holds")["input_ids"]
    assert ids == model.tokenizer.encode("the loom holds")
    import torch

    with torch.no_grad():
        want = other.float()(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(model.logits(ids), want, atol=2e-2)


def test_a_gradient_that_is_not_finite_stops_the_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    loop.train(config(corpus, run), until=5)
    before = SafetensorsFile(run / "step-000005" / "model.safetensors")
    kept = {k: v.copy() for k, v in before.items()}
    real = loop._Run._batch

    def poisoned(self: Any, number: int) -> Any:
        if number == 7:  # an overflow in the middle of the model, found in the forward pass
            now = self.model.arrays()
            self.model.assign({r: now[r] * np.float32(1e38) for r in ("0.up.w", "0.down.w")})
        return real(self, number)

    monkeypatch.setattr(loop._Run, "_batch", poisoned)
    with pytest.raises(ModelError, match=r"step 8: .*first tensor .* is layer 0"):
        loop.train(config(corpus, run), resume=True)
    saved = SafetensorsFile(run / "step-000007" / "model.safetensors")
    assert all(np.isfinite(saved[k]).all() for k in saved)
    assert any(not np.array_equal(saved[k], kept[k]) for k in kept)
    assert read_log(run / "log.jsonl")[-1]["event"] == "not finite"


def test_a_gradient_alone_is_named(corpus: Path, tmp_path: Path) -> None:
    """The forward pass is fine, a derivative overflows: the parameter is named."""
    from weft.training.step import find_fault

    settings = config(corpus, tmp_path / "run")
    loop.train(settings, until=1)
    data, cfg, raw = loop.prepare_data(settings, tmp_path / "run")
    run = loop._Run(settings, tmp_path / "run", data, cfg, raw)
    ids, targets = run._batch(0)
    assert find_fault(run.model, ids, targets, run.device) == "the norm of the gradient"
    run.model.assign({"norm.w": np.full(16, np.nan, np.float32)})
    assert find_fault(run.model, ids, targets, run.device) == "weight norm.w"


def test_a_full_disk_leaves_the_checkpoint_before(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    loop.train(config(corpus, run), until=5)

    def full(folder: Path, state: Any) -> None:
        (folder / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_state", full)
        with pytest.raises(StorageError, match="disk is full") as error:
            loop.train(config(corpus, run), resume=True)
        assert f"\n{run / 'step-000005'} is whole" in str(error.value)
    assert [p.name for p in checkpoints.found(run)] == ["step-000005"]
    assert not [p for p in run.iterdir() if p.name.startswith(".")]
    assert loop.train(config(corpus, run), resume=True).step == 20


def test_resuming_something_else_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with pytest.raises(UsageError, match="no checkpoint"):
        loop.train(config(corpus, run), resume=True)
    loop.train(config(corpus, run), until=5)
    with pytest.raises(UsageError, match="--resume"):
        loop.train(config(corpus, run))
    other = config(corpus, run, optimizer={"lr": 0.5}, model={"layers": 2})
    onwards = r'\[output\] folder \(with \[model\] from = ".*step-000005", to train on'
    change = r"layers: 1 -> 2; \[optimizer\] lr: 0.01 -> 0.5\. Restore them, or name another "
    with pytest.raises(UsageError, match=change + onwards):
        loop.train(other, resume=True)
    state = json.loads((run / "step-000005" / "trainer.json").read_text())
    state["device"] = "abacus"
    (run / "step-000005" / "trainer.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match=r'abacus -> cpu\. Set \[train\] device = "abacus"'):
        loop.train(config(corpus, run), resume=True)


def test_data_that_cannot_be_trained_on(corpus: Path, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.mkdir()
    binary.mkdir()
    (binary / "a.txt").write_bytes(b"\x00\x01\x02")

    def start(path: Path, **sections: Any) -> None:
        run = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        sections["output"] = {**sections.get("output", {}), "folder": str(run)}
        loop.train(config(corpus, run, data={"paths": [str(path)]}, **sections))

    with pytest.raises(UsageError, match=r"no file ending in \.txt"):
        start(empty)
    with pytest.raises(FileFormatError, match=r"none of the 1 files .*a\.txt"):
        start(binary)
    with pytest.raises(UsageError, match="no such file"):
        start(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"smaller .* context"):
        start(corpus, train={"context": 4096})
    with pytest.raises(UsageError, match="sample_prompt has 0 tokens"):
        start(corpus, output={"sample_every": 5, "sample_prompt": ""})
    with pytest.raises(UsageError, match="is not a folder"):
        start(corpus, model={"from": str(tmp_path / "nothing")})


def test_a_stop_after_the_last_step_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--until 21: the run has 20 steps"):
        loop.train(config(corpus, tmp_path / "run"), until=21)


def test_a_vocabulary_that_does_not_match(corpus: Path, tmp_path: Path) -> None:
    loop.train(config(corpus, tmp_path / "big", tokenizer={"vocab": 320}), until=1)
    loop.train(config(corpus, tmp_path / "small", tokenizer={"vocab": 290}, train={"steps": 1},
                      optimizer={"warmup": 0}))  # fmt: skip
    small = tmp_path / "small" / "model"
    (small / "tokenizer.json").write_bytes(
        (tmp_path / "big" / "data" / "tokenizer.json").read_bytes()
    )
    with pytest.raises(ModelError, match="tokens; the model's vocab_size is"):
        loop.train(config(corpus, tmp_path / "tuned", model={"from": str(small)}))


def test_unknown_and_wrong_settings(tmp_path: Path) -> None:
    good = {"data": {"paths": ["x"]}}
    cases = [
        ({"trian": {}}, r"unknown section \[trian\]; did you mean train\?"),
        ({"train": {"step": 3}}, r"\[train\] step; did you mean steps\?"),
        ({"train": {"steps": "many"}}, "expected an integer"),
        ({"train": {"steps": 0}}, "expected 1 to"),
        ({"train": {"steps": True}}, "expected an integer"),
        ({"train": {"precision": "int8"}}, "expected one of float32"),
        ({"optimizer": {"betas": [0.9]}}, "expected 2 values"),
        ({"optimizer": {"lr": float("nan")}}, "expected 0 to 10"),
        ({"train": 3}, "expected a table"),
        ({"lora": {"rank": 4}}, r"give \[model\] from"),
    ]
    for more, message in cases:
        with pytest.raises(UsageError, match=message):
            settings_from({**good, **more}, "config")
    with pytest.raises(UsageError, match="paths is missing"):
        settings_from({}, "config")
    path = tmp_path / "bad.toml"
    path.write_text("[train\n")
    for bad, message in ((path, "not TOML"), (tmp_path / "none.toml", "cannot be read")):
        with pytest.raises(UsageError, match=message):
            read_settings(bad)


def test_the_example_config_says_what_the_defaults_are(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(example(), encoding="utf-8")
    assert read_settings(path) == settings_from({"data": {"paths": ["stdlib"]}}, "config")


def test_a_log_goes_on_after_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n{"step": 3, "lo')
    log = Log(path, 1)
    log.write(step=2, loss=1.25)
    log.close()
    assert [r["loss"] for r in read_log(path)] == [2.0, 1.25]
    draw_curve(read_log(path), tmp_path / "x.png")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """A background job of a shell does not end by the Ctrl-C that was meant for another."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked
            signal.raise_signal(signal.SIGTERM)
            assert asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["model", "adapter", "best"])
def test_a_run_takes_the_place_of_nothing_else(corpus: Path, tmp_path: Path, name: str) -> None:
    """Those folders go as a whole when a run has its own."""
    theirs = tmp_path / name
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=f"{name} is there and no run has made it"):
        loop.train(config(corpus, tmp_path))
    assert (theirs / "thesis.txt").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_a_run_does_not_remove_what_it_reads(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    loop.train(config(corpus, run))
    for old in run.glob("step-*"):  # else the folder is refused for them
        checkpoints.remove_folder(old, run)
    for sections in ({"model": {"from": str(run / "model")}},
                     {"tokenizer": {"from": str(run / "data")}}):  # fmt: skip
        before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
        with pytest.raises(UsageError, match=r"from is .*, which the run writes over"):
            loop.train(config(corpus, run, **sections))
        assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*")}


def test_a_tokenizer_beside_other_data_stays(corpus: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("tokenizer.json", "notes.txt"):
        (data / name).write_text("mine")
    with pytest.raises(UsageError, match="data is there and no run has made it"):
        loop.train(config(corpus, tmp_path))
    assert (data / "tokenizer.json").read_text() == "mine"
