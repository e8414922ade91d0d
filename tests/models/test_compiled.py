"""The same models compiled for the CPU: against transformers and against the oracle."""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from model_zoo import DECODERS, ENCODERS, VOCAB, reference_greedy, reference_logits, write_model
from rows import few

import weft
from weft.core.errors import InternalError

IDS = np.random.default_rng(0).integers(0, VOCAB, 40)
PROMPTS = [[5, 6, 7], [9], list(range(40, 61)), [250, 3, 250, 3], [17, 18]]


@pytest.mark.parametrize("name", few(DECODERS, "gpt2", "gemma2"))
def test_logits_and_64_greedy_tokens(zoo, name: str) -> None:
    folder, reference = zoo(name)
    model = weft.load(folder, device="cpu", context=96)
    want = reference_logits(reference, IDS)
    np.testing.assert_allclose(model.logits(IDS), want, atol=1e-4, rtol=1e-4)
    got = model.generate(IDS[:9], max_new_tokens=64)
    assert len(got.ids) == 64
    assert list(got.ids) == reference_greedy(reference, IDS[:9], got.ids)


@pytest.mark.parametrize("name", few(["gpt2", "qwen3", "gemma2"], "qwen3"))
def test_batch_equals_alone_bit_for_bit(zoo, name: str) -> None:
    folder, _ = zoo(name)
    model = weft.load(folder, device="cpu", context=64, max_batch=4)
    options = {"max_new_tokens": 12, "temperature": 1.3, "top_p": 0.95}
    seeds = [1, 2, 3, 4, 5]
    together = model.generate(PROMPTS, seed=seeds, **options)
    assert together == [model.generate(p, seed=s, **options) for p, s in zip(PROMPTS, seeds)]
    alone, batch = model.new_runner(1, 1), model.new_runner(4, 4)
    a = alone.prefill(0, PROMPTS[0])
    for slot, prompt in enumerate(PROMPTS[:4]):
        logits = batch.prefill(slot, prompt)
        if slot == 0:
            np.testing.assert_array_equal(a, logits)
    one = alone.rows([8], [0], [3]).copy()
    many = batch.rows([8, 1, 2, 3], [0, 1, 2, 3], [3, 1, 21, 4])
    np.testing.assert_array_equal(one[0], many[0])


def test_more_slots_than_a_step_takes(zoo) -> None:
    """20 sequences at once run in two steps, with the kernels that one sequence uses."""
    folder, _ = zoo("llama2")
    model = weft.load(folder, device="cpu", context=32, max_batch=32)
    prompts = [[3 * i + 1, i] for i in range(20)]
    together = model.generate(prompts, max_new_tokens=4)
    assert together == [model.generate(p, max_new_tokens=4) for p in prompts]
    alone, batch = model.new_runner(1, 1), model.new_runner(32, 32)
    for slot in range(20):
        batch.prefill(slot, [1, 2, 3])
    alone.prefill(0, [1, 2, 3])
    many = batch.rows([4] * 20, list(range(20)), [3] * 20)
    np.testing.assert_array_equal(many, np.repeat(alone.rows([4], [0], [3]), 20, axis=0))


