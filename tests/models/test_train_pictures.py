"""Adapters trained on conversations with pictures: against PyTorch and PEFT."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_zoo import MARK, picture, write_pictured
from PIL import Image
from rows import few

import weft
from weft.core.errors import FileFormatError, UsageError
from weft.models.weights import adapters
from weft.training import loop
from weft.training.prepare import prepare_data
from weft.training.settings import settings_from

PICTURES = [picture(1, 37, 53), picture(2, 40, 61), picture(3, 60, 41)]
# (pictures, what the user says, what the model answers), turn by turn
TALKS = [
    [([0], "what?", "a loom"), ([], "and", "no"), ([1], "this?", "a weft")],
    [([2], "tell me", "it is a warp, I think")],
]
RANK, ALPHA = 3, 6


def base_of(name: str, folder: Path) -> tuple[Path, Any, Any]:
    reference, processor = write_pictured(name, folder)
    said = (folder / "tokenizer.json").read_text()
    end = json.loads(said)["model"]["vocab"]["Ċ"]  # a line's end ends an answer
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    path = folder / "tokenizer_config.json"
    asked = "{% if add_generation_prompt %}assistant:{% endif %}"
    template = json.loads(path.read_text())["chat_template"].replace("assistant:", asked)
    (folder / "chat_template.jinja").write_text(template)
    return folder, reference, processor


def talks_in(folder: Path) -> Path:
    for i, one in enumerate(PICTURES):
        Image.fromarray(one).save(folder / f"{i}.png")
    lines = []
    for talk in TALKS:
        messages: list[dict[str, Any]] = []
        for shown, text, answer in talk:
            parts = [{"type": "image", "image": f"{i}.png"} for i in shown]
            messages.append({"role": "user", "content": [*parts, {"type": "text", "text": text}]})
            messages.append({"role": "assistant", "content": answer})
        lines.append(json.dumps({"messages": messages}) + "\n")
    (folder / "talks.jsonl").write_text("".join(lines))
    return folder / "talks.jsonl"


def given(base: Path, run: Path, talks: Path, **sections: dict[str, Any]) -> Any:
    data: dict[str, dict[str, Any]] = {
        "model": {"from": str(base)},
        "lora": {"rank": RANK, "alpha": ALPHA},
        "data": {"conversations": [str(talks)], "holdout": 0.0},
        "train": {"steps": 3, "batch": 2, "context": 160, "device": "cpu"},
        "optimizer": {"lr": 1e-2, "warmup": 0, "schedule": "constant", "weight_decay": 0.0},
        "output": {"folder": str(run), "eval_every": 0, "sample_every": 0},
    }
    for name, more in sections.items():
        data[name] = {**data.get(name, {}), **more}
    return settings_from(data, "config")


def theirs(name: str, processor: Any, talk: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """The inputs of a conversation by transformers' processor, and its labels."""
    text, shown = "", []
    for pictures, question, answer in talk:
        text += f"user: {MARK[name] * len(pictures)}{question}\nassistant: {answer}\n"
        shown += [PICTURES[i] for i in pictures]
    made = processor(images=shown, text=[text], return_tensors="pt")
    made = {k: v for k, v in made.items() if k not in ("num_crops", "num_patches")}
    ids = made["input_ids"][0]
    labels = torch.full_like(ids, -100)
    own = processor.keywords["own"] if name == "pixtral" else processor.tokenizer
    for _, _, answer in talk:
        before, after = (own(t)["input_ids"] for t in ("assistant:", f" {answer}\n"))
        whole = torch.tensor(before + after)
        (at,) = [k for k in range(len(ids)) if torch.equal(ids[k : k + len(whole)], whole)]
        labels[at + len(before) : at + len(whole)] = torch.tensor(after)
    return made, labels


FAMILIES = ("llava", "gemma3", "qwen2_5_vl", "qwen3_vl", "gemma4", "pixtral", "smolvlm", "internvl")


