"""Generation on the oracle: independence, sampling, stop strings, streaming, limits, bad input."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from model_zoo import VOCAB, write_model, write_tokenizer

import weft
from weft.core.errors import (
    FileFormatError,
    LimitError,
    ModelError,
    UsageError,
    WeftError,
)
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import load

PROMPTS = [[5, 6, 7], [9], list(range(40, 61)), [250, 3, 250, 3], [17, 18]]
SAMPLED = {"temperature": 1.3, "top_k": 60, "top_p": 0.95, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("llama")
    write_model("llama3", made)
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, device="oracle", context=64, max_batch=3)


# -- batches --------------------------------------------------------------------------------------


def test_batch_equals_alone(model) -> None:
    """More prompts than slots, of different lengths: each as if it ran alone."""
    together = model.generate(PROMPTS, max_new_tokens=12)
    assert together == [model.generate(p, max_new_tokens=12) for p in PROMPTS]


def test_sampled_batch_equals_alone_with_seeds(model) -> None:
    together = model.generate(PROMPTS, max_new_tokens=12, seed=[1, 2, 3, 4, 5], **SAMPLED)
    alone = [
        model.generate(p, max_new_tokens=12, seed=s, **SAMPLED)
        for p, s in zip(PROMPTS, (1, 2, 3, 4, 5))
    ]
    assert together == alone
    first = model.generate(PROMPTS, max_new_tokens=12, seed=9, **SAMPLED)[0]
    assert first == model.generate(PROMPTS[0], max_new_tokens=12, seed=9, **SAMPLED)


def test_equal_prompts_of_a_batch_differ(model) -> None:
    a, b = model.generate([[5, 6], [5, 6]], max_new_tokens=12, temperature=1.0)
    assert a.ids != b.ids


def test_without_a_seed_calls_differ_and_manual_seed_repeats_them(model) -> None:
    found = []
    for _ in range(2):
        weft.manual_seed(3)
        found.append([model.generate([5], 12, temperature=1.0).ids for _ in range(2)])
        model.generate([5], 2, temperature=0)  # draws nothing
    assert found[0] == found[1] and found[0][0] != found[0][1]
    weft.manual_seed(3)
    model.generate([5], 2, temperature=0)
    assert model.generate([5], 12, temperature=1.0).ids == found[0][0]


def test_seeds_matter_and_repeat(model) -> None:
    runs = [model.generate([5], max_new_tokens=12, temperature=1.0, seed=s).ids for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_kinds_of_prompts(model) -> None:
    want = model.generate([5, 6], max_new_tokens=3)
    assert model.generate(np.array([5, 6]), max_new_tokens=3) == want
    assert model.generate((5, 6), max_new_tokens=3) == want
    assert model.generate([[5, 6]], max_new_tokens=3) == [want]
    assert model.generate(np.array([[5, 6]]), max_new_tokens=3) == [want]
    text = model.tokenizer.decode([80, 81])
    assert model.generate(text, 3) == model.generate(model.encode(text), 3)


# -- text -----------------------------------------------------------------------------------------


def test_stream_joins_to_the_text(model) -> None:
    want = model.generate([5, 6], max_new_tokens=30)
    stream = model.generate([5, 6], max_new_tokens=30, stream=True)
    pieces = list(stream)
    assert "".join(pieces) == want.text
    assert tuple(itertools.chain.from_iterable(p.ids for p in pieces)) == want.ids
    assert stream.results == [want]


def test_streamed_batches_say_whose_piece_it_is(model) -> None:
    want = model.generate(PROMPTS, max_new_tokens=10)
    texts = [""] * len(PROMPTS)
    for piece in model.generate(PROMPTS, max_new_tokens=10, stream=True):
        texts[piece.prompt] += piece
    assert texts == [w.text for w in want]


def test_stop_strings_across_tokens(model) -> None:
    """Any span of the text stops it right before that span's first occurrence."""
    whole = model.generate([5, 6], max_new_tokens=30)
    for start, length in ((0, 1), (4, 3), (9, 5), (12, 2)):
        stop = whole.text[start : start + length]
        got = model.generate([5, 6], max_new_tokens=30, stop=["never seen", stop])
        assert got.text == whole.text[: whole.text.index(stop)]
        assert got.finish_reason == "stop"
        assert got.ids == whole.ids[: len(got.ids)]
        pieces = model.generate([5, 6], max_new_tokens=30, stop=stop, stream=True)
        assert "".join(pieces) == got.text


def test_held_back_text_comes_out_at_the_end(model) -> None:
    """The end of the text could begin a stop string, but nothing follows."""
    whole = model.generate([5, 6], max_new_tokens=8)
    got = model.generate([5, 6], max_new_tokens=8, stop=whole.text[-2:] + "and more")
    assert got == whole