@pytest.mark.parametrize("device", ["cpu", "oracle"])
def test_bfloat16_inputs(tmp_path: Path, device: str) -> None:
    """A model in bfloat16 rounds what meets its weights, as its framework does; it stays close."""
    write_model("llama2", tmp_path, "bfloat16")
    model = weft.load(tmp_path, device=device, context=64)
    assert model.precision == "bfloat16 with bfloat16 inputs"
    got = model.logits(IDS)
    plain = weft.load(tmp_path, device="oracle", context=64, act_dtype="float32")
    assert plain.precision == "bfloat16"
    want = plain.logits(IDS)
    assert not np.array_equal(got, want)
    np.testing.assert_allclose(got, want, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_models_meet_float32_inputs(tmp_path: Path, dtype: str) -> None:
    write_model("llama2", tmp_path, dtype)
    model = weft.load(tmp_path, device="oracle", context=64)
    assert model.precision == dtype
    asked = weft.load(tmp_path, device="oracle", context=64, act_dtype="float32")
    np.testing.assert_array_equal(model.logits(IDS), asked.logits(IDS))


def test_an_encoder_in_bfloat16_rounds_inputs_too(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    rows = [[5, 6, 7], [9, 4]]
    narrow = [weft.load(tmp_path, device=d, dtype="bfloat16") for d in ("cpu", "oracle")]
    assert {m.precision for m in narrow} == {"bfloat16 with bfloat16 inputs"}
    got, want = (m.embed_ids(rows) for m in narrow)
    np.testing.assert_allclose(got, want, atol=1e-2)
    wide = weft.load(tmp_path, device="oracle", dtype="bfloat16", act_dtype="float32")
    assert not np.array_equal(wide.embed_ids(rows), want)


def test_bfloat16_inputs_keep_a_row_from_its_batch(tmp_path: Path) -> None:
    """Where products of bfloat16 run in matrix registers, a prompt's bits are its own, too."""
    write_model("llama2", tmp_path, "bfloat16")
    model = weft.load(tmp_path, device="cpu", context=64, max_batch=4)
    batch = model.runner(4)
    for slot, prompt in enumerate((*PROMPTS[:3], IDS.tolist())):
        alone = model.runner(1).prefill(0, prompt).copy()
        np.testing.assert_array_equal(batch.prefill(slot, prompt), alone)
    options = {"max_new_tokens": 8, "temperature": 1.3, "top_p": 0.95}
    together = model.generate(PROMPTS, seed=[1, 2, 3, 4, 5], **options)
    alone = [model.generate(p, seed=s, **options) for s, p in enumerate(PROMPTS, 1)]
    assert together == alone


def test_chunked_prefill(zoo, monkeypatch) -> None:
    folder, reference = zoo("llama3")
    monkeypatch.setattr("weft.models.run.runner.CHUNK", 16)
    got = weft.load(folder, device="cpu", context=64).runner().prefill(0, IDS.tolist())
    np.testing.assert_allclose(got, reference_logits(reference, IDS)[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name,dtype",
    few(itertools.product(["llama2", "gpt2"], ["float16", "bfloat16"]),
        ("llama2", "bfloat16"), ("gpt2", "float16")),
)  # fmt: skip
def test_half_checkpoints_equal_the_oracle(tmp_path: Path, name: str, dtype: str) -> None:
    write_model(name, tmp_path, dtype)
    got = weft.load(tmp_path, device="cpu", context=64).logits(IDS)
    want = weft.load(tmp_path, device="oracle", context=64).logits(IDS)
    tolerance = 2e-3 if dtype == "float16" else 2e-2
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", few(ENCODERS, "bert", "modernbert", "deberta-v3", "t5", "albert"))
def test_encoders(tmp_path: Path, name: str) -> None:
    write_model(name, tmp_path)
    rows = [np.random.default_rng(1).integers(2, VOCAB, n).tolist() for n in (5, 1, 17, 9, 60)]
    got = weft.load(tmp_path, device="cpu").embed_ids(rows)
    want = weft.load(tmp_path, device="oracle").embed_ids(rows)
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


def test_programs_come_back_from_disk(zoo, tmp_path: Path, monkeypatch) -> None:
    """A second load neither traces nor compiles; a changed source or entry compiles again."""
    from weft.host.cache import DiskCache
    from weft.tensor import program_cache as programs

    folder, _ = zoo("llama2")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    want = weft.load(folder, device="cpu", context=48).generate([1, 2, 3], max_new_tokens=5)

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("compiled again")

    with monkeypatch.context() as patch:
        patch.setattr(import_module("weft.compile.passes"), "compile_graph", refuse)
        patch.setattr("weft.models.arch.decoder.forward", refuse)
        again = weft.load(folder, device="cpu", context=48)
        assert again.generate([1, 2, 3], max_new_tokens=5) == want
        assert set(again.programs()) == {"prefill", "decode"}
        with pytest.raises(InternalError, match="compiled again"):
            weft.load(folder, device="cpu", context=47).generate([1])
        patch.setattr(programs.versions, "stamp", lambda kind: "another version")
        with pytest.raises(InternalError, match="compiled again"):
            weft.load(folder, device="cpu", context=48).generate([1])
    monkeypatch.setattr(DiskCache, "get", lambda self, key: b"not a program")
    fresh = weft.load(folder, device="cpu", context=48)
    assert fresh.generate([1, 2, 3], max_new_tokens=5) == want


def test_a_real_interrupt_leaves_the_model_usable(zoo) -> None:
    """SIGINT, wherever it lands, raises KeyboardInterrupt; the next generation is unharmed."""
    import signal
    import threading

    folder, _ = zoo("llama2")
    model = weft.load(folder, device="cpu", context=96)
    want = model.generate([5, 6], max_new_tokens=30)
    for delay in (0.02, 0.05, 0.11):
        timer = threading.Timer(delay, signal.raise_signal, (signal.SIGINT,))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            for _ in range(10_000):
                model.generate([9], max_new_tokens=90)
        timer.join()
        assert model.generate([5, 6], max_new_tokens=30) == want


@pytest.mark.parametrize(("name", "dtype"), [("gpt2", "float32"), ("llama3", "bfloat16")])
def test_a_common_prefix_is_kept_and_changes_no_bit(tmp_path: Path, name: str, dtype: str) -> None:
    """A second prompt reads only what is new; its tokens and logits are those of a fresh model."""
    write_model(name, tmp_path, dtype)
    model, ids = weft.load(tmp_path, device="cpu", context=64), IDS.tolist()
    options = {"max_new_tokens": 8, "temperature": 1.1, "seed": 3}
    first = model.generate(ids[:20], **options)
    turns = [
        (ids[:20], 19),
        ([*ids[:20], *first.ids, 5, 6], 27),  # the answer's last token was not fed
        ([*ids[:20], *first.ids, 5, 6, 7], 30),
        (ids[:10] + ids[20:30], 10),
        (ids[:30], 10),
        (ids[30:], 0),
    ]
    for prompt, reused in turns:
        got = model.generate(prompt, **options)
        fresh = weft.load(tmp_path, device="cpu", context=64)
        assert got == fresh.generate(prompt, **options)
        assert got.reused == reused
    np.testing.assert_array_equal(model.logits(ids[30:])[-1], fresh.runner().prefill(0, ids[30:]))


def test_an_interrupted_prefill_keeps_only_what_it_finished(zoo, monkeypatch) -> None:
    folder, _ = zoo("llama2")
    monkeypatch.setattr("weft.models.run.runner.CHUNK", 8)
    model, ids = weft.load(folder, device="cpu", context=64), IDS.tolist()
    want = model.generate(ids[:30], max_new_tokens=8)
    model.generate(ids[::-1], max_new_tokens=1)
    runner, step, left = model.runner(), model.runner().step, [2]

    def failing(*args):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "step", failing)
        with pytest.raises(KeyboardInterrupt):
            model.generate(ids[:30], max_new_tokens=8)
    got = model.generate(ids[:30], max_new_tokens=8)
    assert got == want and got.reused == 8
