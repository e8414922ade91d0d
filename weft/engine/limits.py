"""Limits of what a job may ask of a runner: its ids, its context, its pages, its place to wait."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import BusyError, LimitError, UsageError
from weft.engine.job import Inserting, Job, PagedRunner
from weft.engine.sequence import OWNER, SequenceState, needed

SHIFTED = 10  # contexts that an answer may fill which goes on where one is full
SHARE = 8  # in a full queue an owner may still have an eighth of it


def limit_of(job: Job, runner: PagedRunner, vocab: int) -> int:
    """Returns how many new tokens a job may have. Raises UsageError for an empty prompt, ids
    outside the vocabulary, an unknown adapter or numbers out of range, LimitError for a prompt
    longer than the context or an answer too long for the pages."""
    prompt = job.prompt
    if not prompt:
        raise UsageError("the prompt is empty; give at least one token id")
    for i in (min(prompt), max(prompt), *(i for i, _ in job.sampling.logit_bias[-1:])):
        if not 0 <= i < vocab:
            raise UsageError(f"token id {i} is outside the vocabulary 0..{vocab - 1}")
    if job.insets is not None:
        _check_insets(job, runner)
    if not runner.knows(job.adapter):
        raise UsageError(f"unknown adapter {job.adapter!r:.100}")
    tops = (job.logprobs or 0, job.prompt_logprobs or 0)
    if min(*tops, job.max_new_tokens) < 0 or max(tops) > vocab:
        raise UsageError(
            f"max_new_tokens is {job.max_new_tokens}, logprobs {max(tops, key=abs)}; expected "
            f"0 or more, and at most {vocab} logprobs"
        )
    if len(prompt) > runner.context:
        raise LimitError(f"the prompt has {len(prompt)} tokens; the context holds {runner.context}")
    if job.shift is None:
        limit = min(job.max_new_tokens, runner.context - len(prompt) + 1)
    else:
        _check_shift(job, runner)
        limit = min(job.max_new_tokens, SHIFTED * runner.context)
    pages = needed(min(len(prompt) + max(limit, 1) - 1, runner.context), runner.page)
    if pages > runner.pages:
        raise LimitError(
            f"{len(prompt)} tokens and {limit} new ones take {pages} pages of {runner.page}; "
            f"there are {runner.pages}: ask for fewer new tokens"
        )
    return limit


def _check_shift(job: Job, runner: PagedRunner) -> None:
    """Raises UsageError for a job whose context cannot be shifted."""
    assert job.shift is not None
    if not 0 <= job.shift <= runner.context // 2:
        raise UsageError(f"shift keeps {job.shift} tokens; expected 0 to half of the context, "
                         f"{runner.context // 2}")  # fmt: skip
    if job.insets is not None:
        raise UsageError("shift is for prompts of text alone")


def _check_insets(job: Job, runner: PagedRunner) -> None:
    """Raises UsageError for insets that the runner does not take."""
    insets = job.insets
    assert insets is not None
    if insets.length != len(job.prompt):
        raise UsageError(f"insets for {insets.length} tokens; the prompt has {len(job.prompt)}")
    why = runner.takes(insets) if isinstance(runner, Inserting) else "the model reads text alone"
    if why:
        raise UsageError(why)
    if job.prompt_logprobs is not None:
        raise UsageError("prompt_logprobs are for prompts of text alone")


def check_queue(places: Sequence[SequenceState], queue: int, free: int, salt: bytes) -> None:
    """Raises BusyError for a job of `salt` if `places` wait, more than the queue holds and the
    slots that are free take. In a full queue an owner with few jobs in it still has place, up to
    twice the queue, so that one owner cannot keep out all others."""
    if len(places) < queue + free:
        return
    own = sum(place.owner == salt[:OWNER] for place in places)
    if own >= queue // SHARE or len(places) >= 2 * queue + free:
        raise BusyError(f"{len(places)} jobs wait, as many as may, {own} of them of this key; try "
                        "again later")  # fmt: skip
