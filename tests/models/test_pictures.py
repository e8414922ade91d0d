"""Multimodal models against transformers: prompts, vectors of pictures, logits, greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from picture_zoo import FAMILIES, MARK, greedy, picture, write_pictured
from PIL import Image
from rows import covering, few

import weft
from weft.cli import main
from weft.core.errors import LimitError, UsageError
from weft.models.arch.config import LayerRange
from weft.models.run.inset_rows import untaken

PICTURES = [picture(1, 37, 53), picture(2, 90, 41), picture(3, 60, 61)]
Pictured = Callable[[str], tuple[Path, Any, Any]]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Pictured:
    """Family -> (folder, transformers' model, its processor)."""
    made: dict[str, tuple[Path, Any, Any]] = {}

    def get(name: str) -> tuple[Path, Any, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = (folder, *write_pictured(name, folder))
        return made[name]

    return get


def talk(name: str, count: int = 3) -> list[dict[str, Any]]:
    """A conversation with several pictures."""
    first = [{"type": "image", "image": p} for p in PICTURES[: count - 1]]
    return [
        {"role": "user", "content": [*first, {"type": "text", "text": "what are these?"}]},
        {"role": "assistant", "content": "things"},
        {"role": "user", "content": [{"type": "text", "text": "and "},
                                     {"type": "image", "image": PICTURES[count - 1]}]},
    ]  # fmt: skip


def inputs_of(name: str, processor: Any, count: int = 3) -> dict[str, Any]:
    """What transformers' processor makes of that conversation."""
    mark = MARK[name]
    text = f"user: {mark * (count - 1)}what are these?\nassistant: things\nuser: and {mark}\n"
    shown: Any = PICTURES[:count]
    shown = [shown] if name == "llava_onevision" else shown  # of one prompt
    made = processor(images=shown, text=[text + "assistant:"], return_tensors="pt")
    return {k: v for k, v in made.items() if k != "num_crops" and k != "num_patches"}


def close(got: np.ndarray, want: np.ndarray, tol: float = 2e-4) -> None:
    np.testing.assert_allclose(got, want, atol=tol * max(1.0, np.abs(want).max()), rtol=tol)


def blind(model: Any, inputs: dict[str, Any]) -> np.ndarray:
    """transformers' logits of the same prompt with black pictures."""
    black = {k: v * 0 if k == "pixel_values" else v for k, v in inputs.items()}
    if "pixel_attention_mask" in inputs:
        black["pixel_values"] = black["pixel_values"] + 1e-3
    return greedy(model, black, 1)[1][0]


# One of each kind of eye; the others have the parts of these, in other language models.
EYES = ("llava", "pixtral", "qwen2_vl", "qwen3_vl", "gemma3", "gemma4", "idefics3", "internvl")


@pytest.mark.parametrize("name", few(FAMILIES, *EYES))
def test_family(pictured: Pictured, name: str) -> None:
    folder, reference, processor = pictured(name)
    inputs = inputs_of(name, processor)
    model = weft.load(folder, device="cpu", context=1024, max_batch=2)
    prompt = model.chat_ids(talk(name))
    assert list(prompt) == inputs["input_ids"][0].tolist()
    wanted, logits = greedy(reference, inputs, 16)
    rows: list[np.ndarray] = []

    def kept(ids: list[int], row: np.ndarray) -> np.ndarray:
        rows.append(row)
        return row

    made = model.generate(messages=talk(name), max_new_tokens=16, logits=kept)
    close(rows[0], logits[0])
    assert np.abs(logits[0] - blind(reference, inputs)).max() > 1e-2  # pictures matter
    assert list(made.ids) == wanted
    close(np.stack(rows), logits)
    # a second time most of it is in the cache, and beside another it is the same
    again = model.generate([prompt, "hello"], max_new_tokens=16)
    assert again[0].ids == made.ids
    other = [*PICTURES[1:], PICTURES[0]]
    moved = [{"role": "user", "content": [{"type": "image", "image": p} for p in other]}]
    model.generate(messages=moved, max_new_tokens=4)
    assert model.generate(prompt, max_new_tokens=16).ids == made.ids


@pytest.mark.parametrize("which", range(3))
def test_a_picture_alone_has_tiles(pictured: Pictured, which: int) -> None:
    folder, reference, processor = pictured("llava_onevision")
    inputs = processor(
        images=[PICTURES[which]], text=["user: <image>hi\nassistant:"], return_tensors="pt"
    )
    model = weft.load(folder, device="oracle")
    prompt = ask(model, which)
    assert list(prompt) == inputs["input_ids"][0].tolist()
    rows: list[np.ndarray] = []
    model.generate(prompt, max_new_tokens=1, logits=lambda ids, row: rows.append(row) or row)
    close(rows[0], greedy(reference, dict(inputs), 1)[1][0])


def ask(model: Any, which: int, text: str = "hi") -> Any:
    parts = [{"type": "image", "image": PICTURES[which]}, {"type": "text", "text": text}]
    return model.chat_ids([{"role": "user", "content": parts}])


@pytest.mark.parametrize("name", few(["llava", "gemma3", "qwen3_vl"], "gemma3", "qwen3_vl"))
def test_an_answer_is_one_of_model_request_and_seed(pictured: Pictured, name: str) -> None:
    """Alone, beside others, from the cache, preempted, with drafts: to the last bit."""
    folder, _, _ = pictured(name)
    alone = {}
    for which in range(3):
        model = weft.load(folder, device="cpu", context=512)
        alone[which] = model.generate(
            ask(model, which), max_new_tokens=12, temperature=0.8, seed=which, logprobs=0
        )
    model = weft.load(folder, device="cpu", context=512, max_batch=4)
    prompts = [ask(model, 0), "some text of another", ask(model, 1), ask(model, 2)]
    for _ in range(2):
        made = model.generate(
            prompts, max_new_tokens=12, temperature=0.8, seed=[0, 9, 1, 2], logprobs=0
        )
        for which, at in ((0, 0), (1, 2), (2, 3)):
            assert made[at].ids == alone[which].ids
            told = [t.logprob for t in made[at].logprobs]
            assert told == [t.logprob for t in alone[which].logprobs]
    assert made[0].reused  # the second time
    single = weft.load(folder, device="cpu", context=512)
    first = single.generate(ask(single, 0), max_new_tokens=2)
    other = single.generate(ask(single, 1), max_new_tokens=2)
    assert other.reused < 10 <= len(ask(single, 0)), first  # it knows pictures apart
    drafted = single.generate(
        ask(single, 2), max_new_tokens=12, temperature=0.8, seed=2, draft=True
    )
    assert drafted.ids == alone[2].ids


@pytest.mark.parametrize("name", few(["gemma3", "gemma4", "qwen2_5_vl"], "gemma3", "qwen2_5_vl"))
def test_any_cut_of_a_prompt_gives_the_same(pictured: Pictured, name: str) -> None:
    folder, _, _ = pictured(name)
    model = weft.load(folder, device="cpu", context=512, max_batch=2)
    prompt = ask(model, 0, "x" * 20)
    runner = model.new_runner(2, 16)
    runner.insets[0] = runner.insets[1] = prompt.insets
    whole = runner.prefill(0, prompt).copy()
    start = 0
    while start < len(prompt):
        count = prompt.insets.cut(start, min(7, len(prompt) - start), 512)
        part = runner.prefill(1, prompt[start : start + count], start)
        start += count
    np.testing.assert_array_equal(whole, part)


@pytest.mark.parametrize("name, options", covering(
    ["gemma3", "qwen3_vl"],
    [{"dtype": "bfloat16"}, {"quant": "int8"}, {"cache": "int8"}, {"device": "oracle"}],
))  # fmt: skip
def test_narrow_numbers(pictured: Pictured, name: str, options: dict[str, Any]) -> None:
    folder, reference, processor = pictured(name)
    _, logits = greedy(reference, inputs_of(name, processor), 1)
    model = weft.load(folder, **{"device": "cpu", "context": 512, **options})
    rows: list[np.ndarray] = []
    model.generate(messages=talk(name), max_new_tokens=1,
                   logits=lambda ids, row: rows.append(row) or row)  # fmt: skip
    exact = options.get("device") == "oracle"
    off = np.abs(rows[0] - logits[0]).max() / np.abs(logits[0]).max()
    assert off < (1e-4 if exact else 0.1), off
    assert exact or off > 1e-7


def test_wrong_pictures_are_named(pictured: Pictured, tmp_path: Path) -> None:
    folder, _, _ = pictured("llava")
    model = weft.load(folder, device="cpu", context=64)
    eyes = model.need_eyes()
    with pytest.raises(UsageError, match=r"1 place for a picture .*2 were given"):
        eyes.prompt("see <image>", PICTURES[:2], model.tokenizer, False)
    with pytest.raises(UsageError, match=r"1 place .*0 were given"):
        eyes.prompt("see <image>", [], model.tokenizer, False)
    with pytest.raises(UsageError, match="is an address; weft fetches nothing"):
        model.chat([{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "https://some.org/a.png"}}]}])  # fmt: skip
    with pytest.raises(LimitError, match="the context holds 64"):
        model.generate(model.look("what?", PICTURES * 2))
    blind = weft.load("box-chat", device="cpu")
    with pytest.raises(UsageError, match="reads text alone"):
        blind.generate(messages=[{"role": "user", "content": [
            {"type": "image", "image": PICTURES[0]}]}])  # fmt: skip
    with pytest.raises(UsageError, match="prompt_logprobs"):
        big = weft.load(folder, device="cpu", context=512)
        big.generate(big.look("x", PICTURES[:1]), prompt_logprobs=0)


