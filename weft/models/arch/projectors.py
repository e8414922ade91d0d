"""The projectors between vision towers and text models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.core.dtypes import float32
from weft.models.arch.layers import linear

if TYPE_CHECKING:
    from weft.models.arch.tower import TowerPass

Value = Any  # np.ndarray or graph Node


def project(run: TowerPass, x: Value, deep: Sequence[Value] = ()) -> Value:
    """Returns the text model's vectors of a tower's x[B * T, hidden], float32 [N, width], picture
    by picture, and the vectors of the mergers that took `deep`. A "head" returns one row per
    picture."""
    c = run.c
    kind = c.projector.kind
    if c.leads and not c.keeps_leads and kind != "head":
        wide = ops.aval(x).shape[1]
        whole = ops.reshape(x, (run.batch, run.length, wide))
        x = ops.slice_(whole, (0, c.leads, 0), (run.batch, run.length, wide))
        x = ops.reshape(x, (-1, wide))
    if not kind:
        return x
    made = [PROJECTORS[kind](run, x)]
    made += [_merger(run, value, f"deep.{k}", True) for k, value in enumerate(deep)]
    return made[0] if len(made) == 1 else ops.concat(made, 1)


def _mlp(run: TowerPass, x: Value, at: str = "project") -> Value:
    from weft.models.arch.tower import acted

    h = acted(run.c.projector.act, run.linear(f"{at}.1", x))
    return run.linear(f"{at}.2", h)


def _normed(run: TowerPass, x: Value) -> Value:
    return _mlp(run, run.norm("project.norm", x, run.c.projector.eps, False))


def _blocks(run: TowerPass, x: Value) -> Value:
    """Returns the patches of each block in one row: [N, block * block * hidden]."""
    block, side, wide = run.c.projector.block, run.c.across, ops.aval(x).shape[1]
    n = side // block
    x = ops.reshape(x, (run.batch, n, block, n, block, wide))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, block * block * wide))


def _means(run: TowerPass, x: Value) -> Value:
    block, wide = run.c.projector.block, ops.aval(x).shape[1]
    x = ops.reshape(_blocks(run, x), (-1, block * block, wide))
    return ops.mul(ops.sum_(x, 1), 1.0 / (block * block))


def _averaged(run: TowerPass, x: Value) -> Value:
    """Phi-4: the vectors of the blocks, one that ends a line, and one that ends tiles."""
    ends = [ops.cast(run.w[f"end.{k}"], float32) for k in ("line", "tiles")]
    return _mlp(run, ops.concat([_means(run, x), *ends], 0))


def _mean(run: TowerPass, x: Value) -> Value:
    """Gemma 3: the mean of each block, an RMS norm of 1 + w, a matrix [in, out]."""
    w = run.w["project.norm.w"]
    x = ops.call("rms_norm", _means(run, x), w, eps=run.c.projector.eps, offset=1.0)
    return linear(run.c.act_dtype, x, run.w["project.w"], None, True)


def _pooled(run: TowerPass, x: Value) -> Value:
    """Gemma 4: patches come block by block; the mean of each is scaled, perhaps standardised."""
    p, wide = run.c.projector, ops.aval(x).shape[1]
    count = p.block * p.block
    x = ops.mul(ops.sum_(ops.reshape(x, (-1, count, wide)), 1), wide**0.5 / count)
    if p.standard:
        shape = ops.aval(x).shape
        bias, scale = (
            ops.broadcast(ops.cast(ops.reshape(run.w[f"project.{k}"], (1, wide)), float32), shape)
            for k in ("bias", "scale")
        )
        x = ops.mul(ops.sub(x, bias), scale)
    return run.linear("project", run.bare_norm(x))


def _bare(run: TowerPass, x: Value) -> Value:
    return run.linear("project", run.bare_norm(x, run.c.projector.eps))


def _normed_blocks(run: TowerPass, x: Value) -> Value:
    return _normed(run, _blocks(run, x))


def _merger(run: TowerPass, x: Value, at: str = "project", late: bool = False) -> Value:
    """Qwen-VL: patches come block by block. The norm is before they are joined, or `late`, after
    it."""
    p = run.c.projector
    count, wide = p.block * p.block, ops.aval(x).shape[1]
    x = ops.reshape(x, (-1, count * wide)) if late else x
    x = run.norm(f"{at}.norm", x, p.eps, p.rms)
    return _mlp(run, ops.reshape(x, (-1, count * wide)), at)


def _patch_merger(run: TowerPass, x: Value) -> Value:
    """Mistral 3: patches come block by block; a row has a block's numbers channel by channel."""
    p = run.c.projector
    count, wide = p.block * p.block, ops.aval(x).shape[1]
    x = run.norm("project.norm", x, p.eps, True)
    x = ops.transpose(ops.reshape(x, (-1, count, wide)), (0, 2, 1))
    return _mlp(run, run.linear("project.merge", ops.reshape(x, (-1, wide * count))))


def _head(run: TowerPass, x: Value) -> Value:
    """Returns a vector per picture: the class's (CLIP), or that of attention by a learned query
    (SigLIP)."""
    c = run.c
    whole = ops.reshape(x, (run.batch, run.length, c.hidden))
    if not c.projector.hidden:
        rows = ops.reshape(ops.slice_(whole, (0, 0, 0), (run.batch, 1, c.hidden)), (-1, c.hidden))
        rows = run.norm("last", rows) if "last.w" in run.w and not c.last_norm else rows
        return run.linear("project", rows) if "project.w" in run.w else rows
    probe = ops.cast(ops.reshape(run.w["head.probe"], (1, c.hidden)), float32)
    query = ops.broadcast(run.linear("head.q", probe), (run.batch, c.hidden))
    keys, values = (run.linear(f"head.{role}", x) for role in "kv")
    q, k, v = (run._heads(rows, run.batch) for rows in (query, keys, values))
    lengths = ops.const(np.full(run.batch, run.length, np.int32))
    more: dict[str, Any] = {"causal": False, "scale": c.head_dim**-0.5, "window": 0}
    out = ops.transpose(ops.call("attention", q, k, v, lengths, **more), (0, 2, 1, 3))
    out = run.linear("head.o", ops.reshape(out, (-1, c.hidden)))
    from weft.models.arch.tower import acted

    h = run.norm("head.norm", out)
    h = run.linear("head.down", acted(c.act, run.linear("head.up", h)))
    return ops.add(out, h)


PROJECTORS: Mapping[str, Callable[[TowerPass, Value], Value]] = {
    "mlp": _mlp, "normed": _normed, "mean": _mean, "averaged": _averaged, "pooled": _pooled,
    "bare": _bare,
    "blocks": lambda run, x: run.linear("project", _blocks(run, x)),
    "normed blocks": _normed_blocks, "merger": _merger, "patch merger": _patch_merger,
    "head": _head,
}  # fmt: skip
