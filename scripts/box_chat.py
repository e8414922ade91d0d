"""What box-chat learns: conversations about Python's library (scripts/box_facts.py), and questions
that it was not trained on, by which it is judged.

    python scripts/box_chat.py data FOLDER       # train.jsonl, held.jsonl, base/
    weft train examples/box-chat.toml
    weft quantize box-chat/model -o box-chat-int8 --scheme int8 --method search
    python scripts/box_chat.py join weft/box-chat box-chat-int8
    python scripts/box_chat.py ask weft/box-chat # the table of docs/box.md

Everything follows from the seed and from Python's own docstrings.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from box_facts import MODULES, Fact, facts
from box_words import (
    BYE,
    BYES,
    CALL,
    CALL_HELD,
    COMMON,
    FOREIGN,
    GREET,
    HELLO,
    LISTS,
    ME,
    MODULE,
    MODULE_HELD,
    MORE_CALL,
    MORE_WHAT,
    MORE_WHERE,
    OFF,
    OFF_HELD,
    PEOPLE,
    PLACES,
    SYSTEMS,
    THANK,
    THANKS,
    THINGS,
    TYPES,
    UNKNOWN,
    WHAT,
    WHAT_HELD,
    WHO,
)

Pair = tuple[str, str]  # question, answer


def said(fact: Fact) -> str:
    """The answer to "what does it do?"."""
    return f"{fact.call or fact.name}: {fact.sentence}"


def called(fact: Fact) -> str:
    """The answer to "how is it called?"."""
    return fact.call if fact.call else f"I do not know how {fact.name} is called."


def placed(fact: Fact) -> str:
    """The answer to "where is it?"."""
    if fact.module:
        return f"It is in the module {fact.module}: import {fact.module}"
    return "It is built in: nothing has to be imported."


class World:
    """All facts, and the ways to name them."""

    def __init__(self) -> None:
        self.facts = facts()
        self.names = {f.name for f in self.facts}
        by_short: dict[str, list[Fact]] = defaultdict(list)
        for f in self.facts:
            by_short[f.short].append(f)
        self.shorts = {k: v for k, v in by_short.items() if k not in self.names}
        self.by_module: dict[str, list[Fact]] = defaultdict(list)
        for f in self.facts:
            if f.module and f.kind == "function":
                self.by_module[f.module].append(f)
        self.meant = {alias for f in self.facts for alias in self.aliases(f)} | set(self.shorts)
        self.words = sorted({w for f in self.facts for w in re.findall(r"[a-z]{3,}", f.short)})

    def aliases(self, f: Fact) -> list[str]:
        """The name, and others that mean this fact alone."""
        out = [f.name]
        parts = f.name.split(".")
        if len(parts) > 2 and ".".join(parts[1:]) not in self.names:
            out.append(".".join(parts[1:]))
        if len(self.shorts.get(f.short, ())) == 1 and len(f.short) > 3:
            out.append(f.short)
        return out

    def ambiguous(self) -> Iterator[Pair]:
        """(short name, which facts it may mean)."""
        for short, found in sorted(self.shorts.items()):
            if 1 < len(found) <= 6:
                names = ", ".join(f.name for f in found[:4])
                yield short, f"Which one? There are {names}."

    def unknown(self, rng: random.Random) -> str:
        """A name that does not exist, made like those that do."""
        while True:
            word = "_".join(rng.sample(self.words, rng.choice((1, 1, 2))))
            if rng.random() < 0.3:
                word = "".join(
                    rng.choice("abcdefghiklmnoprstuvw") for _ in range(rng.randint(3, 9))
                )
            if rng.random() < 0.2:
                word = rng.choice(("get_", "set_", "to_", "is_", "make_", "load_")) + word
            owner = rng.choice((*MODULES, *TYPES, *FOREIGN, ""))
            name = f"{owner}.{word}" if owner else word
            real = {word, f"{owner.rpartition('.')[2]}.{word}"} & self.meant
            if name not in self.meant | set(MODULES) and (owner or not real):
                return name


def off_topic(rng: random.Random, phrasings: tuple[str, ...]) -> str:
    """A question about something else."""
    return rng.choice(phrasings).format(
        place=rng.choice(PLACES), who=rng.choice(PEOPLE), thing=rng.choice(THINGS),
        n=rng.randint(0, 99), m=rng.randint(0, 99),
    )  # fmt: skip


def worn(rng: random.Random, text: str) -> str:
    """The question as somebody may type it."""
    if rng.random() < 0.5:
        text = text[:1].upper() + text[1:]
    if rng.random() < 0.15:
        text = text.rstrip("?")
    return text


def named(rng: random.Random, world: World, f: Fact) -> str:
    """A name of the fact as somebody may type it."""
    name = f.name if rng.random() < 0.65 else rng.choice(world.aliases(f))
    if f.call and rng.random() < 0.2:
        name += "()"
    return f"`{name}`" if rng.random() < 0.1 else name


def lists(world: World, module: str) -> str:
    """Some functions of a module."""
    found = [f.short for f in world.by_module[module]]
    return f"{module} has, for example: {', '.join(found[:6])}."


def turns(rng: random.Random, world: World, f: Fact) -> Iterator[Pair]:
    """Questions about a fact, and those that follow."""
    if rng.random() < 0.12:
        yield worn(rng, rng.choice(CALL).format(named(rng, world, f))), called(f)
    else:
        asked = rng.choice(WHAT).format(named(rng, world, f), kind=f.kind)
        yield worn(rng, asked), said(f)
    while rng.random() < 0.18:
        kind = rng.random()
        if kind < 0.35:
            yield worn(rng, rng.choice(MORE_CALL)), called(f)
        elif kind < 0.55:
            yield worn(rng, rng.choice(MORE_WHERE)), placed(f)
        else:
            f = rng.choice(world.facts)
            yield worn(rng, rng.choice(MORE_WHAT).format(named(rng, world, f))), said(f)


def other(rng: random.Random, world: World, ambiguous: list[Pair]) -> Pair:
    """One question that is not about a fact."""
    kind = rng.random()
    if kind < 0.42:
        return worn(rng, rng.choice((*WHAT, *CALL)).format(
            world.unknown(rng), kind="function")), UNKNOWN  # fmt: skip
    if kind < 0.60:
        return worn(rng, off_topic(rng, OFF)), UNKNOWN
    if kind < 0.74:
        module = rng.choice(list(MODULES))
        return worn(rng, rng.choice(MODULE).format(module)), f"{module} {MODULES[module]}."
    if kind < 0.80:
        module = rng.choice(sorted(world.by_module))
        return worn(rng, rng.choice(LISTS).format(module)), lists(world, module)
    if kind < 0.88:
        short, answer = rng.choice(ambiguous)
        return worn(rng, rng.choice(WHAT).format(short, kind="method")), answer
    asked, answer = rng.choice(((GREET, HELLO), (WHO, ME), (THANK, THANKS), (BYES, BYE)))
    return worn(rng, rng.choice(asked)), answer


def talk(rng: random.Random, pairs: list[Pair]) -> dict[str, Any]:
    """A conversation as weft train reads it."""
    messages = []
    if rng.random() < 0.08:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for question, answer in pairs:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


def training(world: World, rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    """Each fact once a round, and one other question for every two of them."""
    rng = random.Random(seed)
    ambiguous = list(world.ambiguous())
    for _ in range(rounds):
        for f in world.facts:
            pairs = list(turns(rng, world, f))
            if rng.random() < 0.05:
                pairs.insert(0, other(rng, world, ambiguous))
            yield talk(rng, pairs)
        for _ in range(len(world.facts) // 2):
            yield talk(rng, [other(rng, world, ambiguous)])


def held_out(world: World, seed: int) -> dict[str, list[Pair]]:
    """Questions that training does not hold, by kind."""
    rng = random.Random(seed)
    picked = rng.sample(world.facts, 200)
    common = [f for f in world.facts if f.name in COMMON]
    unknown = [rng.choice((*WHAT_HELD, *CALL_HELD)).format(world.unknown(rng)) for _ in range(100)]
    return {
        "what it does, any": [(rng.choice(WHAT_HELD).format(f.name), said(f)) for f in picked],
        "what it does, common": [(rng.choice(WHAT_HELD).format(f.name), said(f)) for f in common],
        "arguments": [(rng.choice(CALL_HELD).format(f.name), called(f)) for f in picked[:100]],
        "modules": [(q.format(m), f"{m} {MODULES[m]}.") for m in MODULES for q in MODULE_HELD],
        "unknown names": [(q, UNKNOWN) for q in unknown],
        "other topics": [(off_topic(rng, OFF_HELD), UNKNOWN) for _ in range(50)],
    }


LICENSE = """\
The weights and the tokenizer in this folder are part of weft. Copyright 2026 the weft authors.
Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0

