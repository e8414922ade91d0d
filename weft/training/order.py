"""The batches of a run, from text or conversations, and the number of steps."""

from __future__ import annotations

from dataclasses import replace

from weft.core.errors import UsageError
from weft.core.notices import say
from weft.training.contradictions import warmup_of, warmup_trouble
from weft.training.packing import PackedRowsFile, RowBatches, row_evaluation
from weft.training.prepare import Data
from weft.training.settings import TrainingSettings
from weft.training.tokens import Batch, Batches, evaluation


def counted(settings: TrainingSettings, data: Data) -> TrainingSettings:
    """Returns the settings with `steps` computed from [train] epochs. Raises UsageError if the
    warm-up is longer than that."""
    t = settings.train
    if t.epochs:
        steps = max(-(-batches_of(settings, data).batches(t.epochs) // t.accumulate), 1)
        settings = replace(settings, train=replace(t, steps=steps))
        if trouble := warmup_trouble(settings, steps):
            raise UsageError(trouble)
    if warmup_of(settings.optimizer, settings.train.steps) < settings.optimizer.warmup:
        say(
            f"[optimizer] warmup, by default {settings.optimizer.warmup}, is longer than the run: "
            f"the rate rises through all {settings.train.steps} steps; set it, to have less"
        )
    return settings


def batches_of(settings: TrainingSettings, data: Data) -> Batches | RowBatches:
    """Returns the batches of a run, in order."""
    t = settings.train
    if isinstance(data.train, PackedRowsFile):
        return RowBatches(data.train, t.batch, t.context, t.seed, settings.data.pack)
    return Batches(data.train, t.batch, t.context, t.seed)


def held_batches(settings: TrainingSettings, data: Data) -> list[Batch]:
    """Returns the batches for evaluation."""
    t, most = settings.train, settings.output.eval_batches
    if isinstance(data.held_out, PackedRowsFile):
        return row_evaluation(data.held_out, t.batch, t.context, most)
    return evaluation(data.held_out, t.batch, t.context, most)