def test_eos_ends_and_is_not_part_of_the_answer(folder, model, tmp_path: Path) -> None:
    free = model.generate([5, 6], max_new_tokens=10)
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [free.ids[4], 299]})
    )
    got = load(tmp_path / "m", device="oracle", context=64).generate([5, 6], max_new_tokens=10)
    end = free.ids.index(free.ids[4])
    assert got.ids == free.ids[:end]
    assert got.finish_reason == "eos"


def test_without_a_tokenizer_ids_still_work(tmp_path: Path) -> None:
    write_model("gpt2", tmp_path)
    model = load(tmp_path, device="oracle", context=32)
    got = model.generate([1, 2], max_new_tokens=3)
    assert len(got.ids) == 3
    assert got.text == ""
    for call in (lambda: model.generate("x"), lambda: model.generate([1], stop="x")):
        with pytest.raises(UsageError, match=r"no tokenizer\.json"):
            call()


# -- limits and bad input -------------------------------------------------------------------------


def test_the_context_ends_a_generation(model) -> None:
    got = model.generate([1] * 60, max_new_tokens=100)
    assert len(got.ids) == 5
    assert got.finish_reason == "length"
    assert len(model.generate([1] * 64, max_new_tokens=9).ids) == 1
    assert model.generate([1], max_new_tokens=0).ids == ()


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda m: m.generate([1] * 65), LimitError, "65 tokens; the context holds 64; load with"),
        (lambda m: m.generate(""), UsageError, "prompt is empty"),
        (lambda m: m.generate([]), UsageError, "prompt is empty"),
        (lambda m: m.generate([[1], []]), UsageError, "prompt is empty"),
        (lambda m: m.generate([VOCAB]), UsageError, "token id 300 is outside"),
        (lambda m: m.generate([-1]), UsageError, "token id -1 is outside"),
        (lambda m: m.generate([1.5]), UsageError, "integer token ids"),
        (lambda m: m.generate(["a", [1.0]]), UsageError, "integer token ids"),
        (lambda m: m.generate([1], max_new_tokens=-1), UsageError, "max_new_tokens is -1"),
        (lambda m: m.generate([1], max_new_tokens=1.5), UsageError, "max_new_tokens is 1.5"),
        (lambda m: m.generate([1], temperature=-1), UsageError, "temperature"),
        (lambda m: m.generate([1], stop=[""]), UsageError, "stop strings"),
        (lambda m: m.generate([1], seed=-1, temperature=1.0), UsageError, "seed is -1"),
        (lambda m: m.generate([[1], [2]], seed=[1]), UsageError, "1 seeds for 2 prompts"),
        (lambda m: m.generate("bad \udc80"), UsageError, "not valid UTF-8"),
        (lambda m: m.logits([]), UsageError, "empty"),
        (lambda m: m.embed(["x"], layer=9), UsageError, "unknown place 'layers.9.out'"),
    ],
)
def test_bad_calls_are_named(model, call, kind: type, said: str) -> None:
    with pytest.raises(kind, match=said):
        call(model)
    assert model.generate([5], max_new_tokens=1).ids  # and nothing is left broken


def test_a_tokenizer_that_adds_bos_allows_an_empty_prompt(tmp_path: Path) -> None:
    write_model("llama2", tmp_path)
    write_tokenizer(tmp_path, "fallback")
    model = load(tmp_path, device="oracle", context=32)
    assert model.generate("", max_new_tokens=3) == model.generate([0], max_new_tokens=3)


