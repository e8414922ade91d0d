"""Selects the fields of config.json that a family's reader sees, and checks that weft supports the
model's task. Unknown fields are named on stderr."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.family_fields import ALIASES, Table
from weft.models.arch.inert_fields import CONFIG, FAMILY, REFUSED, SENSES

Task = Literal["text", "vectors"]
# Ends of class names in checkpoints for each task.
_ENDS: Mapping[Task, str] = {
    "text": r"ForCausalLM|LMHeadModel|ForConditionalGeneration",
    "vectors": r"Model|ForMaskedLM|ForPreTraining",
}
_OTHERS = {
    "ForSequenceClassification": "a classifier or reranker, which scores texts",
    "ForTokenClassification": "a tagger, which labels tokens",
    "ForQuestionAnswering": "a finder of answers within a text",
    "ForMultipleChoice": "a chooser between texts",
    "ForNextSentencePrediction": "a judge of whether one text follows another",
    "ForMaskedLM": "a model that fills gaps in texts",
    "RewardModel": "a reward model, which scores texts",
    "ForReward": "a reward model, which scores texts",
    "ForCausalLM": "a writer of text",
    "LMHeadModel": "a writer of text",
    "ForConditionalGeneration": "a writer of text",
    "DoubleHeadsModel": "a writer with a classifier beside",
    "Model": "a model without an output layer, which gives vectors",
}
_WANTED = {"text": "models that write text", "vectors": "models that give vectors"}


def check_architecture(raw: Fields, task: Task) -> None:
    """Raises ModelError if `architectures` names a class for another task than `task`, the one that
    weft supports for the model's type."""
    names = raw.texts("architectures", 64)
    if not names or any(re.search(f"(?:{_ENDS[task]})$", n) and _plain(n, task) for n in names):
        return
    what = next((said for end, said in _OTHERS.items() if names[0].endswith(end)), "something else")
    kind = raw.text("model_type", "")
    raise ModelError(
        f"{raw.where}: {shown(names[0], 80)} is {what}; of type {shown(kind, 40)} weft runs "
        f"{_WANTED[task]}"
    )


def writes_text(raw: Fields) -> bool:
    """Returns True if `architectures` names a causal model first."""
    names = raw.texts("architectures", 64)
    return bool(names) and re.search(r"(?:ForCausalLM|LMHeadModel)$", names[0]) is not None


def _plain(name: str, task: Task) -> bool:
    """Returns False for an encoder's class that writes or scores, though its name has a known
    end."""
    return task == "text" or not re.search(r"(?:LMHead|Reward|DoubleHeads)Model$", name)


def seen(raw: Fields, kind: str, table: Table, also: Mapping[str, str] = {}) -> Fields:
    """Returns the fields of `table`, with its values for those that `raw` leaves out. Raises
    ModelError for fields that change the results of any model."""
    refuse_changes(raw, table)
    known = (table, CONFIG, FAMILY.get(kind, {}), ALIASES.get(kind, {}), also)
    data = {k: v for k, v in raw.data.items() if not k.startswith(SENSES)}
    say_unknown(raw.where, {k: v for k, v in data.items() if k not in REFUSED}, *known)
    given = {k: v for k, v in data.items() if k in table}
    for alias, name in ALIASES.get(kind, {}).items():
        if data.get(alias) is not None:
            given[name] = data[alias]
    if given.get("rope_parameters", 0) is None:  # transformers uses its default then
        del given["rope_parameters"]
    return raw.having({**table, **given})


def refuse_changes(raw: Fields, table: Mapping[str, Any]) -> None:
    for name, plain in REFUSED.items():
        value = raw.data.get(name)
        if name in table or value is None or value in plain:
            continue
        raise ModelError(f"{raw.where}: {name} = {shown(value)} is not supported")
