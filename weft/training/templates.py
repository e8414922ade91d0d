"""Chooses the chat template that a run writes its conversations with."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import UsageError
from weft.models.text.chat import read_template, template_text
from weft.models.text.tokenizer import Tokenizer
from weft.training.settings import TrainingSettings


def template_of(settings: TrainingSettings) -> str:
    """Returns the source of the template that [data] names, or else the model's own. Raises
    UsageError without one, ModelError, FileFormatError."""
    if given := settings.data.template:
        path = Path(given).expanduser()
        if not path.is_file():
            raise UsageError(f"[data] template = {given!r} is not a file; give a Jinja file")
        return template_text(path)
    source = settings.model.base or settings.tokenizer.base
    found = None
    if source:
        found = read_template(Path(source), Tokenizer(Path(source), 1 << 30).config)
    if found is None:
        what = f"{source} has no chat template" if source else "a new model has no chat template"
        raise UsageError(f'{what}; give one: [data] template = "FILE.jinja"')
    return found
