"""Rerankers that are language models: they say yes or no about a query and a document.

The score is the logit of "yes" less that of "no" after the prompt, as sentence-transformers'
CrossEncoder and Qwen3-Reranker's own code compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.core.errors import LimitError, ModelError, UsageError
from weft.importers.hf_config import MAX_CONFIG, Fields, read_object
from weft.models.arch.pooling import activated
from weft.models.run.sentence_folder import inside, module_kind, modules_of
from weft.models.run.sentence_steps import activation_of

if TYPE_CHECKING:
    from weft.models.run.model import Decoder
    from weft.models.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_TURN = "<|im_start|>"
# Qwen3-Reranker's prompt, as its model card has it.
_BEFORE = (
    f"{_TURN}system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    f"{_TURN}user\n"
)
_AFTER = f"<|im_end|>\n{_TURN}assistant\n<think>\n\n</think>\n\n"


class Answers(NamedTuple):
    """The ids of the tokens for yes and no (None: yes alone counts), the function of the score, and
    the instruction that the model's files give (None: none)."""

    yes: int
    no: int | None
    function: Any = "sigmoid"
    instruction: str | None = None

    def score(self, logits: np.ndarray) -> float:
        """Returns the score before its function, from the logits [vocab] after a prompt."""
        return float(logits[self.yes] - (0 if self.no is None else logits[self.no]))

    def applied(self, scores: np.ndarray) -> np.ndarray:
        """Returns the function of scores float32 [N]."""
        return np.asarray(activated(self.function, scores))


def scores(
    model: Decoder, pairs: Sequence[tuple[str, str]], truncate: bool, raw: bool,
    instruction: str | None,
) -> np.ndarray:  # fmt: skip
    """Returns the score of each pair, float32 [N]. Documents that are too long are cut, or without
    `truncate` raise LimitError."""
    prompts = PairPrompts(model, instruction)
    out = np.empty(len(pairs), np.float32)
    for i, (query, document) in enumerate(pairs):
        ids = prompts.fitting(query, document, truncate)
        out[i] = prompts.answers.score(next(iter(model.logit_blocks(ids, len(ids) - 1)))[0])
    return out if raw else prompts.answers.applied(out)


class PairPrompts:
    """The prompts of pairs: by the model's chat template if that knows the roles query and
    document, else in Qwen3-Reranker's form. Raises UsageError for a model that does not rerank."""

    def __init__(self, model: Decoder, instruction: str | None = None) -> None:
        self._tokenizer = tokenizer = model.need_tokenizer("reranking needs one")
        self._room = model.context
        self.answers = _answers(model, tokenizer)
        self._instruction = instruction or self.answers.instruction
        self._template = tokenizer.has_chat and self._takes_pairs()
        if not self._template and len(tokenizer.encode(_TURN, special=False)) != 1:
            raise UsageError(
                f"{model.called}: the model is not a known reranker: neither its chat template "
                f"takes the roles query and document, nor has it Qwen's token {_TURN}"
            )

    def ids(self, query: str, document: str) -> list[int]:
        """Returns the prompt's tokens."""
        if self._template:
            text = self._rendered(query, document)
        else:
            said = self._instruction or INSTRUCTION
            body = f"<Instruct>: {said}\n<Query>: {query}\n<Document>: {document}"
            text = f"{_BEFORE}{body}{_AFTER}"
        return self._tokenizer.encode(text, special=False)

    def _rendered(self, query: str, document: str) -> str:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if self._instruction:
            messages = [{"role": "system", "content": self._instruction}, *messages]
        return self._tokenizer.chat(messages, generation_prompt=False)

    def _takes_pairs(self) -> bool:
        try:
            base, *others = (self._rendered(*p) for p in (("a", "b"), ("c", "b"), ("a", "c")))
        except (UsageError, ModelError):
            return False
        return base not in others

    def fitting(self, query: str, document: str, truncate: bool = True) -> list[int]:
        """Returns the tokens of a pair's prompt, with as much of the document as the context
        holds; without `truncate` a long one raises LimitError."""
        for text in (query, document):
            if not isinstance(text, str):
                raise UsageError(f"expected text, got {type(text).__name__}")
        ids, room = self.ids(query, document), self._room
        if len(ids) <= room:
            return ids
        if not truncate:
            raise LimitError(f"a prompt of {len(ids)} tokens; the context holds {room}")
        own = self._tokenizer.encode(document, special=False)
        keep = len(own) - (len(ids) - room)
        while keep > 0:
            ids = self.ids(query, self._tokenizer.decode(own[:keep], skip_special=False))
            if len(ids) <= room:
                return ids
            keep -= len(ids) - room
        raise LimitError(f"the query and the prompt around it fill the context of {room} tokens")


def _answers(model: Decoder, tokenizer: Tokenizer) -> Answers:
    """Returns the answers that modules.json names, else the tokens "yes" and "no"."""
    folder = model.folder
    path = folder / "modules.json"
    instruction, function = None, "sigmoid"
    if folder.is_dir() and path.exists():
        settings = folder / "config_sentence_transformers.json"
        if settings.exists():
            c = Fields(read_object(settings, MAX_CONFIG), str(settings))
            if c.data.get("activation_fn") is not None:
                function = activation_of(c, "activation_fn")
            named, prompts = c.text("default_prompt_name", None), c.section("prompts")
            if named is not None and prompts is not None:
                instruction = prompts.text(named, None)
        for module in modules_of(path):
            if module_kind(module) == "LogitScore":
                home = inside(folder, module.text("path", ""), module.where)
                c = Fields(read_object(home / "config.json", MAX_CONFIG), str(home / "config.json"))
                most = tokenizer.vocab - 1
                yes = c.integer("true_token_id", 0, most)
                return Answers(
                    yes, c.integer("false_token_id", 0, most, None), function, instruction
                )
    found = [tokenizer.encode(word, special=False) for word in ("yes", "no")]
    if any(len(ids) != 1 for ids in found):
        raise UsageError(
            f'{model.called}: "yes" and "no" are not single tokens, so it is not a reranker'
        )
    return Answers(found[0][0], found[1][0], function, instruction)
