"""Measures how well a model predicts a text, and its distance from another model.

A text is read in windows of `context` tokens, each starting `stride` tokens after the previous one.
Only tokens that no earlier window has scored count. So each has at least `context - stride` tokens
before it, except at the beginning of the text. If the tokenizer puts a bos before a text, every
window starts with it. Logits come in blocks of rows; sums are float64.

Perplexity is exp of the mean loss; its standard error is first-order, like that of llama.cpp's
perplexity tool. The Kullback-Leibler divergence is that of the model's distribution from the
reference's, sum p_ref (log p_ref - log p), in nats per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.evaluate.text import EvaluationTokens, Text, tokens_of
from weft.models.run.base import Model
from weft.models.run.model import Decoder

CONTEXT = 512  # default tokens per window


@dataclass(frozen=True)
class Mean:
    """A mean over tokens and its standard error (0 for a single token)."""

    value: float
    error: float

    @staticmethod
    def of(x: np.ndarray) -> Mean:
        n = len(x)
        return Mean(float(x.mean()), float(x.std(ddof=1) / math.sqrt(n)) if n > 1 else 0.0)


@dataclass(frozen=True)
class Against:
    """A model compared with its reference, on the same tokens. In nats per token, `loss` is the
    reference's loss and `excess` the model's minus the reference's; `kl` is the divergence.
    `kl_p99` and `kl_max` are its 99th percentile and maximum. `same_top` is the share of tokens
    with the same most probable token, with the standard error of a binomial share."""

    loss: Mean
    excess: Mean
    kl: Mean
    kl_p99: float
    kl_max: float
    same_top: Mean


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: `tokens` were scored, in windows of `context` at every `stride`;
    `loss` is in nats per token. `nbytes` are the UTF-8 bytes of the scored text (None if ids were
    given)."""

    tokens: int
    context: int
    stride: int
    loss: Mean
    nbytes: int | None
    against: Against | None

    @property
    def perplexity(self) -> Mean:
        return _exp(self.loss)

    @property
    def bits_per_byte(self) -> Mean | None:
        if not self.nbytes:
            return None
        factor = self.tokens / self.nbytes / math.log(2)
        return Mean(self.loss.value * factor, self.loss.error * factor)

    def data(self) -> dict[str, Any]:
        """Returns all figures by name, for JSON; standard errors end in `_error`."""
        means = {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }
        out: dict[str, Any] = {"tokens": self.tokens, "bytes": self.nbytes}
        out |= {"context": self.context, "stride": self.stride}
        if self.against is not None:
            a = self.against
            means |= {
                "reference_loss": a.loss,
                "excess_loss": a.excess,
                "kl": a.kl,
                "same_top": a.same_top,
            }
            out |= {"kl_p99": a.kl_p99, "kl_max": a.kl_max}
        for name, mean in means.items():
            if mean is not None:
                out[name], out[f"{name}_error"] = mean.value, mean.error
        return out


def _exp(loss: Mean) -> Mean:
    value = math.exp(loss.value) if loss.value < 709 else math.inf
    return Mean(value, value * loss.error)


