"""Statements of Kernel IR as lines of WGSL."""

from __future__ import annotations

import numpy as np

from weft.backends.wgsl import constants
from weft.backends.wgsl.memory import array_type
from weft.backends.wgsl.values import names
from weft.backends.wgsl.writer import WgslWriter, wtype
from weft.kernel import ir
from weft.kernel.rules import Refusal, Table

MAX_UNROLL = 64  # trips; a longer loop stays a loop
_NO_TILES = Refusal("WGSL has no matrix registers for tiles")


def _block(w: WgslWriter, s: ir.Block) -> None:
    for inner in s.body:
        w.statement(inner)


def _let(w: WgslWriter, s: ir.Let) -> None:
    if not s.mutable:
        known = constants.fold(s.value, w.known)
        if known is not None:
            w.known[s.var.name] = known
            return
    word = "var" if s.mutable else "let"
    for name, text in zip(names(s.var), w.value(s.value), strict=True):
        kind = f": {wtype(s.var.type)}" if s.mutable else ""
        w.emit(f"{word} {name}{kind} = {text};")


def _assign(w: WgslWriter, s: ir.Assign) -> None:
    texts = w.value(s.value)
    if len(texts) > 1:  # all chunks are read before the first is written
        texts = [w.temp(f"({t})") for t in texts]
    for name, text in zip(names(s.var), texts, strict=True):
        w.emit(f"{name} = {text};")


def _for(w: WgslWriter, s: ir.For) -> None:
    start, stop = constants.number(s.start, w.known), constants.number(s.stop, w.known)
    if start is not None and stop is not None:
        trips = range(start, stop, s.step)
        if not trips:
            return
        if (s.unroll and len(trips) <= MAX_UNROLL) or len(trips) == 1:
            _unrolled(w, s, trips)
            return
    name = names(s.var)[0]
    first, last = w.scalar(s.start), w.temp(w.scalar(s.stop))
    w.emit(f"for (var {name} = {first}; {name} < {last}; {name} += {s.step}i) {{")
    _nested(w, s.body)
    w.emit("}")


def _unrolled(w: WgslWriter, s: ir.For, trips: range) -> None:
    outer = dict(w.known)
    for value in trips:
        w.known = outer | {s.var.name: np.array([value], np.int32)}
        w.emit("{")
        _nested(w, s.body)
        w.emit("}")
    w.known = outer


def _nested(w: WgslWriter, block: ir.Block) -> None:
    outer = dict(w.known)
    w.depth += 1
    _block(w, block)
    w.depth -= 1
    w.known = outer


def _if(w: WgslWriter, s: ir.If) -> None:
    known = constants.number(s.cond, w.known)
    if known is not None:
        chosen = s.then if known else s.other
        if chosen is not None:
            w.emit("{")
            _nested(w, chosen)
            w.emit("}")
        return
    w.emit(f"if ({w.scalar(s.cond)}) {{")
    _nested(w, s.then)
    if s.other is not None:
        w.emit("} else {")
        _nested(w, s.other)
    w.emit("}")


def _array(w: WgslWriter, s: ir.Array) -> None:
    source = w.sources[id(s)]
    if s.space == "private":
        w.emit(f"var {source.name}: {array_type(source)};")


def _barrier(w: WgslWriter, s: ir.Barrier) -> None:
    w.emit("workgroupBarrier();")
    if any(b.access == "rw" for b in w.kernel.buffers):
        w.emit("storageBarrier();")


RULES: Table = {
    ir.Block: _block, ir.Let: _let, ir.Assign: _assign, ir.For: _for, ir.If: _if, ir.Array: _array,
    ir.Barrier: _barrier, ir.Prefetch: lambda w, s: None,  # a hint that WGSL lacks
    ir.Tile: _NO_TILES, ir.TileOp: _NO_TILES,
}  # fmt: skip
