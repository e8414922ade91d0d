"""Models that judge texts, served; and decoders that judge by saying yes or no."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.engine.job import Job
from weft.models.run.judge import Judge, Text, applied
from weft.models.run.reader import batches
from weft.models.run.rerank import PairPrompts
from weft.models.text.tokenizer import TokenRow
from weft.serve.keys import hold_tokens
from weft.serve.served import LONG, TOGETHER, Served, ServedDecoder


class ServedJudge(Served):
    """A model that judges texts or pairs."""

    model: Judge

    async def logits(self, texts: Sequence[Text], cut: bool) -> tuple[np.ndarray, int]:
        """float32 [n, labels] of texts or pairs, and how many tokens they have; a step of the model
        at a time, in turns with other requests. Raises LimitError for a text that is too long,
        unless it is to be `cut`."""
        if self.model.judging.tokens:
            raise UsageError(f"{self.name} labels tokens, not texts")
        rows = await self._rows(texts, cut)
        out = np.empty((len(rows), len(self.model.labels)), np.float32)
        groups = list(batches([len(row.ids) for row in rows]))
        made = await self.pools.vectors.each(
            lambda group: self.model.logits_of_rows([rows[i] for i in group]), groups
        )
        for group, logits in zip(groups, made):
            out[group] = logits
        return out, sum(len(row.ids) for row in rows)

    async def _rows(self, texts: Sequence[Text], cut: bool) -> list[TokenRow]:
        """The tokens of texts or pairs; long ones queue separately."""
        sizes = [len(t) if isinstance(t, str) else sum(map(len, t)) for t in texts]
        long = max(sizes, default=0) > LONG
        pool, size = (self.pools.long_texts, 1) if long else (self.pools.texts, TOGETHER)
        tokenizer = self.tokenizer if cut else self.whole
        parts = [texts[i : i + size] for i in range(0, len(texts), size)]
        rows = [row for part in await pool.each(tokenizer.read, parts) for row in part]
        most, longest = self.model.max_length, max((len(row.ids) for row in rows), default=0)
        if longest > most:
            raise LimitError(f"the text has {longest} tokens; {self.name} takes {most}")
        hold_tokens(sum(len(row.ids) for row in rows))
        return rows

    async def scores(self, pairs: Sequence[tuple[str, str]], cut: bool) -> tuple[np.ndarray, int]:
        """How well the texts of each pair match, float32 [n], and how many tokens they have."""
        self.model.check_reranker()
        logits, tokens = await self.logits(pairs, cut)
        return applied(self.model.judging.scored, logits[:, 0]), tokens


async def decoder_scores(
    model: ServedDecoder,
    pairs: Sequence[tuple[str, str]],
    cut: bool,
    instruction: str | None,
    salt: bytes,
) -> tuple[np.ndarray, int]:
    """How well query and document of each pair match by a model that says yes or no, float32 [n],
    and how many tokens the prompts have; each is a job of the model's engine, which shares the
    common beginning of the prompts with those of the same `salt` (`guard.key_of`) and counts their
    tokens for its key."""
    prompts = await model.pools.templates.run(PairPrompts, model.model, instruction)
    prompts_of = [(query, document, cut) for query, document in pairs]
    rows = await model.pools.texts.each(lambda given: prompts.fitting(*given), prompts_of)
    hold_tokens(sum(map(len, rows)))
    out = np.empty(len(rows), np.float32)

    def job(i: int, ids: Sequence[int]) -> Job:
        def seen(_: list[int], logits: np.ndarray) -> np.ndarray:
            out[i] = prompts.answers.score(logits)
            return logits

        return Job(tuple(ids), 1, salt=salt, adapter=model.adapter, decoded=False, drafts=False,
                   logits=seen)  # fmt: skip

    answers = model.player.submit([job(i, ids) for i, ids in enumerate(rows)]) if rows else []
    try:
        for answer in answers:
            async for _ in answer:
                pass
    finally:
        for answer in answers:
            answer.close()
    return prompts.answers.applied(out), sum(map(len, rows))