def evaluate(
    model: Model,
    text: Text,
    reference: Model | None = None,
    context: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    note: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Computes the loss of `model` on a text (a string, a Path to a file, a file open in binary, or
    token ids), and its distance from `reference`.

    `context`: tokens per window (512, or fewer if a model holds fewer). `stride`: tokens from one
    window to the next (half a window). `limit`: most tokens of the text. `note(done, total)` is
    called as tokens are scored. Memory holds the ids and some figures of each token, and logits of
    64 rows at a time.

    Raises UsageError for encoders, a text shorter than two tokens or windows that do not fit.
    Raises FileFormatError for text that is not UTF-8, ModelError for NaN logits or a reference with
    another vocabulary or tokenizer.
    """
    first, second = _decoder(model), None if reference is None else _decoder(reference)
    if second is first:
        raise UsageError("a model cannot be its own reference; load it twice, with other options")
    if second is not None and first.config.vocab != second.config.vocab:
        raise ModelError(
            f"{first.folder} has a vocabulary of {first.config.vocab} tokens, {second.folder} one "
            f"of {second.config.vocab}: only models with one vocabulary can be compared"
        )
    tokens = tokens_of(text, first, second, limit)
    room = min(m.context for m in (first, second) if m is not None)
    context, stride = _window(context, stride, room, len(tokens.prefix))
    total = len(tokens.ids) - (not tokens.prefix)
    parts: list[tuple[np.ndarray, ...]] = []
    done = 0
    for ids, skip in _windows(tokens, context, stride):
        for begin, logits, others in _logits(first, second, ids[:-1], skip):
            targets = ids[begin + 1 : begin + 1 + len(logits)]
            parts.append(_figures(logits, others, targets))
            done += len(targets)
            note(done, total)
    figures = [np.concatenate(column) for column in zip(*parts)]
    against = None if second is None else _against(figures)
    return Evaluation(done, context, stride, Mean.of(figures[0]), tokens.nbytes, against)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns float64 [N, V] of logits [N, V]."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def _decoder(model: Model) -> Decoder:
    if not isinstance(model, Decoder):
        raise UsageError(f"{model.folder} is an encoder; a loss on text needs a model that writes")
    return model


def _window(context: int | None, stride: int | None, room: int, prefix: int) -> tuple[int, int]:
    """Returns tokens per window and from one window to the next. Raises UsageError."""
    context = min(CONTEXT, room) if context is None else context
    least = 2 + prefix
    if not least <= context <= room:
        raise UsageError(f"windows of {context} tokens; these models take {least} to {room}")
    stride = max(context // 2, 1) if stride is None else stride
    if not 1 <= stride < context:
        raise UsageError(f"stride is {stride}; windows of {context} take 1 to {context - 1}")
    return context, min(stride, context - prefix)


def _windows(
    tokens: EvaluationTokens, context: int, stride: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yields (ids of a window, number of its rows that predict already scored tokens)."""
    prefix = np.asarray(tokens.prefix, np.int32)
    length, total = context - len(prefix), len(tokens.ids)
    begin = scored = 0
    while True:
        end = min(begin + length, total)
        first = max(scored - begin + len(prefix), 1)  # first token to score, within the window
        yield np.concatenate((prefix, tokens.ids[begin:end])), first - 1
        if end == total:
            return
        begin, scored = begin + stride, end


def _logits(
    model: Decoder, reference: Decoder | None, ids: np.ndarray, skip: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """Yields (row, the model's logits from there on, the reference's)."""
    ours = model.logit_blocks(ids, skip)
    theirs = iter(()) if reference is None else reference.logit_blocks(ids, skip)
    for logits in ours:
        yield skip, logits, next(theirs, None)
        skip += len(logits)


def _figures(
    logits: np.ndarray, others: np.ndarray | None, targets: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Returns for each row its loss; with a reference also the reference's loss, the divergence,
    and a flag for the same most probable token."""
    rows = np.arange(len(targets))
    q = log_softmax(logits)
    loss = -q[rows, targets]
    if others is None:
        return (loss,)
    p = log_softmax(others)
    weight = np.exp(p)
    apart = np.subtract(p, q, out=np.zeros_like(p), where=weight > 0)  # 0 log 0 is 0
    kl = np.maximum((weight * apart).sum(-1), 0.0)  # negative only by rounding
    return loss, -p[rows, targets], kl, logits.argmax(-1) == others.argmax(-1)


def _against(figures: list[np.ndarray]) -> Against:
    loss, theirs, kl, same = figures
    share = float(same.mean())
    error = math.sqrt(share * (1 - share) / max(len(same) - 1, 1))
    return Against(
        Mean.of(theirs),
        Mean.of(loss - theirs),
        Mean.of(kl),
        float(np.percentile(kl, 99)),
        float(kl.max()),
        Mean(share, error),
    )
