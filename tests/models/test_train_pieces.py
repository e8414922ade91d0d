"""Long texts are cut for the tokenizer: their tokens and a new tokenizer stay as they were."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from weft.models.text.tokenizer import Tokenizer
from weft.training import corpus, pieces
from weft.training.tokens import train_tokenizer

CUTS = pieces.cuts


def _kinds(folder: Path) -> dict[str, Path]:
    """Tokenizers that join what stands before a word with it in different ways."""
    from tokenizers import Regex, Tokenizer as Raw, decoders, models, pre_tokenizers, trainers

    words = ["def", "return", "x", "word", "über", "日本", "12", "(", "...", "\n", "    "]
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(words, 4000))
    made = {"ours": folder / "ours"}
    made["ours"].mkdir()
    train_tokenizer([text], 300, made["ours"])
    gpt4 = pre_tokenizers.Split(
        Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"),
        "isolated",
    )
    before = {
        "metaspace": pre_tokenizers.Metaspace(),
        "gpt4": pre_tokenizers.Sequence([gpt4, pre_tokenizers.ByteLevel(False, use_regex=False)]),
    }
    for name, pre in before.items():
        raw = Raw(models.BPE(unk_token="?"))
        raw.pre_tokenizer, raw.decoder = pre, decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=["?"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        raw.train_from_iterator([text], trainer)
        made[name] = folder / name
        made[name].mkdir()
        raw.save(str(made[name] / "tokenizer.json"))
    return made


def test_pieces_of_a_text_have_its_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    parts = ["def", "  ", " ", "\n", "\n", "\n\n", " x", "...", "über", "日本", "\t", "1234"]
    texts = ["".join(rng.choice(parts, n)) for n in (0, 1, 40, 900, 9000)]
    cut = partial(pieces.cuts, size=200)
    assert len(cut(texts[-1])) > 20
    assert all(max(np.diff([0, *cut(t), len(t)]), default=0) <= 400 for t in texts)
    for name, folder in _kinds(tmp_path).items():
        whole = Tokenizer(folder, 400).encode_batch(texts, special=False)
        with monkeypatch.context() as m:
            m.setattr(pieces, "cuts", cut)
            found: list[list[int]] = [[]]
            for ids, last in pieces.encoded(Tokenizer(folder, 400), texts):
                found[-1] += ids
                found += [[]] if last else []
        assert found[:-1] == whole, name


def test_pieces_give_the_same_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(pieces.__file__).read_text() * 3
    for name, size in (("whole", 1 << 30), ("cut", 100)):
        monkeypatch.setattr(pieces, "cuts", partial(CUTS, size=size))
        (tmp_path / name).mkdir()
        train_tokenizer([text, "a", text[:50]], 400, tmp_path / name)
    made = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("whole", "cut")]
    assert made[0] == made[1]


@pytest.mark.parametrize("text", ["日" * 3000, "a " * 2000, "x\n" * 3000, " " * 3000, "", "\n"])
def test_cuts_are_bounded(text: str) -> None:
    ends = [0, *CUTS(text, 500), len(text)]
    assert ends == sorted(ends) and max(np.diff(ends)) <= 1000
    assert "".join(pieces.pieces_of([text])) == text


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab\n\u2028\r\x0b "), max_size=60), min_size=1, max_size=3),
    st.floats(0.01, 0.5),
)
def test_the_last_lines_are_those_of_the_whole_text(texts: list[str], share: float) -> None:
    named = [(str(i), text) for i, text in enumerate(texts) if text.strip()]
    train, held = corpus._tails(named, share)
    ends = dict(held)
    assert [(name, text + ends.get(name, "")) for name, text in train] == named
    for name, text in named:
        lines, room = text.splitlines(keepends=True), len(text) * share
        if len(named) == 1:
            room = max(room, len(lines[-1]))
        cut = len(lines)
        while cut > 1 and len(lines[cut - 1]) <= room:
            cut -= 1
            room -= len(lines[cut])
        assert ends.get(name, "") == "".join(lines[cut:])
