"""One training step, one evaluation and one search for a fault; each is a compiled function."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft import optim
from weft.core.dtypes import float32
from weft.ops.tape import plain
from weft.tensor import autograd
from weft.tensor.compiling import compile as compile_
from weft.tensor.core import Tensor
from weft.training.contradictions import warmup_of
from weft.training.model import TrainableDecoder
from weft.training.parts import Node, joined, rows
from weft.training.settings import OptimizerSettings, TrainSettings

LEFT_OUT = -100  # target of a token that the loss ignores
# Kinds without weight decay: it is for matrices and tables.
UNDECAYED = ("norm", "bias", "scale", "sinks", "decay")
Shown = Mapping[str, Tensor]  # what `PictureTable.inputs` gives, on a device
BLIND: Shown = {}
HUGE = 1e30  # a limit on the gradient's norm that never applies


def make_optimizer(
    model: TrainableDecoder, s: OptimizerSettings, steps: int,
    pieces: Iterable[tuple[str, Tensor, str]] | None = None,
) -> optim.AdamW:  # fmt: skip
    """Returns AdamW over the model's parameters by role, or over pieces of them (name, tensor,
    role). Only matrices and embeddings decay."""
    params: dict[bool, list[tuple[str, Tensor]]] = {True: [], False: []}
    whole = ((role, t, role) for role, t in model.named_parameters())
    for name, t, role in whole if pieces is None else pieces:
        params[model.kind(role) not in UNDECAYED].append((name, t))
    groups: list[dict[str, Any]] = [
        {"params": params[True], "weight_decay": s.weight_decay},
        {"params": params[False], "weight_decay": 0.0},
    ]
    schedule = make_schedule(s, steps)
    groups = [g for g in groups if g["params"]]
    return optim.AdamW(groups, schedule, betas=(s.betas[0], s.betas[1]), eps=s.eps)


def make_schedule(s: OptimizerSettings, steps: int) -> optim.Schedule:
    """Returns the learning rate as a function of the step."""
    warmup = warmup_of(s, steps)
    if s.schedule == "constant":
        return optim.constant(s.lr, warmup)
    kind = optim.cosine if s.schedule == "cosine" else optim.linear
    return kind(s.lr, steps, warmup, s.min_lr)


def make_step(
    model: TrainableDecoder, opt: optim.AdamW, s: TrainSettings, o: OptimizerSettings,
    device: Any, scaler: optim.LossScaler | None = None,
) -> Callable[..., Mapping[str, Tensor]]:  # fmt: skip
    """Returns the step: (ids, targets int32 [A, B, T], key uint32 [2] for dropout, perhaps arrays
    [A, B, T, ...] of `PictureTable.inputs`) -> loss, norm of the gradient, learning rate, a flag
    for a finite update.

    If the loss, gradient, weights or moments would not be finite, the step changes nothing, except
    the scale of the loss with a `scaler`.
    """
    schedule = make_schedule(o, s.steps)

    def train_step(
        ids: Tensor, targets: Tensor, key: Tensor, shown: Shown = BLIND
    ) -> dict[str, Tensor]:
        with autograd.no_grad():
            rate = schedule(opt.count) + 0.0
        return {**update(model, opt, s, o, scaler, ids, targets, key, shown), "lr": rate}

    return compile_(train_step, device=device)


def update(
    model: TrainableDecoder, opt: optim.AdamW, s: TrainSettings, o: OptimizerSettings,
    scaler: optim.LossScaler | None, ids: Tensor, targets: Tensor, key: Tensor | None,
    shown: Shown = BLIND,
) -> dict[str, Tensor]:  # fmt: skip
    """Computes a step: gradients of batches [A, B, T], and the update if it is finite."""
    loss, norm = _gradients(model, s, o, scaler, ids, targets, key, shown)
    with autograd.no_grad():
        good = functools.reduce(operator.and_, opt.finite().values())
        bad = ~(good & finite(norm) & finite(loss))
        # Values other than the check's, so that those need not be stored.
        for p in opt.parameters():
            if p.grad is not None:
                p.grad = good.where(p.grad, 0.0)
    if scaler is None:
        opt.step(unless=bad)
    else:
        scaler.step(opt, unless=bad)
        scaler.update()
    opt.zero_grad()
    return {"loss": loss, "norm": norm, "finite": good}


def _gradients(
    model: TrainableDecoder, s: TrainSettings, o: OptimizerSettings,
    scaler: optim.LossScaler | None, ids: Tensor, targets: Tensor, key: Tensor | None,
    shown: Shown = BLIND,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns (mean loss, norm of the gradient before clipping); the parameters hold the
    gradient."""
    params = [t for _, t in model.named_parameters()]
    model.key = key
    losses: list[Tensor] = []
    part_of = None if s.accumulate == 1 else shares(targets)

    def one(node: Node) -> list[Any] | None:
        if node[1] - node[0] > 1:
            return None
        model.part = node[0]
        a = node[0]
        model.shown = {name: t[a] for name, t in shown.items()}
        share = None if part_of is None else part_of[a]
        loss, made = part_gradients(model, scaler, ids[a], targets[a], share)
        losses.append(loss)
        return made

    total = joined((0, s.accumulate), one, added)
    model.key, model.shown = None, {}
    for p, grad in zip(params, total):
        p.grad = grad
    if scaler is not None:
        scaler.unscale(params)
    held = [p for p in params if p.grad is not None]
    norm = optim.length([q for p in held for q in squares(p.grad)])
    optim.shorten(held, norm, o.clip or HUGE)
    return mean_loss(losses, part_of), norm


