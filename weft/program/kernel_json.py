"""Kernels as JSON values: lists that start with a node's class name, read back and checked.

A kernel's body is kept as text and parsed only when somebody looks at it: a device that has the
compiled object in its cache runs from the head alone (`LazyKernel`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import FileFormatError, WeftError
from weft.core.records import values_of
from weft.kernel import ir
from weft.kernel.ir import Buffer, Expr, Kernel, Type

_NODES: dict[str, type] = {
    c.__name__: c
    for c in (
        ir.Const, ir.Param, ir.Var, ir.Axis, ir.Unary, ir.Binary, ir.Fma, ir.Select, ir.Cast,
        ir.Bitcast, ir.Load, ir.Vec, ir.Collective, ir.Array, ir.Block, ir.Let, ir.Assign,
        ir.Store, ir.Prefetch, ir.For, ir.If, ir.Barrier, ir.Tile, ir.TileOp, ir.AsyncCopy,
    )
}  # fmt: skip
_FIELDS = {name: tuple(f.name for f in fields(c)) for name, c in _NODES.items()}
_KINDS = {(name, f.name): f.type for name, c in _NODES.items() for f in fields(c)}
_MEMORY = ("source", "target", "memory")  # fields that name a Buffer or an Array


def _written(kind: type) -> tuple[str, Callable[[Any], tuple[Any, ...]], set[int]]:
    """Returns the writer of a class of nodes: the text before its fields, their getter, and the
    places of fields written by name."""
    names = _FIELDS[kind.__name__]
    named = {i for i, name in enumerate(names) if name in (*_MEMORY, "tiles")}
    return f'["{kind.__name__}"', values_of(names), named


_WRITTEN = {c: _written(c) for c in _NODES.values()}
_REPEATED = {ir.Var, ir.Param, ir.Axis}
_quoted = json.encoder.encode_basestring_ascii


def _whole(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _all(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(holds, value))


# The accepted values of a field by its declared type: values of an untrusted file are never
# coerced.
_SHAPES: dict[Any, Callable[[Any], bool]] = {
    "Expr": _is(Expr), "Expr | None": _is(Expr, type(None)), "tuple[Expr, ...]": _all(_is(Expr)),
    "tuple[Stmt, ...]": _all(_is(ir.Stmt)), "Block": _is(ir.Block),
    "Block | None": _is(ir.Block, type(None)), "Var": _is(ir.Var), "Store": _is(ir.Store),
    "tuple[Tile, ...]": _all(_is(ir.Tile)), "Buffer": _is(Buffer),
    "Buffer | Array": _is(Buffer, ir.Array),
    "Buffer | Array | None": _is(Buffer, ir.Array, type(None)), "Type": _is(Type),
    "DType": _is(DType), "str": _is(str), "AxisKind": _is(str), "Space": _is(str),
    "int": _whole, "bool": _is(bool), "tuple[int, ...]": _all(_whole),
    "float | int | bool": lambda value: _whole(value) or isinstance(value, float | bool),
}  # fmt: skip


class LazyKernel(Kernel):
    """A Kernel whose body is parsed at first use. `digest` is its kernel_hash."""

    __slots__ = ("_body", "_parse", "digest")
    _body: ir.Block | None
    _parse: Callable[[], ir.Block]
    digest: str

    def __init__(self, head: Kernel, digest: str, parse: Callable[[], ir.Block]) -> None:
        for f in fields(Kernel):
            if f.name != "body":
                object.__setattr__(self, f.name, getattr(head, f.name))
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "_parse", parse)
        object.__setattr__(self, "_body", None)

    @property
    def body(self) -> ir.Block:
        if self._body is None:
            object.__setattr__(self, "_body", self._parse())
        assert self._body is not None
        return self._body


# -- writing --------------------------------------------------------------------------------------


def kernel_head(kernel: Kernel) -> dict[str, Any]:
    """Everything of a kernel but its body."""
    return {
        "name": kernel.name,
        "digest": getattr(kernel, "digest", None) or _hash(kernel),
        "buffers": [[b.name, b.dtype.name, b.size, b.access] for b in kernel.buffers],
        "grid": [encode(g) for g in kernel.grid],
        "threads": list(kernel.threads),
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "resident": kernel.resident,
    } | ({"clean": True} if kernel.clean else {})


def kernel_body(kernel: Kernel) -> str:
    """The body as JSON text."""
    return _Text().of(kernel.body)


def encode(value: Any) -> Any:
    """An IR node (or a field of one) as a JSON value."""
    return json.loads(_Text().of(value))


class _Text:
    """Writes IR nodes, and fields of them, as JSON text. Variables and types come up again and
    again in one body, so their texts are kept by identity while it is written."""

    def __init__(self) -> None:
        self.kept = {id(None): "null", id(True): "true", id(False): "false"}

    def of(self, value: Any) -> str:
        if (known := self.kept.get(id(value))) is not None:
            return known
        kind = type(value)
        if kind is str:
            return _quoted(value)
        if kind is int:
            return int.__repr__(value)
        fields_of = _WRITTEN.get(kind)
        if fields_of is None:
            return self._other(value)
        head, read, named = fields_of
        parts: Iterable[Any] = read(value)
        if named:  # memory and tiles are written by name: they are declared before
            parts = (_names(p) if at in named else p for at, p in enumerate(parts))
        text = ",".join([head, *map(self.of, parts)]) + "]"
        if kind in _REPEATED:
            self.kept[id(value)] = text
        return text

    def _other(self, value: Any) -> str:
        if isinstance(value, Type):
            lanes = "" if value.lanes == 1 else f"x{value.lanes}"
            text = self.kept[id(value)] = _quoted(value.dtype.name + lanes)
            return text
        if isinstance(value, tuple):
            return "[" + ",".join(['""', *map(self.of, value)]) + "]"
        if isinstance(value, DType):
            return _quoted(value.name)
        return json.dumps(value.item() if hasattr(value, "item") else value)  # NumPy's in a Const


def _names(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(one.name for one in value)
    return None if value is None else value.name


# -- reading --------------------------------------------------------------------------------------


def _hash(kernel: Kernel) -> str:
    from weft.kernel.printer import kernel_hash

    return kernel_hash(kernel)


def read_kernel(head: Any, body: Callable[[], str], slots: int, trusted: bool = False) -> Kernel:
    """The kernel of a head and what gives a body's text. Raises FileFormatError for anything that
    is not one.

    A `trusted` one (weft's own cache) is parsed when its body is first used; any other is parsed,
    verified and compared with its digest now. `slots` is how many runtime scalars exist.
    """
    try:
        shell = _read_head(head, slots)
        digest = head["digest"]
        if not isinstance(digest, str):
            raise FileFormatError("a kernel's digest is not text")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"a kernel's head is damaged: {error}") from error
    if trusted:
        return LazyKernel(shell, digest, lambda: _read_body(shell, body(), slots))
    from weft.kernel.verify import verify

    kernel = LazyKernel(shell, digest, lambda: _read_body(shell, body(), slots))
    whole = Kernel(**{f.name: getattr(kernel, f.name) for f in fields(Kernel)})
    try:
        verify(whole)
        if _hash(whole) != digest:
            raise FileFormatError(f"kernel {whole.name}: its content does not match its digest")
    except FileFormatError:
        raise
    except (WeftError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise FileFormatError(f"kernel {whole.name} is not valid: {error}") from error
    return whole


def _read_head(head: Any, slots: int) -> Kernel:
    decoder = _Decoder({}, slots)
    buffers = []
    for name, dtype, size, access in head["buffers"]:
        if not isinstance(name, str) or access not in ("r", "w", "rw"):
            raise FileFormatError(f"kernel buffer {name!r} with access {access!r}")
        buffers.append(Buffer(name, as_dtype(dtype), _count(size, "buffer size"), access))
    grid = tuple(decoder.expr(g) for g in head["grid"])
    threads = tuple(_count(t, "threads") for t in head["threads"])
    if len(grid) != 3 or len(threads) != 3 or not isinstance(head["name"], str):
        raise FileFormatError("a kernel needs a name, three grid entries and three thread counts")
    return Kernel(
        head["name"],
        tuple(buffers),
        ir.Block(()),
        grid,
        threads,
        _count(head["flops"], "flops"),
        _count(head["bytes"], "bytes"),
        _count(head.get("resident", 1), "resident"),
        head.get("clean", False) is True,
    )


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise FileFormatError(f"{what} is {value!r}, expected a count")
    return value


def _read_body(head: Kernel, body: str, slots: int) -> ir.Block:
    try:
        memory: dict[str, Any] = {b.name: b for b in head.buffers}
        found = _Decoder(memory, slots).node(json.loads(body))
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, WeftError) as error:
        raise FileFormatError(f"kernel {head.name}: its body is damaged: {error}") from error
    if not isinstance(found, ir.Block):
        raise FileFormatError(f"kernel {head.name}: its body is not a block")
    return found


class _Decoder:
    """Rebuilds IR nodes. Arrays are known by name from where they are declared on."""

    def __init__(self, memory: dict[str, Any], slots: int) -> None:
        self.memory, self.slots = memory, slots
        self.types: dict[str, Type] = {}

    def expr(self, value: Any) -> Expr:
        found = self.node(value)
        if not isinstance(found, Expr):
            raise FileFormatError(f"{value!r} is not an expression")
        return found

    def node(self, value: Any) -> Any:
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise FileFormatError(f"{str(value)[:60]!r} is not a node")
        name = value[0]
        if name == "":
            return tuple(self.node(v) if isinstance(v, list) else v for v in value[1:])
        names = _FIELDS[name]
        if len(value) != len(names) + 1:
            raise FileFormatError(f"{name} has {len(value) - 1} fields, expected {len(names)}")
        parts = [self.field(f, v) for f, v in zip(names, value[1:])]
        for field, part in zip(names, parts):
            if not _SHAPES[_KINDS[name, field]](part):
                raise FileFormatError(f"{name} has {field} {str(part)[:60]!r}")
        made = _NODES[name](*parts)
        if name in ("Array", "Tile"):
            self.memory[made.name] = made
        elif name == "Param" and not (type(made.slot) is int and 0 <= made.slot < self.slots):
            raise FileFormatError(f"scalar slot {made.slot!r} of {self.slots}")
        return made

    def field(self, name: str, value: Any) -> Any:
        if name in _MEMORY:
            return None if value is None else self.memory[value]
        if name == "tiles":
            return tuple(self.memory[v] for v in value[1:])
        if name == "type":
            return self.type(value)
        if name == "dtype":
            return as_dtype(value)
        return self.node(value) if isinstance(value, list) else value

    def type(self, text: str) -> Type:
        if text not in self.types:
            dtype, _, lanes = text.partition("x")
            self.types[text] = Type(as_dtype(dtype), int(lanes) if lanes else 1)
        return self.types[text]