@pytest.mark.parametrize("name, pack", few(
    [(n, p) for n in FAMILIES for p in (False, True)],
    ("gemma3", True), ("qwen2_5_vl", False),
))  # fmt: skip
def test_a_run_follows_peft(name: str, pack: bool, tmp_path: Path) -> None:
    """Losses of three steps, and the adapter after them; PEFT reads what weft writes, and weft
    answers with it as transformers does."""
    peft = pytest.importorskip("peft")
    base, reference, processor = base_of(name, tmp_path / "base")
    told = given(base, tmp_path / "run", talks_in(tmp_path), data={"pack": pack},
                 train={"batch": 1 if pack else 2, "context": 600})  # fmt: skip
    result = loop.train(told)
    config = prepare_data(told, tmp_path / "run")[1]
    first = adapters.fresh(config, adapters.target_roles(config, ()), RANK, told.train.seed)
    inside = "text_model." if name == "smolvlm" else "language_model."
    names = adapters.file_names(config, first, inside)
    layers = f".*{inside[:-1]}.*(q_proj|v_proj)"
    made = peft.get_peft_model(
        reference, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=layers)
    ).eval()
    parameters = dict(made.named_parameters())
    own = {k: parameters[v.replace(".weight", ".default.weight")] for k, v in names.items()}
    with torch.no_grad():
        for key, value in first.items():
            own[key].copy_(torch.tensor(value))
    opt = torch.optim.AdamW(own.values(), 1e-2, (0.9, 0.95), 1e-8, weight_decay=0.0)
    rows = [theirs(name, processor, talk) for talk in TALKS]
    for step in range(3):
        opt.zero_grad()
        parts = [(made(**inputs).logits[0, :-1], labels[1:]) for inputs, labels in rows]
        loss = torch.nn.functional.cross_entropy(*(torch.cat(p) for p in zip(*parts)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own.values(), 1.0)
        opt.step()
        assert result.losses[step] == pytest.approx(loss.item(), rel=1e-4), step
    ours = dict(weft.importers.safetensors.SafetensorsFile(
        result.folder / "adapter_model.safetensors").items())  # fmt: skip
    for key, value in own.items():
        np.testing.assert_allclose(ours[names[key]], value.detach().numpy(), atol=2e-4)
    fresh = peft.PeftModel.from_pretrained(made.unload(), str(result.folder)).eval()
    inputs, _ = rows[0]
    with torch.no_grad():
        want = fresh(**inputs).logits[0].numpy()
    model = weft.load(base, device="oracle", adapters={"new": result.folder})
    prompt = model.need_eyes().prompt(processor_text(name), PICTURES[:2], model.tokenizer, False)
    rows_of: list[np.ndarray] = []
    model.generate(prompt, max_new_tokens=1, adapter="new",
                   logits=lambda ids, row: rows_of.append(row) or row)  # fmt: skip
    np.testing.assert_allclose(rows_of[0], want[-1], atol=2e-3 * np.abs(want).max())


def processor_text(name: str) -> str:
    text = ""
    for pictures, question, answer in TALKS[0]:
        text += f"user: {MARK[name] * len(pictures)}{question}\nassistant: {answer}\n"
    return text


IMAGE = {"type": "image", "image": "0.png"}


@pytest.mark.parametrize("line, said", [
    ({"content": [{"type": "image", "image": "no.png"}]}, r"message 1, part 1: .*no\.png"),
    ({"content": [{"type": "image"}]}, "part 1 names no picture, and images has 0"),
    ({"content": [IMAGE], "images": ["1.png"]}, "images has 1 pictures, and the messages have 0"),
    ({"content": [{"type": "image"}] * 2, "images": ["1.png"]}, "part 2 names no picture"),
    ({"content": [{"type": "sound"}]}, "part 1 is .*sound.*; expected"),
    ({"content": [{"type": "image", "image": 7}]}, "the picture is '7'; expected a path"),
    ({"content": [{"type": "image", "image": "http://some.org/a.png"}]}, "weft fetches nothing"),
    ({"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}]},
     "not valid base64"),
    ({"content": [{"type": "image", "image": "talks.jsonl"}]}, "line 1: .*is not a picture"),
    ({"content": [IMAGE, {"type": "text", "text": "<image>"}]}, "line 1: .*2 places .*1 were"),
    ({"content": "hi", "answer": [IMAGE]}, "message 2, part 1: a picture in an answer"),
    ({"content": "hi", "images": "0.png"}, "images is '0.png'; expected a list"),
])  # fmt: skip
def test_wrong_pictures_are_named(
    line: dict[str, Any], said: str, tmp_path: Path, llava: Path
) -> None:
    talks_in(tmp_path)
    more = {"images": line["images"]} if "images" in line else {}
    messages = [{"role": "user", "content": line["content"]},
                {"role": "assistant", "content": line.get("answer", "no")}]  # fmt: skip
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"messages": messages, **more}))
    with pytest.raises((UsageError, FileFormatError), match=said):
        prepare_data(given(llava, tmp_path / "run", path), tmp_path / "run")


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_of("llava", tmp_path_factory.mktemp("llava"))[0]


def test_pictures_are_read_again_where_they_changed(llava: Path, tmp_path: Path) -> None:
    """A list of images, and data within the line; the same files again cost nothing."""
    talks = talks_in(tmp_path)
    uri = "data:image/png;base64," + base64.b64encode((tmp_path / "1.png").read_bytes()).decode()
    parts = [{"type": "image"}, {"type": "image_url", "image_url": {"url": uri}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "two"}]
    talks.write_text(json.dumps({"messages": messages, "images": ["0.png"]}))
    told = given(llava, tmp_path / "run", talks)
    data = prepare_data(told, tmp_path / "run")[0]
    assert data.pictures is not None and len(data.pictures) == 2 * 16
    kept = prepare_data(told, tmp_path / "run")[0]
    assert kept.tokens == data.tokens
    Image.fromarray(PICTURES[2]).save(tmp_path / "0.png")
    assert prepare_data(told, tmp_path / "run")[0].tokens != data.tokens
    with pytest.raises(UsageError, match=r"give \[lora\] rank"):
        more = given(llava, tmp_path / "two", talks, lora={"rank": 0, "alpha": 16})
        prepare_data(more, tmp_path / "two")


def test_a_run_goes_on_and_evaluates(llava: Path, tmp_path: Path) -> None:
    talks = talks_in(tmp_path)
    more: dict[str, Any] = {
        "data": {"held_out": [str(talks)], "holdout": 0.05}, "train": {"context": 200, "steps": 4},
        "output": {"eval_every": 2, "checkpoint_every": 2},
    }  # fmt: skip
    whole = loop.train(given(llava, tmp_path / "whole", talks, **more))
    told = given(llava, tmp_path / "parts", talks, **more)
    loop.train(told, until=2)
    resumed = loop.train(told, resume=True)
    assert resumed.losses == whole.losses[2:]
    assert [p.read_bytes() for p in (resumed.folder / "adapter_model.safetensors",)] == [
        (whole.folder / "adapter_model.safetensors").read_bytes()]  # fmt: skip