def part_gradients(
    model: TrainableDecoder, scaler: optim.LossScaler | None, ids: Tensor, targets: Tensor,
    share: Tensor | None = None,
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """Returns (loss, gradients) of one part, int32 [B, T]. The gradients are those of its `share`
    of the step's loss, by parameter; None where the loss does not depend on it."""
    loss = model.loss(ids, targets)
    own = loss if share is None else loss * share
    (own if scaler is None else scaler.scale(own)).backward()
    made = []
    for _, p in model.named_parameters():
        made.append(p.grad)
        p.grad = None
    return loss.detach(), made


def added(one: list[Any], two: list[Any]) -> list[Any]:
    """Returns the sums of two lists of gradients."""
    with autograd.no_grad():
        return [a if b is None else b if a is None else a + b for a, b in zip(one, two)]


def squares(gradient: Any) -> list[Tensor]:
    """Returns the sum of squares of each piece of a parameter's gradient."""
    cuts = rows(gradient.shape)
    if len(cuts) == 1:
        return [optim.square_sum(gradient)]
    with autograd.no_grad():
        return [optim.square_sum(gradient[start:stop]) for start, stop, _ in cuts]


def shares(targets: Any) -> Any:
    """Returns each part's share of a step's loss, float32 [A]: its share of the counted targets,
    int32 [A, B, T] (a Tensor or an array)."""
    with autograd.no_grad():
        counts = (targets != LEFT_OUT).sum((1, 2))
        counts = counts.cast(float32) if isinstance(counts, Tensor) else np.float32(counts)
        return counts / counts.sum()


def mean_loss(losses: Sequence[Any], share: Any = None) -> Any:
    """Returns the loss of a step: its parts' losses (float32) weighted by their shares, added in
    order."""
    if share is None:
        return losses[0]
    parts = [loss * share[i] for i, loss in enumerate(losses)]
    return sum(parts[1:], parts[0])


def finite(x: Tensor) -> Tensor:
    """Returns for each element if it is neither infinite nor NaN."""
    return (x.abs() <= float(np.finfo(np.float32).max)) & ~x.isnan()


def make_eval(model: TrainableDecoder, device: Any) -> Callable[..., Tensor]:
    """Returns the function (ids, targets int32 [B, T], pictures) -> mean loss, without dropout."""

    def eval_loss(ids: Tensor, targets: Tensor, shown: Shown = BLIND) -> Tensor:
        model.shown = shown
        try:
            with autograd.no_grad():
                return model.loss(ids, targets)
        finally:
            model.shown = {}

    return compile_(eval_loss, device=device)


def find_update(
    model: TrainableDecoder, opt: optim.AdamW, s: TrainSettings, o: OptimizerSettings,
    device: Any, batch: tuple[Any, ...],
) -> str:  # fmt: skip
    """Returns the first weight that a step with this batch (ids, targets, key, pictures) would
    leave with a value or moment that is not finite. Changes nothing."""

    def look(ids: Tensor, targets: Tensor, key: Tensor, shown: Shown) -> dict[str, Tensor]:
        _gradients(model, s, o, None, ids, targets, key, shown)
        found = opt.finite()
        opt.zero_grad()
        return found

    found = compile_(look, device=device)(*batch)
    return next((role for role, good in found.items() if not good.item()), "unknown")


def find_fault(
    model: TrainableDecoder, ids: np.ndarray, targets: np.ndarray, device: Any,
    shown: Mapping[str, Any] = BLIND,
) -> str:  # fmt: skip
    """Returns the name of the first tensor that is not finite when the batches int32 [A, B, T] are
    computed. It looks at weights, layers' results, the logits, the loss, and gradients of
    parameters (from the last layer back)."""
    for role, t in model.tensors.items():
        if not np.isfinite(t.numpy()).all():
            return f"weight {role}"
    names: list[str] = []

    def look(ids: Tensor, targets: Tensor, shown: Shown) -> list[Tensor]:
        flags: list[Tensor] = []
        model.shown = shown

        def watch(name: str, x: Any) -> None:
            names.append(name)
            flags.append(finite(Tensor(plain(x))).all())

        logits = model.logits(ids, watch)
        watch("the logits", logits.value)
        loss = model.loss(ids, targets)
        watch("the loss", loss.value)
        loss.backward()
        for role, t in reversed(list(model.named_parameters())):
            watch(f"the gradient of {role}", t.grad.value)  # type: ignore[union-attr]
            t.grad = None
        model.shown = {}
        return flags

    run = compile_(look, device=device)
    for a in range(len(ids)):
        names.clear()
        for name, good in zip(names, run(ids[a], targets[a], {k: v[a] for k, v in shown.items()})):
            if not good.item():
                return name
    return "the norm of the gradient"
