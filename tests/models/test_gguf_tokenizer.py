"""Byte-level tokenizers from GGUF files: against the Hugging Face tokenizer whose vocabulary the
file holds, and against transformers' reading of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import regex
from gguf_vocab import CONTROL, NORMAL, TEXTS, USER, byte_level, loaded

from weft.models.text.gguf_tokenizer import PRE


def test_byte_level_ids_are_those_of_hugging_face(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    model = loaded(folder, tmp_path / "m.gguf", byte_level(bytes_tokenizer))
    assert model.tokenizer is not None
    for text in TEXTS:
        ids = model.tokenizer.encode(text)
        assert ids == bytes_tokenizer.encode(text), text
        assert model.tokenizer.decode(ids) == bytes_tokenizer.decode(ids, skip_special_tokens=True)
    assert model.tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert model.tokens.eos == (1,) and model.tokens.bos == 0
    assert model.tokenizer._coder._near is not None  # no child process is needed


@pytest.mark.parametrize("pre", ["llama-bpe", "smaug-bpe", "qwen2", "gpt-4o", "tekken"])
def test_patterns_are_those_of_transformers(
    pre: str, folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    """transformers reads the same file, with patterns of its own."""
    from transformers import AutoTokenizer

    path = tmp_path / "m.gguf"
    write = byte_level(bytes_tokenizer, pre, add_bos_token=False)
    ours = loaded(folder, path, write).tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    assert ours is not None
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text


_LIKE_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def test_patterns_that_follow_one_another(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    """ "default" and "smollm" split by several patterns: here with another engine, on whose pieces
    the tokenizer works one by one."""
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    series = {
        "default": (r"[\p{P}\$\+<=>\^~\|]+", words, r"\p{N}+", "[0-9][0-9][0-9]"),
        "smollm": (r"\p{N}", words),
        "exaone4": (words,),
        "glm4": (_LIKE_GPT4.replace("NUMBER", r"\p{N}{1,3}"),),
        "stablelm2": (_LIKE_GPT4.replace("NUMBER", r"\p{N}"),),
        "hunyuan": (_LIKE_GPT4.replace("NUMBER", r"\p{N}"),),
        "deepseek-v3": (
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
        "deepseek-llm": (  # its letters are of no scripts in these texts that lack some
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ),
        "qwen35": (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    }
    whole = loaded(folder, tmp_path / "whole.gguf", byte_level(bytes_tokenizer)).tokenizer
    assert whole is not None
    for pre, patterns in series.items():
        made = loaded(folder, tmp_path / f"{pre}.gguf", byte_level(bytes_tokenizer, pre)).tokenizer
        assert made is not None
        for text in TEXTS:
            if "<s>" in text:
                continue
            pieces = [text]
            for pattern in patterns:
                pieces = [part for piece in pieces for part in isolated(pattern, piece)]
            want = [i for piece in pieces for i in bpe(bytes_tokenizer, piece)]
            assert made.encode(text) == want, (pre, text)


def isolated(pattern: str, text: str) -> list[str]:
    """The matches, and what lies between them."""
    out, at = [], 0
    for m in regex.finditer(pattern, text):
        out += [text[at : m.start()], m.group()]
        at = m.end()
    return [piece for piece in [*out, text[at:]] if piece]


def bpe(hf: Any, piece: str) -> list[int]:
    """Merges on one piece, whatever it holds: the model itself, without what goes before it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    spelled = "".join(letters[b] for b in piece.encode())
    return [t.id for t in hf.backend_tokenizer.model.tokenize(spelled)]


def test_some_take_a_piece_that_is_a_token_whole(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    """Llama 3's do, though no merges lead there."""
    plain = byte_level(bytes_tokenizer)
    model = json.loads(bytes_tokenizer.backend_tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get)[:-1], "qzqz"]
    more = {"tokens": tokens, "merges": [" ".join(m) for m in model["merges"]
                                         if "".join(m) in tokens]}  # fmt: skip
    for pre, first in (("llama-bpe", [0]), ("qwen2", [])):
        made = loaded(folder, tmp_path / f"{pre}.gguf", byte_level(bytes_tokenizer, pre, **more))
        assert made.tokenizer is not None
        ids = made.tokenizer.encode("qzqz")
        assert (ids == [*first, len(tokens) - 1]) == (pre == "llama-bpe"), pre
    assert loaded(folder, tmp_path / "plain.gguf", plain).tokenizer is not None


def test_control_tokens_are_special_and_a_users_are_not(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    model = json.loads(bytes_tokenizer.backend_tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get)[:-2], "<think>", "<|im_end|>"]
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 5) + [USER, CONTROL]
    merges = [" ".join(m) for m in model["merges"] if "".join(m) in tokens]
    write = byte_level(bytes_tokenizer, tokens=tokens, token_type=types, merges=merges)
    made = loaded(folder, tmp_path / "m.gguf", write)
    assert made.tokenizer is not None
    n = len(tokens)
    ids = made.tokenizer.encode("a<think>b<|im_end|>")
    assert ids[1] == n - 2 and ids[-1] == n - 1 and len(ids) == 4
    assert made.tokenizer.decode(ids) == "a<think>b"
    assert made.tokenizer.decode(ids, skip_special=False) == "a<think>b<|im_end|>"
    assert made.tokens.eos == (1, n - 1)  # it ends a turn, though no key says so


def test_bos_and_eos_go_where_the_file_says(
    folder: Path, bytes_tokenizer: Any, tmp_path: Path
) -> None:
    bare = bytes_tokenizer.encode("hello")
    for i, (keys, want) in enumerate((
        ({}, bare), ({"add_bos_token": True}, [0, *bare]),
        ({"add_eos_token": True}, [*bare, 1]),
        ({"add_bos_token": True, "add_eos_token": True}, [0, *bare, 1]),
    )):  # fmt: skip
        made = loaded(folder, tmp_path / f"{i}.gguf", byte_level(bytes_tokenizer, **keys))
        assert made.tokenizer is not None
        assert made.tokenizer.encode("hello") == want
        assert made.tokenizer.encode("hello", special=False) == bare


def test_the_chat_template_is_the_files(folder: Path, bytes_tokenizer: Any, tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    talk = [{"role": "user", "content": "weave a weft"}]
    write = byte_level(bytes_tokenizer, **{"tokenizer.chat_template": template})
    made = loaded(folder, tmp_path / "m.gguf", write)
    bytes_tokenizer.chat_template = template
    want = bytes_tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert made.tokenizer is not None and made.tokenizer.has_chat
    assert made.tokenizer.chat(talk) == want
    assert made.chat_ids(talk) == bytes_tokenizer.encode(want, add_special_tokens=False)
    assert not loaded(folder, tmp_path / "n.gguf", byte_level(bytes_tokenizer)).tokenizer.has_chat


def test_every_name_has_patterns_that_are_trusted() -> None:
    from weft.models.text.tokenizer_plain import PATTERNS

    slow = {r"\s+$"}  # DeepSeek LLM's, quadratic in a run of spaces: a child splits by it
    assert all(set(pre.patterns) <= PATTERNS | slow for pre in PRE.values())
    assert not slow & PATTERNS
