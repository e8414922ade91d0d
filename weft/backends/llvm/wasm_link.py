"""A relocatable WebAssembly object → a module for a page: a small linker.

It takes LLVM's output for one module: functions, constant data, and calls of its own functions.
Memory, the stack pointer and the object's other imports stay imports of "env", which the player
gives. Memory is imported with a limit, so that a player can make it shared between threads by
setting one bit of the module. Constants move to the address that the player keeps for them, and
`wanted` functions are exported by name.

Sources: WebAssembly Core Specification, "Binary Format"; WebAssembly tool conventions, "Linking".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core.errors import CompileError

MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORT, _EXPORT, _DATA = 0, 2, 7, 11
_MEMORY_LEB, _MEMORY_SLEB, _MEMORY_I32 = 3, 4, 5  # R_WASM_MEMORY_ADDR_*
_PAGES = 65536  # pages of memory that an address can reach
_INDICES = {0, 6, 7}  # relocations of functions, types and globals: unchanged in a single object
_OF_FUNCTION, _OF_TABLE, _OF_MEMORY, _OF_GLOBAL = range(4)  # kinds of imports
_FUNCTION, _DATUM, _GLOBAL, _SECTION, _EVENT, _TABLE = range(6)  # kinds of symbols
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40


@dataclass
class _Reader:
    """Bytes read one after the other."""

    data: bytes
    at: int = 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self, signed: bool = False) -> int:
        """A LEB128."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self) -> str:
        return self.take(self.number()).decode()


@dataclass
class _Object:
    """The sections of an object, and what its linking section says."""

    sections: list[tuple[int, bytearray]] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)  # name -> index
    data_symbols: list[tuple[int, int] | None] = field(default_factory=list)  # segment, offset
    relocations: list[tuple[int, bytes]] = field(default_factory=list)  # section, entries


def link(data: bytes, wanted: Sequence[str], base: int) -> tuple[bytes, int, int]:
    """(the module, how many bytes from address `base` on its constants take, where in the module
    the flags of its memory stand). Raises CompileError for an object of another kind."""
    try:
        found = _parse(data)
        size = _relocate(found, base)
        flags = _limit_memory(found)
        code = _module(found, wanted)
        return code, size, code.index(flags) + len(flags) - len(_leb(_PAGES)) - 2
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise CompileError(f"the WebAssembly object is not as expected: {error!r}") from None


def _parse(data: bytes) -> _Object:
    if data[:8] != MAGIC:
        raise CompileError("LLVM gave no WebAssembly object")
    reader, found = _Reader(data, 8), _Object()
    while reader.at < len(data):
        kind = reader.byte()
        body = reader.take(reader.number())
        if kind != _CUSTOM:
            found.sections.append((kind, bytearray(body)))
            continue
        custom = _Reader(body)
        name = custom.name()
        if name == "linking":
            _linking(custom, found)
        elif name.startswith("reloc."):
            found.relocations.append((custom.number(), body[custom.at :]))
    return found


def _linking(r: _Reader, found: _Object) -> None:
    if r.number() != 2:
        raise CompileError("the WebAssembly object has another version of its linking section")
    while r.at < len(r.data):
        kind, size = r.byte(), r.number()
        end = r.at + size
        if kind == 8:  # WASM_SYMBOL_TABLE
            for _ in range(r.number()):
                _symbol(r, found)
        r.at = end


def _symbol(r: _Reader, found: _Object) -> None:
    kind, flags = r.byte(), r.number()
    place: tuple[int, int] | None = None
    if kind == _DATUM:
        name = r.name()
        if flags & _UNDEFINED:
            raise CompileError(f"the WebAssembly object lacks the data {name!r}")
        place = r.number(), r.number()
        r.number()  # its size
    elif kind == _SECTION:
        r.number()
    else:
        index = r.number()
        if not flags & _UNDEFINED or flags & _EXPLICIT_NAME:
            name = r.name()
            if kind == _FUNCTION:
                found.functions[name] = index
    found.data_symbols.append(place)


