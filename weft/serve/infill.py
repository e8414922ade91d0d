"""Prompts that ask for the text between a prefix and a suffix.

A model trained for it has tokens that mark the parts (Bavarian et al., "Efficient Training of
Language Models to Fill in the Middle", arXiv:2207.14255). Each family names these tokens
differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from weft.models.text.tokenizer import Tokenizer
from weft.serve.served import ServedDecoder
from weft.serve.wire import HttpError


@dataclass(frozen=True)
class InfillMarks:
    """The tokens before the prefix, before the suffix and before the middle, in this order. Without
    a `middle` the suffix comes first, and the middle follows the prefix."""

    prefix: str
    suffix: str
    middle: str | None


MARKS = (
    InfillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    InfillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    InfillMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    InfillMarks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    InfillMarks("[PREFIX]", "[SUFFIX]", None),  # Codestral
)
ENDS = (
    "<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>", "<file_sep>",
    "<reponame>", "▁<EOT>",
)  # fmt: skip
"""Tokens that end a middle where a model has them, besides its own end tokens."""

FILES = (("<|repo_name|>", "<|file_sep|>"), ("<reponame>", "<file_sep>"))
"""Tokens before a repository's name and before each file, in families that read several files."""


@dataclass(frozen=True)
class Infill:
    """A prompt of token ids, and further tokens that end its answer."""

    ids: list[int]
    ends: tuple[int, ...]


async def infill(
    model: ServedDecoder, prefix: str, suffix: str, files: Sequence[tuple[str, str]] = (),
    unlimited: bool = False,
) -> Infill:  # fmt: skip
    """The prompt for the text between `prefix` and `suffix`; `files` are names and texts of others
    that it may use. unlimited: allows more tokens than the context holds. Raises HttpError for a
    model without tokens for it, and WeftError."""
    known = await model.pools.texts.run(_marks, model.tokenizer)
    marks = next((m for m in MARKS if {m.prefix, m.suffix, m.middle or m.suffix} <= known.keys()),
                 None)  # fmt: skip
    if marks is None:
        raise HttpError(400, f"{model.name} lacks tokens to fill in a middle with; leave suffix "
                        "out", "suffix")  # fmt: skip
    before, after = await model.encoded([prefix, suffix], special=False, unlimited=unlimited)
    lead = model.tokenizer.around()[0]
    ends = tuple(known[text] for text in ENDS if text in known)
    lead = [*lead, *await _others(model, known, files)]
    head, tail = [known[marks.prefix], *before], [known[marks.suffix], *after]
    if marks.middle is None:
        return Infill([*lead, *tail, *head], ends)
    return Infill([*lead, *head, *tail, known[marks.middle]], ends)


async def _others(
    model: ServedDecoder, known: Mapping[str, int], files: Sequence[tuple[str, str]]
) -> list[int]:
    """The ids of other files."""
    if not files:
        return []
    marks = next((m for m in FILES if known.keys() >= set(m)), None)
    if marks is None:
        raise HttpError(400, f"{model.name} lacks tokens for further files; leave input_extra out",
                        "input_extra")  # fmt: skip
    texts = ["repository\n", *(f"{name}\n{text}\n" for name, text in files)]
    coded = await model.encoded(texts, special=False)
    marked = [marks[0], *[marks[1]] * len(files)]
    last = [known[marks[1]], *(await model.encoded(["current\n"], special=False))[0]]
    return [i for mark, ids in zip(marked, coded) for i in (known[mark], *ids)] + last


def _marks(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens named here that a tokenizer has. Code Llama's are plain entries of its
    vocabulary, the others' are added tokens."""
    if tokenizer not in _known:
        data = json.loads(tokenizer.file())
        vocab = data["model"].get("vocab")
        found = dict(vocab) if isinstance(vocab, dict) else {}
        found |= {token["content"]: token["id"] for token in data.get("added_tokens") or ()}
        named = {text for m in MARKS for text in (m.prefix, m.suffix, m.middle)}
        named |= {*ENDS, *(text for pair in FILES for text in pair)}
        _known[tokenizer] = {text: found[text] for text in named if text and text in found}
    return _known[tokenizer]


_known: WeakKeyDictionary[Tokenizer, dict[str, int]] = WeakKeyDictionary()
