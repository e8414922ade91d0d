"""Finds settings that contradict one another, though each is valid alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.training.settings import OptimizerSettings, TrainingSettings


def contradictions(s: TrainingSettings) -> Iterator[str]:
    """Yields a message for each contradiction between settings."""
    yield from _data_contradictions(s)
    yield from _loop_contradictions(s)
    if s.lora.rank and not s.model.base:
        yield "[lora] adapts a model: give [model] from"
    unused = [f"[lora] {key}" for key in changed(s.lora)]
    if unused and not s.lora.rank:
        yield f"{', '.join(unused)} without [lora] rank; give a rank, or leave [lora] out"
    m = s.model
    if m.base:
        return
    if m.hidden % m.heads:
        yield f"[model] hidden {m.hidden} is not a multiple of heads {m.heads}"
    if m.family == "gpt2" and m.kv_heads not in (0, m.heads):
        yield f"[model] kv_heads is {m.kv_heads}; gpt2 has as many as heads: leave it out"
    if m.family == "gpt2":
        return
    if m.hidden // m.heads % 2:
        yield f"[model] hidden {m.hidden} / heads {m.heads} is {m.hidden // m.heads}; make it even"
    if m.heads % (m.kv_heads or m.heads):
        yield f"[model] heads {m.heads} is not a multiple of kv_heads {m.kv_heads}"


def _data_contradictions(s: TrainingSettings) -> Iterator[str]:
    d = s.data
    if not d.paths and not d.conversations:
        yield (
            '[data] paths is missing; give files or folders, or "stdlib", or [data] conversations'
        )
    if d.paths and d.conversations:
        yield "[data] paths and conversations: a run trains on text or on conversations; give one"
    if not d.suffixes:
        yield "[data] suffixes is empty; name at least one, such as .txt"
    if d.held_out and "holdout" in changed(d):
        yield "[data] held_out and holdout: files are held out, or a share; give one"
    if d.conversations and "suffixes" in changed(d):
        yield "[data] suffixes: conversations are files ending in .jsonl; leave it out"
    if not d.conversations and (names := [k for k in ("template", "pack") if k in changed(d)]):
        yield f"[data] {', '.join(names)}: for conversations only; give [data] conversations"
    if s.data.template and s.lora.rank:
        yield (
            "[data] template and [lora]: an adapter holds no template; put chat_template.jinja "
            "into the model's folder"
        )
    if doubled := [t for t in s.tokenizer.special if s.tokenizer.special.count(t) > 1]:
        yield f"[tokenizer] special names {doubled[0]!r} twice"


def _loop_contradictions(s: TrainingSettings) -> Iterator[str]:
    t, o, out = s.train, s.optimizer, s.output
    if o.min_lr > o.lr:
        yield f"[optimizer] min_lr {o.min_lr:g} is above lr {o.lr:g}"
    if o.min_lr and o.schedule == "constant":
        yield f"[optimizer] min_lr {o.min_lr:g} is not reached by a constant schedule; leave it out"
    if t.epochs and "steps" in changed(t):
        yield f"[train] steps {t.steps} and epochs {t.epochs:g}: give one of them"
    if not t.epochs and (trouble := warmup_trouble(s, t.steps)):
        yield trouble
    wanted = [f"[train] patience {t.patience}"] if t.patience else []
    wanted += ["[output] best"] if out.best else []
    if wanted and not (out.eval_every and (s.data.holdout or s.data.held_out)):
        yield (
            f"{' and '.join(wanted)}: needs a held-out loss; set [output] eval_every and [data] "
            "holdout or held_out"
        )


def warmup_trouble(s: TrainingSettings, steps: int) -> str | None:
    """Returns a message about an explicit warm-up that is too long for a run of `steps` steps, or
    None. A default warm-up is shortened instead (`warmup_of`)."""
    warmup = s.optimizer.warmup
    if warmup <= steps or "warmup" not in changed(s.optimizer):
        return None
    return (
        f"[optimizer] warmup {warmup} is longer than the run of {steps} steps, so the rate would "
        "never reach lr; lower it, or train for longer"
    )


def warmup_of(o: OptimizerSettings, steps: int) -> int:
    """Returns the steps of the warm-up, at most those of the run."""
    return min(o.warmup, steps)


def changed(section: Any) -> list[str]:
    """Returns the keys of a section that differ from their defaults."""
    plain = type(section)()
    return [
        f.metadata.get("key", f.name)
        for f in fields(section)
        if getattr(section, f.name) != getattr(plain, f.name)
    ]