weft trained them on questions and answers that scripts/box_chat.py makes of the docstrings of
Python 3.11.7's standard library: names, arguments and first sentences. The model answers with such
sentences. They are Copyright (c) 2001-2023 Python Software Foundation, All Rights Reserved, and
licensed under the PSF License Agreement, Version 2: https://docs.python.org/3/license.html
It began as the model in weft/box, whose LICENSE names what that was trained on.
"""
MARKS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "<|endoftext|>{% for m in messages %}"
    "{{ '<|' + ('user' if m.role == 'tool' else 'system' if m.role == 'developer' else m.role)"
    " + '|>' + (m.content or '') | trim + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_base(folder: Path, seed: int) -> None:
    """The model in the box with a token for each mark, and a chat template."""
    import numpy as np

    from weft.hub.box import box_folder
    from weft.importers.hf_config import Fields, read_config
    from weft.models.weights.writing import write_model
    from weft.training.model import config_of, folder_weights

    box = box_folder()
    folder.mkdir(parents=True, exist_ok=True)
    _, weights = folder_weights(box)
    rows = weights["embed"]
    rng = np.random.default_rng(seed)
    more = rng.normal(rows.mean(0), rows.std(0), (len(MARKS), rows.shape[1]))
    weights["embed"] = np.concatenate([rows, more.astype(np.float32)])
    end = len(rows) + MARKS.index("<|end|>")
    raw = {**read_config(box).data, "vocab_size": len(rows) + len(MARKS), "eos_token_id": end}
    write_model(folder, config_of(Fields(raw, "box-chat")), raw, box, weights)
    held = json.loads((box / "tokenizer.json").read_text(encoding="utf-8"))
    first = held["added_tokens"][0]
    held["added_tokens"] += [
        {**first, "id": len(rows) + i, "content": mark} for i, mark in enumerate(MARKS)
    ]
    settings = json.loads((box / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"bos_token": "<|endoftext|>", "eos_token": "<|end|>"}
    _write(folder / "tokenizer.json", json.dumps(held, ensure_ascii=False, separators=(",", ":")))
    _write(folder / "tokenizer_config.json", json.dumps(settings, indent=2))
    _write(folder / "chat_template.jinja", TEMPLATE)
    _write(folder / "generation_config.json", json.dumps({"bos_token_id": 0, "eos_token_id": end}))


def write_data(folder: Path, rounds: int, seed: int) -> None:
    """train.jsonl, held.jsonl and base/ in `folder`."""
    world = World()
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "train.jsonl", training(world, rounds, seed))
    rng = random.Random(seed + 1)
    held = held_out(world, seed + 1)
    pairs = [pair for kind in held.values() for pair in rng.sample(kind, min(40, len(kind)))]
    _write_lines(folder / "held.jsonl", (talk(rng, [pair]) for pair in pairs))
    write_base(folder / "base", seed)
    print(f"{len(world.facts)} facts, {len(pairs)} held-out questions", file=sys.stderr)


def _write_lines(path: Path, talks: Iterator[dict[str, Any]]) -> None:
    _write(path, "".join(json.dumps(t) + "\n" for t in talks))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def join(source: Path, folder: Path) -> None:
    """The quantised model as it comes with weft: its weights in one file."""
    import numpy as np

    from weft.importers.safetensors import open_checkpoint, save_file
    from weft.models.weights.writing import copy_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: np.array(value) for name, value in open_checkpoint(source).items()}
    save_file(folder / "model.safetensors", weights, {"format": "pt"})
    copy_tokenizer(source, folder)
    _write(folder / "config.json", (source / "config.json").read_text(encoding="utf-8"))
    _write(folder / "LICENSE", LICENSE)


def ask(model_path: str, seed: int) -> None:
    """Prints how many held-out questions of each kind are answered right, as a table."""
    import weft

    model: Any = weft.load(model_path, device="cpu")
    print("| questions | asked | right | said not to know |\n| --- | --- | --- | --- |")
    wrong: list[tuple[str, str, str]] = []
    for kind, pairs in held_out(World(), seed + 1).items():
        ids = [model.chat_ids([{"role": "user", "content": q}]) for q, _ in pairs]
        answers = [str(g.text).strip() for g in model.generate(ids, max_new_tokens=100)]
        right = sum(a == want for a, (_, want) in zip(answers, pairs))
        unsure = sum(a == UNKNOWN for a in answers)
        print(f"| {kind} | {len(pairs)} | {right} ({right / len(pairs):.0%}) | {unsure} |")
        wrong += [(q, a, w) for a, (q, w) in zip(answers, pairs) if a != w]
    for question, answer, want in random.Random(seed).sample(wrong, min(12, len(wrong))):
        print(f"\n{question}\n  said: {answer}\n  want: {want}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("data", "join", "ask"))
    parser.add_argument("where", help="data, join: a new folder; ask: a model")
    parser.add_argument("source", nargs="?", type=Path, help="join: the quantised folder")
    parser.add_argument("--rounds", type=int, default=60, help="how often each fact is asked about")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.what == "data":
        write_data(Path(given.where), given.rounds, given.seed)
    elif given.what == "join":
        join(given.source, Path(given.where))
    else:
        ask(given.where, given.seed)


if __name__ == "__main__":
    main()