def test_interrupt_leaves_the_model_usable(model, monkeypatch) -> None:
    want = model.generate([5, 6], max_new_tokens=8)
    runner = model.runner(1)
    rows, calls = runner.rows, itertools.count()

    def interrupted(*args):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return rows(*args)

    monkeypatch.setattr(runner, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.generate([9, 9], max_new_tokens=8)
    assert model.generate([5, 6], max_new_tokens=8) == want


def test_streams_at_once_do_not_mix(model) -> None:
    """Two streams and a call between their pieces: each as if it were alone."""
    want = [model.generate(p, max_new_tokens=8) for p in PROMPTS[:3]]
    streams = [model.generate(p, max_new_tokens=8, stream=True) for p in PROMPTS[:2]]
    pieces: list[list[str]] = [[], []]
    for _ in range(5):
        for mine, stream in zip(pieces, streams):
            mine.append(next(stream))
    assert model.generate(PROMPTS[2], max_new_tokens=8) == want[2]
    rows = model.logits(PROMPTS[2])
    for mine, stream in zip(pieces, streams):
        mine += stream
    assert [stream.results for stream in streams] == [[w] for w in want[:2]]
    assert ["".join(mine) for mine in pieces] == [w.text for w in want[:2]]
    np.testing.assert_array_equal(model.logits(PROMPTS[2]), rows)


def test_a_stream_that_is_left_gives_its_place_back(model) -> None:
    want = model.generate([5, 6], max_new_tokens=8)
    for _ in range(5):
        next(model.generate([9, 9], max_new_tokens=8, stream=True))
    assert model.generate([5, 6], max_new_tokens=8) == want
    assert not model.engine().has_work and model.engine().stats.held == 0


def test_reading_logits_takes_a_place_and_gives_way(model) -> None:
    """That of a stream that runs, which is read again; and who runs next takes it back."""
    want, rows = model.generate([5, 6], max_new_tokens=8), model.logits([7] * 9)
    stream = model.generate([5, 6], max_new_tokens=8, stream=True)
    next(stream)
    blocks = [model.logit_blocks([7] * 9), model.logit_blocks([7] * 9)]
    for block in blocks:
        np.testing.assert_array_equal(next(block), rows)
    list(stream)
    assert stream.results == [want]
    later = model.logit_blocks([7] * 9, first=3)
    np.testing.assert_allclose(next(later), rows[3:], atol=1e-5)  # NumPy's order of sums


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_weights_are_reported_by_name(folder, tmp_path: Path, value: float) -> None:
    shutil.copytree(folder, tmp_path / "m")
    tensors = {k: np.array(v) for k, v in open_checkpoint(folder).items()}
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = value
    save_file(tmp_path / "m" / "model.safetensors", tensors)
    model = load(tmp_path / "m", device="oracle", context=32)
    for call in (lambda: model.generate([1, 2]), lambda: model.logits([1, 2])):
        with pytest.raises(ModelError, match=r"1\.mlp\.down_proj\.weight' holds NaN or infinity"):
            call()


# -- folders --------------------------------------------------------------------------------------


def edited(folder: Path, to: Path, **change: object) -> Path:
    shutil.copytree(folder, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return to


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"model_type": "no_such"}, ModelError, "architecture no_such is not supported"),
        ({"model_type": None}, ModelError, "not supported; supported: gpt2, llama"),
        ({"quantization_config": {"bits": 4}}, ModelError, "quant_method '' is not supported"),
        ({"vocab_size": 301}, ModelError, r"shape \[300, 32\]; config.json asks for \[301, 32\]"),
        ({"num_hidden_layers": 4}, ModelError, "'model.layers.3.input_layernorm.weight' is miss"),
        ({"num_hidden_layers": 10**7}, ModelError, "num_hidden_layers is 10000000"),
        ({"tie_word_embeddings": False}, ModelError, "'lm_head.weight' is missing"),
        ({"eos_token_id": "x"}, ModelError, "eos_token_id is 'x'"),
    ],
)
def test_configs_that_do_not_fit(
    folder, tmp_path, monkeypatch, change: dict, kind: type, said: str
) -> None:
    monkeypatch.setattr("weft.models.zoo.ask._version", lambda name: "")  # starts no transformers
    made = edited(folder, tmp_path / "m", **change)
    (made / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(kind, match=said):
        load(made, device="oracle")


def test_folders_that_are_none(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "gone", "does not exist"), (tmp_path, "no config.json")):
        with pytest.raises(ModelError, match=said):
            load(path, device="oracle")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileFormatError, match="a GGUF file starts with"):
        load(tmp_path / "file", device="oracle")


def test_truncated_weights(folder, tmp_path: Path) -> None:
    made = edited(folder, tmp_path / "m")
    data = (made / "model.safetensors").read_bytes()
    for size in (0, 7, 100, len(data) - 1):
        (made / "model.safetensors").write_bytes(data[:size])
        with pytest.raises(FileFormatError, match=r"model\.safetensors"):
            load(made, device="oracle")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"dtype": "f77"}, "dtype is 'f77'"),
        ({"context": 0}, "context is 0"),
        ({"context": 129}, "more than the model's 128"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"act_dtype": "float16"}, "act_dtype is 'float16'"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_bad_load_options(folder, options: dict, said: str) -> None:
    with pytest.raises(WeftError, match=said):
        load(folder, **{"device": "oracle", **options})


def test_chat_ids(folder, tmp_path: Path) -> None:
    made = edited(folder, tmp_path / "m")
    (made / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    model = load(made, device="oracle", context=32)
    assert model.chat_ids([{"role": "user", "content": "the fox"}]) == model.encode("the fox")