def test_a_part_of_a_model_says_why_it_sees_nothing(pictured: Pictured) -> None:
    model = weft.load(pictured("llava")[0], device="oracle", context=256)
    prompt = model.look("what?", PICTURES[:1])
    model.config = replace(model.config, run=LayerRange(0, 1))
    model.make_eyes = None
    del model.eyes
    with pytest.raises(UsageError, match=r"text alone, .* given: it runs on several machines"):
        model.look("what?", PICTURES[:1])
    assert untaken(model.config, prompt.insets, 512) == (
        "llama reads text alone: it runs on several machines")  # fmt: skip


def test_run_reads_images(pictured: Pictured, tmp_path: Path) -> None:
    folder, _, _ = pictured("llava")
    path = tmp_path / "cat.png"
    Image.fromarray(PICTURES[0]).save(path)
    model = weft.load(folder, device="cpu")
    want = model.generate(model.look("what is this?", [path]), max_new_tokens=5)
    said = CliRunner().invoke(main.cli, [
        "run", str(folder), "what is this?", "--image", str(path), "--max-new-tokens", "5",
        "--device", "cpu", "--json"])  # fmt: skip
    assert json.loads(said.stdout)["ids"] == list(want.ids), said.stderr


def test_chat_shows_pictures(pictured: Pictured, tmp_path: Path) -> None:
    folder, _, _ = pictured("llava")
    path = tmp_path / "cat.png"
    Image.fromarray(PICTURES[0]).save(path)
    model = weft.load(folder, device="cpu")
    parts = [{"type": "image", "image": path}, {"type": "text", "text": "what is this?"}]
    want = model.chat([{"role": "user", "content": parts}], max_new_tokens=4)
    said = CliRunner().invoke(main.cli, [
        "chat", str(folder), "--device", "cpu", "--json", "--max-new-tokens", "4"],
        input=f"/image {path}\nwhat is this?\n")  # fmt: skip
    assert json.loads(said.stdout)["ids"] == list(want.ids), said.stderr
    assert f"{path} goes with your next message: 16 tokens" in said.stderr