# -- placing --------------------------------------------------------------------------------------


def _relocate(found: _Object, base: int) -> int:
    data = [body for kind, body in found.sections if kind == _DATA]
    segments = [segment for body in data for segment in _segments(body)]
    starts = [base + offset for offset, _ in segments]
    for number, entries in found.relocations:
        body = found.sections[number][1]
        r = _Reader(entries)
        for _ in range(r.number()):
            kind, offset, symbol = r.byte(), r.number(), r.number()
            if kind in _INDICES:
                continue
            if kind not in (_MEMORY_LEB, _MEMORY_SLEB, _MEMORY_I32):
                raise CompileError(f"the WebAssembly object has a relocation of type {kind}")
            place = found.data_symbols[symbol]
            if place is None:
                raise CompileError("the WebAssembly object takes the address of no data")
            address = starts[place[0]] + place[1] + r.number(signed=True)
            if kind == _MEMORY_I32:
                body[offset : offset + 4] = address.to_bytes(4, "little")
            else:
                body[offset : offset + 5] = _padded(address)
    for body in data:  # last: the relocations count from where LLVM put things
        body[:] = _moved(_segments(body), base)
    return max((offset + len(content) for offset, content in segments), default=0)


def _segments(body: bytearray) -> list[tuple[int, bytes]]:
    """(offset, content) of each segment of a data section."""
    r = _Reader(bytes(body))
    found = []
    for _ in range(r.number()):
        if r.byte() != 0 or r.byte() != 0x41:  # active in memory 0, at i32.const
            raise CompileError("the WebAssembly object has data of another kind")
        offset = r.number(signed=True)
        r.byte()  # end
        found.append((offset, r.take(r.number())))
    return found


def _moved(segments: Sequence[tuple[int, bytes]], base: int) -> bytes:
    """The data section with its segments `base` bytes further on."""
    out = _leb(len(segments))
    for offset, content in segments:
        out += b"\0\x41" + _padded(base + offset) + b"\x0b" + _leb(len(content)) + content
    return out


def _limit_memory(found: _Object) -> bytes:
    """Gives the imported memory a limit; the bytes of that import."""
    for kind, body in found.sections:
        if kind != _IMPORT:
            continue
        r, out, memory = _Reader(bytes(body)), bytearray(), b""
        count = r.number()
        for _ in range(count):
            begin = r.at
            r.name(), r.name()
            what = r.byte()
            if what == _OF_MEMORY:
                head = r.data[begin : r.at]
                if r.byte() != 0:
                    break
                r.number()
                memory = head + b"\1\0" + _leb(_PAGES)
                out += memory
                continue
            if what == _OF_TABLE:
                r.byte(), r.byte(), r.number()
            else:  # a function's type; a global's type and whether it changes
                r.number() if what == _OF_FUNCTION else r.take(2)
            out += r.data[begin : r.at]
        else:
            if memory:
                body[:] = _leb(count) + out
                return memory
    raise CompileError("the WebAssembly object imports no memory without a limit")


def _module(found: _Object, wanted: Sequence[str]) -> bytes:
    exports = bytearray(_leb(len(wanted)))
    for name in wanted:
        exports += _leb(len(name)) + name.encode() + b"\0" + _leb(found.functions[name])
    out, done = bytearray(MAGIC), False
    for kind, body in found.sections:
        if not done and (kind > _EXPORT):
            out += bytes([_EXPORT]) + _leb(len(exports)) + exports
            done = True
        out += bytes([kind]) + _leb(len(body)) + body
    return bytes(out)


# -- numbers --------------------------------------------------------------------------------------


def _leb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _padded(value: int) -> bytes:
    """LEB128 of five bytes, signed and unsigned alike below 2^31."""
    return bytes([(value >> 7 * i & 0x7F) | (0x80 if i < 4 else 0) for i in range(5)])
