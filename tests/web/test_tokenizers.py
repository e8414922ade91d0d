"""The page's tokenizer beside the `tokenizers` library: texts by the thousand, broken bytes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from rows import few
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import weft.web
from weft.hub.box import box_folder
from weft.models.text import tokenizer as weft_tokenizer, tokenizer_plain as plain
from weft.web.tokenizers import for_page

PLAYER = Path(weft.web.__file__).with_name("js")
SCRIPT = Path(__file__).with_name("tokenize.mjs")
TEXTS, STREAMS = [250, 1250], 60  # of each of nine tokenizers

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")

WORDS = [
    "def", "fibonacci(n):", "return", "if", "<", "2", "else", "1)\n\tprint('it''s')", "#", "don't",
    "we'll", "The", "quick", "brown", "fox,", "jumps", "over", "12", "lazy", "dogs", "in", "2026!",
    "Größe", "naïve", "café", "ΣΑΣ", "σας", "İstanbul", "ß", "ſ", "日本語", "中文字", "한국어",
    "العربية", "हिन्दी", "ไทย", "русский", "😀", "👩\u200d👩\u200d👧", "é", "e\u0301", "ﬁ", "Ⅷ", "½",
    "²", "①", "I'M", "'S", "'LL", "<0x41>", "▁", "▁▁", "Ġ", "[CLS]", "<s>", "</s>", "<|end|>",
    "<think>", "https://a.b/c?d=e&f=g", "a_b", "snake_case", "CamelCase", "\x85", "\u3000",
    "\u00a0", "\u200b", "\ufeff", "\u2028", "\r\n", "\x00", "\x1f", "\ufffd", "...", "---",
    "1234567", "3.14", "100%", "U.S.",
]  # fmt: skip
MARKS = ["<[CLS]>", "<s>", "</s>", "<|end|>", "<think>", "[MASK]"]


def text_of(rng: random.Random) -> str:
    """A text like what people and fuzzers type."""
    parts: list[str] = []
    for _ in range(rng.randrange(12)):
        kind = rng.random()
        if kind < 0.5:
            parts.append(rng.choice(WORDS))
        elif kind < 0.6:
            parts.append(rng.choice(" \n\t\r") * rng.randrange(1, 6))
        elif kind < 0.7:
            parts.append(rng.choice(MARKS))
        elif kind < 0.8:
            parts.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(8))))
        elif kind < 0.9:
            parts.append(chr(rng.randrange(0x300, 0x370)) + rng.choice(WORDS)[::-1])
        else:
            parts.append(chr(rng.choice([*range(0x20, 0xD800), *range(0x1F300, 0x1F650)])))
        parts.append(rng.choice(["", " "]))
    return "".join(parts)


def trained(raw: Tokenizer, trainer: trainers.Trainer, post: bool = True) -> str:
    raw.train_from_iterator([" ".join(WORDS), *WORDS] * 3, trainer)
    raw.add_special_tokens([AddedToken("<s>", lstrip=True), AddedToken("<|end|>", rstrip=True)])
    raw.add_tokens([AddedToken("<think>", single_word=True), AddedToken("Größe", normalized=True)])
    if post:
        ends = [("<s>", raw.token_to_id("<s>")), ("<|end|>", raw.token_to_id("<|end|>"))]
        raw.post_processor = processors.TemplateProcessing("<s> $A <|end|>", None, ends)
    return raw.to_str()


def byte_bpe(pattern: str | None) -> str:
    raw = Tokenizer(models.BPE(ignore_merges=pattern == plain.LLAMA3))
    raw.decoder = decoders.ByteLevel()
    if pattern is None:
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        raw.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(raw, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))


def sentencepiece_bpe(metaspace: bool) -> str:
    raw = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:  # Llama 2's
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        raw.normalizer = normalizers.Sequence(steps)
    ends = [decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), *ends])
    known = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=known, limit_alphabet=40)
    data = json.loads(trained(raw, trainer))
    for token in data["added_tokens"]:  # bytes are tokens like others
        token["special"] = not token["content"].startswith("<0x")
    return json.dumps(data)


def unigram() -> str:
    raw = Tokenizer(models.Unigram())
    raw.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"])
    return trained(raw, trainer)


def charsmap(rules: dict[str, str]) -> bytes:
    """What SentencePiece compiles of rules: a trie as a double array, and the texts it leads to."""
    texts, at = b"", {}
    for text in rules.values():
        at[text] = len(texts)
        texts += text.encode() + b"\0"
    words = {key.encode(): at[text] for key, text in rules.items()}
    units, used = {0: 0}, {0}

    def place(node: int, prefix: bytes) -> None:
        under = [key for key in words if key.startswith(prefix)]
        labels = sorted({key[len(prefix)] for key in under if len(key) > len(prefix)})
        labels = [0, *labels] if prefix in words else labels
        base = next(b for b in range(1, 1 << 20) if used.isdisjoint(b ^ c for c in labels))
        used.update(base ^ c for c in labels)
        units[node] |= (base ^ node) << 10 | (prefix in words) << 8
        for label in labels:
            units[base ^ label] = label if label else 1 << 31 | words[prefix]
        for label in filter(None, labels):
            place(base ^ label, prefix + bytes([label]))

    place(0, b"")
    size = max(units) + 1
    trie = b"".join(units.get(n, 0).to_bytes(4, "little") for n in range(size))
    return len(trie).to_bytes(4, "little") + trie + texts


def precompiled() -> str:
    """As XLM-R has it."""
    found = {c: unicodedata.normalize("NFKC", c).lower() for word in WORDS for c in word}
    rules = {c: text for c, text in found.items() if text != c}
    rules |= {"\u200b": "", "\r\n": " ", "e\u0301": "é", "\x1f": " ", "日": "月", "日本": "?"}
    raw = Tokenizer(models.Unigram())
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    raw.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(rules)), spaces])
    cuts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    raw.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    raw.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"])
    return trained(raw, trainer)


def word_piece() -> str:
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    raw.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return trained(raw, trainers.WordPieceTrainer(vocab_size=500, special_tokens=special))


KINDS = {
    "box": lambda: (box_folder() / "tokenizer.json").read_text(encoding="utf-8"),
    "gpt2": lambda: byte_bpe(None),
    "llama3": lambda: byte_bpe(plain.LLAMA3),
    "qwen2": lambda: byte_bpe(plain.QWEN2),
    "llama2": lambda: sentencepiece_bpe(False),
    "metaspace": lambda: sentencepiece_bpe(True),
    "unigram": unigram,
    "precompiled": precompiled,
    "wordpiece": word_piece,
}


def old(c: str) -> bool:
    return c in "".join(WORDS) or unicodedata.ucd_3_2_0.category(c) != "Cn"


@cache
def answers(folder: Path, count: int) -> dict[str, tuple[list, dict, weft_tokenizer.Tokenizer]]:
    """What the player makes of each tokenizer's texts and ids, and those."""
    cases, made = {}, []
    for name, make in KINDS.items():
        rng = random.Random(name)
        home = folder / name
        home.mkdir(exist_ok=True)
        (home / "tokenizer.json").write_text(make(), encoding="utf-8")
        theirs = weft_tokenizer.Tokenizer(home, 1 << 20, 64)
        texts = [text_of(rng) for _ in range(count)]
        if name == "wordpiece":  # the library's table of accents is of 2015, the browser's is not
            texts = ["".join(filter(old, text)) for text in texts]
        size = theirs.size
        ids = [[rng.randrange(size) for _ in range(rng.randrange(24))] for _ in range(STREAMS)]
        # bytes of a text, one token each where there are such
        ids += [theirs.encode(text, special=False) for text in texts[:STREAMS]]
        how = {"around": theirs.around(), "limit": theirs.limit, "lower": False}
        made.append({"json": for_page(theirs).decode(), "how": how, "texts": texts, "ids": ids})
        cases[name] = (texts, ids, theirs)
    call = json.dumps({"js": PLAYER.as_uri(), "files": made})
    done = subprocess.run(["node", SCRIPT], input=call, capture_output=True, text=True, check=True)
    return {
        name: (case, answer)
        for (name, case), answer in zip(cases.items(), json.loads(done.stdout), strict=True)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.mark.parametrize("count", few(TEXTS, TEXTS[0]))
@pytest.mark.parametrize("name", KINDS)
def test_the_page_tokenizes_as_python_does(name, count, folder):
    (texts, ids, theirs), got = answers(folder, count)[name]
    for text, mine, want in zip(texts, got["encoded"], theirs.encode_batch(texts), strict=True):
        assert mine == want, repr(text)
    for each, mine in zip(ids, got["decoded"], strict=True):
        assert mine == [theirs.decode(each, skip) for skip in (True, False)], each
    for each, mine in zip(ids, got["streamed"], strict=True):
        stream = theirs.stream()
        assert mine == [*map(stream.push, each), stream.flush()], each
