"""A rank's share of a step: gradients of its parts of the batch and updates of its pieces of the
weights (the first stage of ZeRO, Rajbhandari et al. 2020), with the communication between ranks.

Gradients go to the owner of a piece, as sums of whole subtrees of parts. The owner adds them by the
same tree that a single process uses (parts.py). Then squares, flags and new weights go to all
ranks. If N is a power of two, each rank sends 2 (N - 1) / N of the gradient's bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import optim
from weft.core.errors import ModelError, UsageError
from weft.program.device import Device
from weft.ranks import Ranks
from weft.tensor import autograd
from weft.tensor.compiling import compile as compile_
from weft.tensor.core import Tensor
from weft.training import parts
from weft.training.model import TrainableDecoder
from weft.training.parts import Node, ParamSlice
from weft.training.settings import TrainingSettings
from weft.training.step import (
    HUGE,
    finite,
    make_eval,
    make_optimizer,
    make_schedule,
    mean_loss,
    part_gradients,
    shares,
)  # fmt: skip
from weft.training.work import Batch

Arrays = list[np.ndarray]


def check_ranks(settings: TrainingSettings, ranks: int) -> None:
    """Raises UsageError if there are more ranks than parts of a batch."""
    t = settings.train
    if ranks > t.accumulate:
        raise UsageError(
            f"{ranks} ranks share the [train] accumulate = {t.accumulate} parts of a step: start "
            f"at most {t.accumulate}, or cut the batch finer (accumulate {ranks}, batch "
            f"{max(t.batch * t.accumulate // ranks, 1)}), which is another run"
        )


class Shard:
    """The pieces that this rank owns, and the Programs that compute its share. All ranks call the
    same methods in the same order."""

    def __init__(
        self, model: TrainableDecoder, settings: TrainingSettings, device: Device, ranks: Ranks
    ) -> None:
        t, o = settings.train, settings.optimizer
        self.model, self.settings, self.ranks = model, settings, ranks
        self._params = dict(model.named_parameters())
        self.shapes = {role: p.shape for role, p in self._params.items()}
        self.pieces = parts.pieces(self.shapes.items())
        if len(self.pieces) < ranks.size:
            raise UsageError(
                f"{ranks.size} ranks share {len(self.pieces)} tensors to train: start fewer"
            )
        self.owner = parts.owners([p.size for p in self.pieces], ranks.size)
        self._rounds = parts.rounds(self.pieces, self.owner, ranks.size)
        self.mine = [p for p, r in zip(self.pieces, self.owner) if r == ranks.rank]
        self._own = [Tensor(self._rows(p), p.name).requires_grad_() for p in self.mine]
        named = [(p.name, own, p.role) for p, own in zip(self.mine, self._own)]
        self.opt = make_optimizer(model, o, t.steps, named)
        self.scaler = optim.LossScaler() if t.precision == "float16" else None
        self._schedule = make_schedule(o, t.steps)
        self.flags: dict[str, bool] = {}  # keyed by piece: True if the last update leaves it finite
        programs = (self._settle, self._part, self._look, self._check, self._commit)
        settle, self._run_part, self._run_look, self._run_check, self._run_commit = (
            compile_(fn, device=device) for fn in programs
        )
        settle()
        self._run_eval = make_eval(model, device)

    # -- what is called

    def step(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> dict[str, float]:
        """Does Work.step, on every rank with the whole batch; returns the same on each."""
        losses, sums = self._own_parts(ids, targets, key)
        grads = self._reduced(sums)
        squares, whole = self._run_look(grads)
        said = [float(s.item()) for s in (*losses, *squares, whole)]
        count = self.settings.train.accumulate
        sizes = [b - a + self.owner.count(r) + 1 for r, (a, b) in enumerate(self._runs())]
        told = self.ranks.gather(np.array(said, np.float32), sizes)
        by_rank = np.split(told, np.cumsum(sizes)[:-1])
        own = [b - a for a, b in self._runs()]
        by_part = list(np.concatenate([v[:n] for v, n in zip(by_rank, own)]))
        loss = mean_loss(by_part, None if count == 1 else shares(targets))
        lengths = np.concatenate([v[n:-1] for v, n in zip(by_rank, own)])
        known = lengths, np.array(all(v[-1] for v in by_rank))
        assert len(lengths) == len(self.pieces) and sum(own) == count
        good = self._finite(self._run_check(grads, *known))
        norm, rate = self._run_commit(grads, *known, np.array(good), np.asarray(loss))
        norm, rate = float(norm.item()), float(rate.item())
        self._share_weights()
        return {"loss": float(loss), "norm": norm, "finite": float(good), "lr": rate}

    def evaluate(self, batches: Sequence[Batch]) -> list[float]:
        """Does Work.evaluate; every rank gets all batches."""
        n = self.ranks.size
        runs = [parts.run_of(r, n, len(batches)) for r in range(n)]
        first, last = runs[self.ranks.rank]
        losses = [self._run_eval(*b).item() for b in batches[first:last]]
        sizes = [b - a for a, b in runs]
        return [float(v) for v in self.ranks.gather(np.array(losses, np.float32), sizes)]

    def refresh(self) -> None:
        """Copies the model's weights into the rank's pieces."""
        with autograd.no_grad():
            for p, t in zip(self.mine, self._own):
                t.assign(Tensor(self._rows(p)).to(t.device))

    # -- what is compiled

    def _settle(self) -> None:
        """Makes the weights state: their buffers stay and receive what the ranks send."""
        with autograd.no_grad():
            for p in self._params.values():
                p.assign(p)

    def _part(
        self, ids: Tensor, targets: Tensor, key: Tensor, share: Tensor
    ) -> tuple[Tensor, list[Any]]:
        self.model.key, self.model.part = key, 0
        loss, made = part_gradients(self.model, self.scaler, ids, targets, share[0])
        self.model.key = None
        for role, grad in zip(self._params, made):
            if grad is None:
                raise ModelError(f"{role} lacks a gradient; train this model on one rank")
        return loss, made

    def _look(self, grads: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Returns the sums of squares, and True if all gradients are finite (for a scaled loss)."""
        whole = self._held(grads, None)
        found = [optim.square_sum(t.grad) for t in self._own]
        self._drop()
        return found, whole

    def _check(self, grads: list[Tensor], squares: Tensor, whole: Tensor) -> list[Tensor]:
        """Returns for each piece if the update leaves it finite."""
        self._held(grads, whole)
        self._clip(squares)
        found = self.opt.finite()
        self._drop()
        return [found[p.name] for p in self.mine]

    def _commit(
        self, grads: list[Tensor], squares: Tensor, whole: Tensor, good: Tensor, loss: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Applies the update; returns norm and learning rate."""
        with autograd.no_grad():
            rate = self._schedule(self.opt.count) + 0.0
        self._held(grads, whole)
        norm = self._clip(squares)
        with autograd.no_grad():
            bad = ~(good & finite(norm) & finite(loss))
            for t in self._own:
                t.grad = good.where(t.grad, 0.0)
        if self.scaler is None:
            self.opt.step(unless=bad)
        else:
            self.scaler.step(self.opt, unless=bad)
            self.scaler.update()
        self.opt.zero_grad()
        return norm, rate

    def _held(self, grads: list[Tensor], whole: Tensor | None) -> Tensor:
        """Gives the pieces their gradients, unscaled. Returns True if all are finite."""
        for t, g in zip(self._own, grads):
            t.grad = g
        if self.scaler is None:
            return Tensor(np.ones((), np.bool_))
        return self.scaler.unscale(self._own, whole)

    def _clip(self, squares: Tensor) -> Tensor:
        with autograd.no_grad():
            norm = optim.length([squares[i] for i in range(len(self.pieces))])
        optim.shorten(self._own, norm, self.settings.optimizer.clip or HUGE)
        return norm

    def _drop(self) -> None:
        self.opt.zero_grad()
        if self.scaler is not None:
            self.scaler.forget()

    # -- parts

    def _runs(self) -> list[Node]:
        """Returns the parts that each rank computes."""
        n, count = self.ranks.size, self.settings.train.accumulate
        return [parts.run_of(r, n, count) for r in range(n)]

    def _subtrees(self, rank: int) -> list[Node]:
        return parts.subtrees((0, self.settings.train.accumulate), *self._runs()[rank])

    def _own_parts(
        self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray
    ) -> tuple[list[Tensor], dict[Node, Arrays]]:
        """Returns the losses of this rank's parts, and the sums of its subtrees by parameter."""
        losses: list[Tensor] = []
        share = shares(targets)

        def one(node: Node) -> Arrays | None:
            part = node[0]
            if node[1] - part > 1:
                return None
            turned = key + np.array([part << 20, 0], np.uint32)  # like TrainableDecoder.part
            loss, made = self._run_part(ids[part], targets[part], turned, share[part : part + 1])
            losses.append(loss)
            return [g.numpy() for g in made]

        sums = {n: parts.joined(n, one, _added) for n in self._subtrees(self.ranks.rank)}
        return losses, sums

    def _reduced(self, sums: dict[Node, Arrays]) -> Arrays:
        """Returns the whole gradient of each of this rank's pieces."""
        place = {role: i for i, role in enumerate(self._params)}
        out: Arrays = []
        for turn in self._rounds:
            sent = [
                [p.of(made[place[p.role]]) for made in sums.values() for p in theirs]
                for theirs in turn
            ]
            mine = turn[self.ranks.rank]
            size = sum(p.size for p in mine)
            taken = [len(self._subtrees(r)) * size for r in range(self.ranks.size)]
            got = self.ranks.exchange([_flat(arrays) for arrays in sent], taken)
            known: dict[Node, np.ndarray] = {}
            for rank, array in enumerate(got):
                nodes = self._subtrees(rank)
                known |= zip(nodes, array.reshape(len(nodes), size))
            root = (0, self.settings.train.accumulate)
            out += _split(parts.joined(root, known.get, np.add), mine)
        return out

    def _finite(self, found: Sequence[Tensor]) -> bool:
        """Returns True if the update leaves everything finite on every rank."""
        sizes = [self.owner.count(r) for r in range(self.ranks.size)]
        flags = self.ranks.gather(np.array([f.item() for f in found], np.uint8), sizes)
        self.flags = {p.name: bool(f) for p, f in zip(self.pieces, flags)}
        return all(self.flags.values())

    def _share_weights(self) -> None:
        """Sends each rank's new pieces to all ranks."""
        made = {p.name: t.numpy() for p, t in zip(self.mine, self._own)}
        left = Counter(p.role for p in self.pieces)
        whole: dict[str, np.ndarray] = {}
        for turn in self._rounds:
            sizes = [sum(p.size for p in theirs) for theirs in turn]
            flat = self.ranks.gather(_flat([made[p.name] for p in turn[self.ranks.rank]]), sizes)
            came = [p for theirs in turn for p in theirs]
            for p, array in zip(came, _split(flat, came)):
                if p.role not in whole:
                    whole[p.role] = np.empty(self._params[p.role].shape, np.float32)
                p.of(whole[p.role])[...] = array
                left[p.role] -= 1
                if not left[p.role]:
                    self.model.assign({p.role: whole.pop(p.role)})

    def _rows(self, p: ParamSlice) -> np.ndarray:
        """Returns a copy of a piece of the model's weights."""
        return np.array(p.of(self._params[p.role].numpy()))


def _added(one: Arrays, two: Arrays) -> Arrays:
    """Returns the elementwise sums of two lists of gradients."""
    return [np.add(a, b) for a, b in zip(one, two)]


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the arrays concatenated, float32."""
    if not arrays:
        return np.zeros(0, np.float32)
    return np.concatenate([a.reshape(-1) for a in arrays])


def _split(flat: np.ndarray, of: Sequence[ParamSlice]) -> Arrays:
    """Splits `flat` into its consecutive pieces."""
    cuts = np.cumsum([p.size for p in of])[:-1]
    return [a.reshape(p.shape) for a, p in zip(np.split(flat, cuts), of)] if of else []
