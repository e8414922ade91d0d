"""Kernels as aligned text: complete (two different verified kernels never print the same) and
deterministic, because the disk caches hash it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.ir import Expr, Kernel, Stmt, Type

_SHORT = {
    **{d.name: f"{d.kind[0]}{8 * d.itemsize}" for d in dt.INTS}, "bool": "bool", "float16": "f16",
    "bfloat16": "bf16", "float32": "f32", "float64": "f64",
}  # fmt: skip
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip


def type_text(t: Type) -> str:
    """`f32`, or `f32x8` for eight lanes."""
    short = _SHORT[t.dtype.name]
    return short if t.lanes == 1 else f"{short}x{t.lanes}"


def _const(e: ir.Const) -> str:
    dtype = e.type.dtype
    if dtype.is_float:
        value = repr(float(e.value))
    else:
        value = str(bool(e.value)).lower() if dtype.kind == "bool" else str(int(e.value))
    if e.type is ir.I32 or e.type == ir.I32:
        return value
    return f"{value}:{type_text(e.type)}"


def _binary(e: ir.Binary) -> str:
    a, b = expr_text(e.a), expr_text(e.b)
    symbol = _INFIX.get(e.op)
    return f"({a} {symbol} {b})" if symbol else f"{e.op}({a}, {b})"


def _load(e: ir.Load) -> str:
    lanes = f"x{e.type.lanes}" if e.type.lanes > 1 else ""
    mask = f" if {expr_text(e.mask)}" if e.mask is not None else ""
    return f"load{lanes} {e.source.name}[{expr_text(e.index)}{mask}]"


def _vec(e: ir.Vec) -> str:
    args = ", ".join([expr_text(a) for a in e.args])
    lanes = f"; {','.join(map(str, e.lanes))}" if e.lanes else ""
    return f"{e.op}:{type_text(e.type)}({args}{lanes})"


def _collective(e: ir.Collective) -> str:
    args = ", ".join([expr_text(a) for a in e.args])
    return f"{e.op}:{type_text(e.type)}({args}; {e.attr})"


def expr_text(e: Expr) -> str:
    """One expression, fully parenthesised; `:type` only where operands do not imply it."""
    return _RULES[type(e)](e)


def _memory(name: str, dtype: DType, size: int) -> str:
    return f"{name}: {_SHORT[dtype.name]}[{size}]"


def _store(s: ir.Store) -> str:
    mask = f" if {expr_text(s.mask)}" if s.mask is not None else ""
    head = "store.nt" if s.nontemporal else "store"
    # The lane count is the value's; printing its type is what tells a scatter of constants.
    return (
        f"{head} {s.target.name}[{expr_text(s.index)}{mask}] = "
        f"{type_text(s.value.type)} {expr_text(s.value)}"
    )


def _tile_op(s: ir.TileOp) -> str:
    names = ", ".join(t.name for t in s.tiles)
    if s.memory is None:
        return f"tile.{s.op} {names}"
    at = "" if s.index is None else expr_text(s.index)
    return f"tile.{s.op} {names}, {s.memory.name}[{at} by {s.stride}]"


def _for(s: ir.For) -> str:
    unroll = "unroll " if s.unroll else ""
    bounds = f"{expr_text(s.start)}, {expr_text(s.stop)}, {s.step}"
    return f"{unroll}for {s.var.name}: {type_text(s.var.type)} in range({bounds})"


def _let(s: ir.Let) -> str:
    head = "var" if s.mutable else "let"
    return f"{head} {s.var.name}: {type_text(s.var.type)} = {expr_text(s.value)}"


_RULES: dict[type, Callable[..., str]] = {
    ir.Const: _const,
    ir.Param: lambda e: f"${e.name if e.name.isidentifier() else repr(e.name)}.{e.slot}",
    ir.Var: lambda e: e.name,
    ir.Axis: lambda e: f"{e.kind}.{e.dim}",
    ir.Unary: lambda e: f"{e.op}({expr_text(e.x)})",
    ir.Binary: _binary,
    ir.Fma: lambda e: f"fma({expr_text(e.a)}, {expr_text(e.b)}, {expr_text(e.c)})",
    ir.Select: lambda e: f"select({expr_text(e.cond)}, {expr_text(e.a)}, {expr_text(e.b)})",
    ir.Cast: lambda e: f"{type_text(e.type)}({expr_text(e.x)})",
    ir.Bitcast: lambda e: f"bits:{type_text(e.type)}({expr_text(e.x)})",
    ir.Load: _load,
    ir.Vec: _vec,
    ir.Collective: _collective,
    ir.Array: lambda s: f"{s.space} {_memory(s.name, s.dtype, s.size)}",
    ir.Tile: lambda s: f"tile {s.name}: {_SHORT[s.dtype.name]}[{s.rows}, {s.cols}]",
    ir.TileOp: _tile_op,
    ir.Let: _let,
    ir.Assign: lambda s: f"{s.var.name} = {expr_text(s.value)}",
    ir.Store: _store,
    ir.AsyncCopy: lambda s: f"async_copy {s.barriers} {_store(s.store)}",
    ir.Prefetch: lambda s: f"prefetch {s.source.name}[{expr_text(s.index)}]",
    ir.For: _for,
    ir.If: lambda s: f"if {expr_text(s.cond)}",
    ir.Barrier: lambda s: "barrier",
    ir.Block: lambda s: "block",
}


def stmt_text(s: Stmt) -> str:
    """The statement on one line, bodies left out."""
    return _RULES[type(s)](s)


def shorten(line: str, width: int = 240) -> str:
    """The line, cut at `width` characters, for messages."""
    return line if len(line) <= width else line[: width - 3] + "..."


def _body(block: ir.Block, indent: str, lines: list[str]) -> None:
    for s in block.body:
        lines.append(indent + _RULES[type(s)](s))
        if isinstance(s, ir.For):
            _body(s.body, indent + "  ", lines)
        elif isinstance(s, ir.If):
            _body(s.then, indent + "  ", lines)
            if s.other is not None:
                lines.append(indent + "else")
                _body(s.other, indent + "  ", lines)
        elif isinstance(s, ir.Block):
            _body(s, indent + "  ", lines)


def text(kernel: Kernel) -> str:
    """The whole kernel: name, buffers, grid, threads, cost, then one line per statement."""
    names = [_memory(buffer.name, buffer.dtype, buffer.size) for buffer in kernel.buffers]
    width = max(map(len, names), default=0)
    lines = [f"kernel {kernel.name}"]
    for buffer, name in zip(kernel.buffers, names, strict=True):
        lines.append(f"  buffer {name:<{width}}  {buffer.access}")
    lines.append(f"  grid    ({', '.join(expr_text(g) for g in kernel.grid)})")
    lines.append(f"  threads ({', '.join(map(str, kernel.threads))})")
    lines.append(f"  cost    {kernel.flops} flops, {kernel.bytes} bytes")
    if kernel.resident != 1:
        lines.append(f"  resident {kernel.resident}")
    if kernel.clean:
        lines.append("  clean")
    _body(kernel.body, "  ", lines)
    return "\n".join(lines) + "\n"


_HASHES: WeakKeyDictionary[Kernel, str] = WeakKeyDictionary()


def kernel_hash(kernel: Kernel) -> str:
    """The sha256 hex digest of `text(kernel)`."""
    if kernel not in _HASHES:
        _HASHES[kernel] = _digest(text(kernel))
    return _HASHES[kernel]


def content_hash(kernel: Kernel) -> str:
    """The kernel_hash that the kernel would have under the name k."""
    return _digest(_under_name("k", text(kernel)))


def named_by_content(kernel: Kernel, kind: str) -> tuple[Kernel, str]:
    """Returns the kernel with `kind` and a part of its content_hash as its name, and that hash. It
    is printed once for both hashes."""
    printed = text(kernel)
    digest = _digest(_under_name("k", printed))
    named = replace(kernel, name=f"{kind}_{digest[:12]}")
    _HASHES[named] = _digest(_under_name(named.name, printed))
    return named, digest


def _under_name(name: str, printed: str) -> str:
    return f"kernel {name}\n{printed.partition(chr(10))[2]}"


def _digest(printed: str) -> str:
    return hashlib.sha256(printed.encode()).hexdigest()
