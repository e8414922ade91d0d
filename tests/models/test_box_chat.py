"""The second model in the box answers what it learnt, follows up, and owns to what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.hub.box import box_folder

SCRIPTS = Path(weft.__file__).parent.parent / "scripts"
HELLO = "Hello! Ask me about Python's standard library"
UNKNOWN = "I do not know that. I only know parts of Python's standard library."
JOIN = "os.path.join(a, *p): Join two or more pathname components, inserting '/' as needed."
TALKS = [
    (["what does os.path.join do?"], JOIN),
    (["What is `os.path.join`?"], JOIN),
    (["hello"], HELLO),
    (["who are you?"], "I am box-chat"),
    (["what does json.dumps do?"], "json.dumps(obj"),
    (["what is the json module for?"], "json reads and writes JSON text."),
    (["what does os.path.join do?", "which module is it in?"], "It is in the module os.path"),
    (["what does os.path.join do?", "what are its arguments?"], "os.path.join(a, *p)"),
    (["what is the weather in Paris?"], UNKNOWN),
    (["what does numpy.frobnicate do?"], UNKNOWN),
    (["tell me a joke"], UNKNOWN),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return weft.load("box-chat", device="cpu", max_batch=1)


def test_it_is_small() -> None:
    assert sum(f.stat().st_size for f in box_folder("box-chat").iterdir()) <= 6e6


@pytest.mark.parametrize("asked, begins", TALKS, ids=[" / ".join(a) for a, _ in TALKS])
def test_it_answers(model: Any, asked: list[str], begins: str) -> None:
    messages: list[dict[str, str]] = []
    text = ""
    for question in asked:
        messages.append({"role": "user", "content": question})
        made = model.generate(model.chat_ids(messages), max_new_tokens=100)
        text = str(made.text)
        assert made.finish_reason == "eos"
        messages.append({"role": "assistant", "content": text})
    assert text.startswith(begins), text


def test_its_data_are_made_alike_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The questions follow from the seed and from this Python's docstrings; none that is held out
    is trained on."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import box_chat

    world = box_chat.World()
    one, two = (list(box_chat.training(world, 1, 1)) for _ in range(2))
    assert one == two and len(one) == len(world.facts) * 3 // 2
    asked = {m["content"] for talk in one for m in talk["messages"] if m["role"] == "user"}
    held = {q for pairs in box_chat.held_out(world, 2).values() for q, _ in pairs}
    assert len(held) > 500 and not asked & held
    for name in [n for n in sys.modules if n.startswith("box_")]:
        monkeypatch.delitem(sys.modules, name)
