"""A decoder's token vectors: whole texts side by side, without caches and without output layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft import ops
from weft.models.arch.altup import joined
from weft.models.arch.config import DecoderConfig, LayerRange
from weft.models.arch.decoder import body, whole
from weft.models.arch.hooks import INFERENCE
from weft.models.arch.layers import Pass

Value = Any  # np.ndarray or graph Node


def forward(c: DecoderConfig, w: Mapping[str, Value], ids: Value, lengths: Value) -> Value:
    """Returns token vectors float32 [B, T, hidden] after the last norm, of ids int32 [B, T]. Row b
    has lengths[b] tokens; later positions are not read, and their results are undefined."""
    batch, length = ops.aval(ids).shape
    pos, past = whole(c, batch, length)
    past = replace(past, lengths=lengths)
    layers = replace(c, run=LayerRange(0, c.layers, embeds=True))
    x = body(layers, w, ops.reshape(ids, (batch * length,)), pos, past, INFERENCE)
    p = Pass(c, w, {}, past, INFERENCE)
    x = p.norm("norm", x if c.altup is None else joined(p, x))
    return ops.reshape(x, (batch, length, c.hidden))
