"""A conversation that drops its oldest turns when the context is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.core.errors import LimitError

if TYPE_CHECKING:
    from weft.models.run.model import Decoder

SHARE = 4  # at most a quarter of the context is kept free for the answer


class Talk:
    """Messages with a model that has a chat template. `messages` are all messages, without the
    system message. The model sees those from `start` on, and the system message."""

    def __init__(self, model: Decoder, system: str | None = None) -> None:
        self.model = model
        self.messages: list[dict[str, Any]] = []
        self.pictures: list[Any] = []  # for the next message of the user's
        self._system = [{"role": "system", "content": system}] if system else []
        self.start = 0

    @property
    def whole(self) -> list[dict[str, Any]]:
        """All messages, the system message first."""
        return [*self._system, *self.messages]

    def ask(self, text: str, limit: int | None = None) -> Sequence[int]:
        """Adds the user's text and returns the prompt's token ids, for an answer of at most `limit`
        tokens. Raises LimitError if that text alone exceeds the context. On any error the message
        is dropped."""
        shown: list[dict[str, Any]] = [{"type": "image", "image": p} for p in self.pictures]
        content = [*shown, {"type": "text", "text": text}] if shown else text
        self.messages.append({"role": "user", "content": content})
        try:
            ids = self._fitted(limit)
            self.pictures = []
            return ids
        except BaseException:
            self.take_back()
            raise

    def room(self, ids: Sequence[int], limit: int | None = None) -> int:
        """Returns how many new tokens may follow a prompt."""
        room = self.model.context - len(ids) + 1
        return room if limit is None else min(limit, room)

    def answer(self, text: str) -> None:
        """Adds the model's answer."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Drops the last message."""
        self.messages.pop()
        self.start = min(self.start, len(self.messages))

    def clear(self) -> None:
        """Starts again; the system message stays."""
        self.messages, self.pictures, self.start = [], [], 0

    def _fitted(self, limit: int | None) -> Sequence[int]:
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
