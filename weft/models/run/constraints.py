"""Constraints on a decoder's answers, over its own tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.core.install import how

if TYPE_CHECKING:
    from weft.engine.job import Constraint
    from weft.models.grammar.grammars import Grammars
    from weft.models.run.model import Decoder

Start = Callable[[], "Constraint"]
"""Makes the constraint of one answer, at the start of its text."""


def grammars_of(model: Decoder, marks: Mapping[int, str] = {}) -> Grammars:
    """Returns the compiler of grammars for a model's tokens (`marks`: see `Grammars`), in tenths of
    a second. Raises UsageError without llguidance or a tokenizer, or for tokens that are not
    bytes."""
    try:
        import llguidance  # noqa: F401

        from weft.models.grammar.grammars import Grammars
    except ImportError:
        raise UsageError(f"structured output needs llguidance: {how('serve')}") from None
    tokenizer = model.need_tokenizer("structured output needs one")
    return Grammars(tokenizer, model.config.vocab, model.tokens.eos, marks)


def constraint_of(grammars: Callable[[], Grammars], **wishes: Any) -> Start | None:
    """Returns the one constraint among `wishes`: "json_schema", "regex" or "grammar", each None if
    not wanted. Returns None if all are. Raises UsageError for two, or one that cannot be
    compiled."""
    given = {name: value for name, value in wishes.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot both be followed; give one")
    for name, value in given.items():
        compiler = grammars()
        from weft.models.grammar import grammars as parts

        return compiler.compile(getattr(parts, name)(value))
    return None
