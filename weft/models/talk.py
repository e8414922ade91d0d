"""A conversation that goes on where its context is full: the oldest turns leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.errors import LimitError

if TYPE_CHECKING:
    from weft.models.model import Decoder

SHARE = 4  # a quarter of the context, at most, is kept free for the answer


class Talk:
    """Messages with a model that has a chat template. `messages` are all that was said, behind the
    system message where there is one; the model is told those from `start` on, and that one."""

    def __init__(self, model: Decoder, system: str | None = None) -> None:
        self.model = model
        self.messages: list[dict[str, str]] = []
        self._system = [{"role": "system", "content": system}] if system else []
        self.start = 0

    @property
    def whole(self) -> list[dict[str, str]]:
        """All of it, the system message first."""
        return [*self._system, *self.messages]

    def ask(self, text: str, limit: int | None = None) -> list[int]:
        """The prompt's token ids with what the user says next, for an answer of at most `limit`
        tokens. Raises LimitError where that alone is more than the context holds; then, and where
        the template refuses it, nothing was said."""
        self.messages.append({"role": "user", "content": text})
        try:
            return self._fitted(limit)
        except BaseException:
            self.take_back()
            raise

    def room(self, ids: list[int], limit: int | None = None) -> int:
        """The number of new tokens that may follow a prompt."""
        room = self.model.context - len(ids) + 1
        return room if limit is None else min(limit, room)

    def answer(self, text: str) -> None:
        """Takes down what the model said."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forgets the last message."""
        self.messages.pop()
        self.start = min(self.start, len(self.messages))

    def clear(self) -> None:
        """Begins anew; the system message stays."""
        self.messages, self.start = [], 0

    def _fitted(self, limit: int | None) -> list[int]:
        context, start = self.model.context, self.start
        free = min(context // SHARE, context if limit is None else limit)
        turns = [i for i, m in enumerate(self.messages) if m["role"] == "user" and i > start]
        for later in [*turns, None]:
            ids = self.model.chat_ids([*self._system, *self.messages[start:]])
            if len(ids) + free <= context or later is None:
                break
            start = later
        if len(ids) > context:
            raise LimitError(
                f"this message and the system message have {len(ids)} tokens; the context holds "
                f"{context}: say it in fewer words"
            )
        self.start = start
        return ids
