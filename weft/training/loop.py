"""`train`: turns settings into a trained model in a folder."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from weft.backends import registry
from weft.core.errors import ModelError, StorageError, UsageError
from weft.core.notices import say
from weft.host.clock import compiling
from weft.host.files import owned, remove_folder, replacing_folder
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Weights
from weft.ranks import Ranks
from weft.training import checkpoints as ck
from weft.training.checks import check_settings, unused
from weft.training.order import batches_of, counted, held_batches
from weft.training.prepare import DATA, Data, prepare_data, prompt_ids
from weft.training.report import Best, Display, Log, draw_curve, interruptible, read_log
from weft.training.resume import check_same, final_folder, resumed, safe_after_fault
from weft.training.room import BEST, LOG, check_room
from weft.training.settings import TrainingSettings
from weft.training.shard import check_ranks
from weft.training.shared import ALONE, lead
from weft.training.step import LEFT_OUT, find_fault
from weft.training.weights import Trained


@dataclass
class TrainingResult:
    """The outcome of a run: steps done, if it was interrupted, and the folder of the model."""

    step: int
    interrupted: bool
    folder: Path
    loss: float = math.nan
    losses: list[float] = field(default_factory=list)
    steps: int = 0  # steps of the whole run
    early: bool = False  # True if it ended early because the held-out loss stopped falling


def train(
    settings: TrainingSettings, resume: bool = False, until: int | None = None, ranks: Ranks = ALONE
) -> TrainingResult:  # fmt: skip
    """Trains as `settings` say, in the folder [output] names; `until` stops (and saves) after that
    step. Several `ranks` can share the work: this process is rank 0, the only one that reads text
    and writes. The others run `follow` (shared.py). Raises UsageError for contradictory settings,
    ModelError if the loss or the weights become NaN or infinite. Raises StorageError (with what is
    safe) if the disk fails, RankError. Raises the errors of reading data and models."""
    run = Path(settings.output.folder)
    if resume:
        ck.latest(run)
    elif ck.found(run):
        raise UsageError(
            f"{run} holds checkpoints of an earlier run; go on with --resume, or name another "
            "[output] folder"
        )
    else:
        check_room(settings, run)
    check_ranks(settings, ranks.size)
    check_settings(settings)
    if (said := unused(settings)) is not None:
        say(said)
    try:
        with owned(run, DATA):
            state = resumed(settings, run) if resume else None
            data, config, raw = prepare_data(settings, run)
            settings = counted(settings, data)
            return _Run(settings, run, data, config, raw, state, ranks).go(until)
    except StorageError as error:
        error.args = (f"{error}\n{safe_after_fault(settings, run)}",)
        raise


class _Run:
    """One run in progress."""

    def __init__(
        self, settings: TrainingSettings, run: Path, data: Data, config: DecoderConfig,
        raw: dict[str, Any], state: tuple[Path, ck.TrainerState] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:  # fmt: skip
        t = settings.train
        self.settings, self.run, self.data = settings, run, data
        self.config, self.raw = config, raw
        self.batches = batches_of(settings, data)
        self.held = held_batches(settings, data)
        self.trained = Trained(settings, config, raw, data.folder)
        self.model = self.trained.model
        self.device = device = registry.get(t.device)  # reports the device, after all checks
        self.start = 0
        if state is not None:
            check_same(state, data, device)
        self.work = lead(settings, self.trained, raw, device, ranks)
        self.work.show(data.pictures)
        if state is not None:
            self.start = state[1].step
            self.work.load(self.trained.read(state[0]), state[1].optimizer)
        self.result = TrainingResult(self.start, False, run, steps=t.steps)

    # -- the loop

    def go(self, until: int | None) -> TrainingResult:
        s = self.settings
        last = until or s.train.steps
        if last > s.train.steps:
            raise UsageError(f"--until {last}: the run has {s.train.steps} steps")
        self.log = Log(self.run / LOG, self.start)
        self.best = Best(read_log(self.run / LOG), s.train.patience)
        show = Display(s.train.steps, self.start)
        with closing(self.log), show as self.display, interruptible() as asked:
            self._greet()
            if not self.start and (self.run / BEST).exists():
                remove_folder(self.run / BEST, self.run)
            if self.settings.model.base and not self.start:
                self._evaluate(0)  # loss of the base model
            number = self.start
            self._before = time.perf_counter()
            while number < last and not asked and not self.best.enough:
                self._step(number)
                number += 1
                self._due(number, number == last)
            self.result.step, self.result.interrupted = number, bool(asked)
            self.result.early = self.best.enough and number < s.train.steps
            if number > self.start:
                self._save(number)
            self._finish(number)
        return self.result

    def _greet(self) -> None:
        count = sum(t.size for _, t in self.model.named_parameters())
        facts = self.data.facts
        self.display.say(
            f"{count:,} parameters on {self.device.info.id}; {len(self.data.train):,} tokens to "
            f"train on, {len(self.data.held_out):,} held out"
        )
        t = self.settings.train
        if self.settings.output.eval_every and self.settings.data.holdout and not self.held:
            self.display.say(
                f"no evaluation: held out is less than a batch, {t.batch} x {t.context}"
            )
        if self.start:
            self.display.say(f"resuming from step {self.start} of {t.steps}")
        else:
            self.log.write(
                step=0, event="start", parameters=count, device=self.device.info.id,
                tokens=len(self.data.train), held_out=len(self.data.held_out),
                vocab=self.config.vocab, python=facts["python"], data=facts["digest"],
                settings=self.settings.as_dict(),
            )  # fmt: skip

    def _batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        parts = self.settings.train.accumulate
        made = [self.batches.at(number * parts + i) for i in range(parts)]
        return np.stack([m[0] for m in made]), np.stack([m[1] for m in made])

    def _step(self, number: int) -> None:
        t = self.settings.train
        ids, targets = self._batch(number)
        key = np.array([t.seed & 0xFFFFFFFF, number], np.uint32)
        before = compiling.total
        out = self.work.step(ids, targets, key)
        updated = bool(out.pop("finite"))
        now = time.perf_counter()
        compiled = compiling.total - before
        rate = ids.size / max(now - self._before - compiled, 1e-9)
        self._before = now
        # A scaled loss that overflows retries with a lower scale.
        skipped = t.precision == "float16" and not math.isfinite(out["norm"])
        fine = math.isfinite(out["loss"]) and (skipped or math.isfinite(out["norm"]))
        if not fine:
            plain, shown = self.work.seen(ids)
            self._stop(number, find_fault(self.model, plain, targets, self.device, shown), out)
        if not (updated or skipped):
            role = self.work.worst(ids, targets, key)
            self._stop(number, f"weight {role} after the update", out)
        self.result.loss = out["loss"]
        self.result.losses.append(out["loss"])
        facts = {**out, "tokens_per_s": round(rate, 1)}
        if compiled > 1e-3:
            facts["compile_s"] = round(compiled, 3)
        if skipped:
            facts["norm"] = 0.0  # JSON has no infinity, and the gradient was not used
        self.log.write(step=number + 1, **facts)
        self.display.step(number + 1, facts)

    def _stop(self, number: int, fault: str, out: Mapping[str, float]) -> NoReturn:
        """Saves the weights, which are still those before the step, and raises ModelError with the
        fault."""
        path = self._save(number)
        self.log.write(step=number + 1, event="not finite", first=fault, loss=repr(out["loss"]))
        raise ModelError(
            f"step {number + 1}: the loss is {out['loss']:g}, the gradient's norm {out['norm']:g}; "
            f"the first tensor that is not finite is {fault}. {path} holds the weights from "
            "before; lower [optimizer] lr, or clip"
        )

    def _due(self, number: int, last: bool) -> None:
        """Does what is due after a step: evaluation, sample, checkpoint."""
        o = self.settings.output
        if o.eval_every and (last or number % o.eval_every == 0):
            self._evaluate(number)
        if number == self.settings.train.steps and not (o.eval_every and self.held):
            self._check_end(number)
        if o.sample_every and (last or number % o.sample_every == 0):
            text = self.sample()
            self.log.write(step=number, sample=text)
            self.display.say(f"step {number}: sample\n{text}\n")
            self._before = time.perf_counter()
        if not last and o.checkpoint_every and number % o.checkpoint_every == 0:
            self._save(number)
            self._before = time.perf_counter()

    def _evaluate(self, number: int) -> None:
        """Logs the mean loss on held-out text."""
        if not self.held or not self.settings.output.eval_every:
            return
        losses = self.work.evaluate(self.held)
        counts = [int((targets != LEFT_OUT).sum()) for _, targets in self.held]
        loss = sum(a * n for a, n in zip(losses, counts)) / sum(counts)
        self._check_loss(number, loss, "held-out loss")
        seen = self.batches.epoch(number * self.settings.train.accumulate)
        self.log.write(
            step=number, eval_loss=loss, perplexity=round(math.exp(min(loss, 50)), 4),
            epoch=round(seen, 3),
        )  # fmt: skip
        self.display.say(f"step {number}: held-out loss {loss:.4f} (epoch {seen:.2f})")
        if self.best.take(number, loss) and self._keeps_best:
            with replacing_folder(self.run / BEST) as folder:
                self.trained.write(folder, "float32")
        self._before = time.perf_counter()

    def _check_end(self, number: int) -> None:
        """Checks the loss of the last weights, if no evaluation has computed it."""
        ids, targets = self._batch(number - 1)
        (loss,) = self.work.evaluate([(ids[0], targets[0])])
        self._check_loss(number, loss, "loss after the last update")

    def _check_loss(self, number: int, loss: float, name: str) -> None:
        """Raises ModelError if finite weights give a loss that is not finite."""
        if math.isfinite(loss):
            return
        saved = [p for p in ck.found(self.run) if p.name != ck.name_of(number)]
        where = f"{saved[-1]} holds weights from before" if saved else "nothing was saved before"
        raise ModelError(
            f"step {number}: the {name} is {loss:g}, though every weight is finite; {where}. "
            "Lower [optimizer] lr or weight_decay"
        )

    def sample(self) -> str:
        """Returns text sampled from the current model."""
        from weft.models.run.loader import decoder_from
        from weft.models.text.token_ids import read_token_ids
        from weft.models.weights.source import Source

        o = self.settings.output
        config, weights = self.trained.whole()  # current config and weights
        folder = self.data.folder
        source = Source(folder, config, read_token_ids(folder, Fields(self.raw, "config")))
        decoder = decoder_from(source, Weights.of(weights), self.device)
        ids = prompt_ids(self.settings, decoder.need_tokenizer("samples need one"))
        out = decoder.generate(
            ids, max_new_tokens=o.sample_tokens, temperature=0.8, top_k=40, seed=0
        )
        between = "\n" if self.settings.data.conversations else ""
        return o.sample_prompt + between + str(out.text)  # type: ignore[union-attr]

    # -- what stays

    @property
    def _keeps_best(self) -> bool:
        return self.settings.output.best or self.settings.train.patience > 0

    def _save(self, number: int) -> Path:
        path = self.run / ck.name_of(number)
        settings, optimizer = self.settings.as_dict(), self.work.state()
        state = ck.TrainerState(number, settings, self.device.kind, self.data.tokens, optimizer)
        self.log.sync()
        with replacing_folder(path) as folder:
            self.trained.write(folder, "float32")
            ck.write_state(folder, state)
        ck.drop_old(self.run, self.settings.output.keep)
        return path

    def _finish(self, number: int) -> None:
        """Writes the finished model and the loss curve."""
        if number == self.settings.train.steps or self.result.early:
            self.result.folder = path = final_folder(self.settings, self.run)
            dtype = self.settings.output.dtype
            if number > self.start or not self.trained.is_written(path, dtype):
                if self._keeps_best and (self.run / BEST).exists():
                    self.model.assign(self.trained.read(self.run / BEST))
                    self.display.say(f"the model is that of step {self.best.step}")
                with replacing_folder(path) as folder:
                    self.trained.write(folder, dtype)
        try:
            draw_curve(read_log(self.run / LOG), self.run / "loss.png", self.run.name)
        except UsageError as error:
            self.display.say(f"no picture: {error}")
