"""A relocatable AMD GPU object → a code object that the HIP runtime loads: a small linker.

It takes what LLVM makes of one kernel: code, read-only data (kernel descriptors, tables) and the
metadata note, with relative relocations between them. Anything else (writable data, undefined
symbols, other relocations) is refused by name. The result is laid out as `ld.lld -shared` does.

Sources: LLVM "User Guide for AMDGPU Backend", sections "ELF Code Object" and "Relocation Records";
System V ABI, chapters 4 and 5 (object files; program loading and dynamic linking).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from weft.core.errors import CompileError

MACHINE = 224  # EM_AMDGPU
_PAGE = 0x1000
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _HASH, _DYNAMIC, _NOTE, _NOBITS = 1, 2, 3, 4, 5, 6, 7, 8
_DYNSYM = 11
_WRITE, _ALLOC, _EXEC = 1, 2, 4
_GLOBAL = 1
_SEGMENTS = 8
_REL32, _REL64, _REL32_LO, _REL32_HI = 4, 5, 10, 11


@dataclass
class ElfSection:
    """A section: header fields, content, and (once placed) where it lies."""

    name: str
    kind: int
    flags: int
    align: int
    data: bytearray
    link: int = 0
    info: int = 0
    entry: int = 0
    offset: int = 0
    address: int = 0


@dataclass(frozen=True)
class Symbol:
    name: str
    info: int  # binding << 4 | type
    other: int  # visibility
    section: int
    value: int
    size: int


class ElfFile:
    """The header, sections and symbols of a little-endian ELF-64 file of an AMD GPU."""

    def __init__(self, data: bytes) -> None:
        try:
            self._read(data)
        except (struct.error, IndexError, ValueError) as error:
            raise CompileError(f"a broken AMD object: {error}") from None

    def _read(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian ELF-64 file")
        self.ident = data[:16]
        self.kind, machine = struct.unpack_from("<HH", data, 16)
        if machine != MACHINE:
            raise ValueError(f"ELF machine {machine}")
        self.segments = []
        first, table, self.flags = struct.unpack_from("<QQI", data, 32)
        for i in range(struct.unpack_from("<H", data, 56)[0]):
            self.segments.append(struct.unpack_from("<IIQQQQQQ", data, first + 56 * i))
        count, names = struct.unpack_from("<HH", data, 60)
        self.sections: list[ElfSection] = []
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
        for name, kind, flags, address, offset, size, link, info, align, entry in headers:
            content = b"" if kind == _NOBITS else data[offset : offset + size]
            label = _string(data, headers[names][4] + name)
            section = ElfSection(label, kind, flags, align, bytearray(content), link, info, entry)
            section.offset, section.address = offset, address
            self.sections.append(section)
        self.symbols: list[Symbol] = []
        for section in self.sections:
            if section.kind == _SYMTAB:
                strings = bytes(self.sections[section.link].data)
                for n, i, o, at, value, size in struct.iter_unpack("<IBBHQQ", section.data):
                    self.symbols.append(Symbol(_string(strings, n), i, o, at, value, size))

    def named(self, name: str) -> Symbol | None:
        """The symbol of that name."""
        return next((s for s in self.symbols if s.name == name), None)


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii", "replace")


def link(data: bytes) -> bytes:
    """The code object of one relocatable object. Raises CompileError for what it does not know."""
    try:
        return _Linker(ElfFile(data)).image()
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError(f"a broken AMD object: {error}") from None


class _Linker:
    def __init__(self, source: ElfFile) -> None:
        self.source = source
        self.read: list[ElfSection] = []  # the first segment: what the loader reads, and data
        self.code: list[ElfSection] = []
        self.number: dict[int, ElfSection] = {}  # the source's section number -> its place here
        for i, s in enumerate(source.sections):
            if not s.flags & _ALLOC or not s.data:
                continue
            if s.align > _PAGE or s.align & (s.align - 1):
                raise CompileError(f"an AMD object with {s.name} aligned to {s.align}")
            if s.flags & _WRITE:
                raise CompileError(f"an AMD object with writable data ({s.name})")
            (self.code if s.flags & _EXEC else self.read).append(s)
            self.number[i] = s
        self.exported = [s for s in source.symbols if s.info >> 4 == _GLOBAL]
        for symbol in self.exported:
            if symbol.section not in self.number:
                raise CompileError(f"an AMD object with the undefined symbol {symbol.name}")

    def image(self) -> bytes:
        names = bytearray(b"\0")
        starts = [_add(names, s.name) for s in self.exported]
        count = len(self.exported) + 1
        symbols = ElfSection(".dynsym", _DYNSYM, _ALLOC, 8, bytearray(24 * count), 0, 1, 24)
        table = ElfSection(".hash", _HASH, _ALLOC, 4, _hash_table([s.name for s in self.exported]))
        strings = ElfSection(".dynstr", _STRTAB, _ALLOC, 1, names)
        dynamic = ElfSection(".dynamic", _DYNAMIC, _ALLOC | _WRITE, 8, bytearray(16 * 6), 0, 0, 16)
        notes = [s for s in self.read if s.kind == _NOTE]
        rest = [s for s in self.read if s.kind != _NOTE]
        table.entry = 4
        loads = [[*notes, symbols, table, strings, *rest], self.code, [dynamic]]
        end = self._place(loads)
        sections = [s for group in loads for s in group]
        # The same symbols twice: some loaders read .dynsym, others .symtab.
        again = ElfSection(".symtab", _SYMTAB, 0, 8, symbols.data, len(sections) + 2, 1, 24)
        labels = ElfSection(".shstrtab", _STRTAB, 0, 1, bytearray(b"\0"))
        tail = [again, ElfSection(".strtab", _STRTAB, 0, 1, names), labels]
        for s in (symbols, table, dynamic):
            s.link = 1 + sections.index(strings if s is not table else symbols)
        symbols.data[24:] = self._symbols(starts, sections)
        dynamic.data[:] = _dynamic(symbols, strings, table)
        self._relocate()
        segments = _segments(loads, notes, dynamic)
        return self._write([*sections, *tail], segments, end)

    def _place(self, loads: list[list[ElfSection]]) -> int:
        """Gives every section its offset and address; each segment has pages of its own."""
        at = 64 + 56 * _SEGMENTS
        for number, group in enumerate(loads):
            for s in group:
                align = max(s.align, 1)
                at = -(-at // align) * align
                s.offset, s.address = at, at + number * _PAGE
                at += len(s.data)
        return at

    def _symbols(self, starts: list[int], sections: list[ElfSection]) -> bytes:
        out = b""
        for start, s in zip(starts, self.exported):
            place = self.number[s.section]
            where = 1 + next(i for i, x in enumerate(sections) if x is place)
            out += struct.pack(
                "<IBBHQQ", start, s.info, s.other, where, place.address + s.value, s.size
            )
        return out

    def _relocate(self) -> None:
        for relocations in self.source.sections:
            if relocations.kind != _RELA or relocations.info not in self.number:
                continue
            target = self.number[relocations.info]
            for where, info, addend in struct.iter_unpack("<QQq", relocations.data):
                symbol = self.source.symbols[info >> 32]
                if symbol.section not in self.number:
                    raise CompileError(f"an AMD object that refers to {symbol.name or 'nothing'}")
                goal = self.number[symbol.section].address + symbol.value + addend
                _patch(target, where, info & 0xFFFFFFFF, goal - target.address - where)

    def _write(
        self, sections: list[ElfSection], segments: list[tuple[int, ...]], end: int
    ) -> bytes:
        """The file: header, segments, sections (those that are not loaded from `end` on), and the
        table of sections."""
        starts = [_add(sections[-1].data, s.name) for s in sections]
        for s in sections:
            if not s.flags & _ALLOC:
                s.offset = -(-end // s.align) * s.align
                end = s.offset + len(s.data)
        table = -(-end // 8) * 8
        out = bytearray(table)
        out[:16] = self.source.ident
        struct.pack_into(
            "<HHIQQQIHHHHHH", out, 16, 3, MACHINE, 1, 0, 64, table, self.source.flags,
            64, 56, _SEGMENTS, 64, len(sections) + 1, len(sections),
        )  # fmt: skip
        for i, segment in enumerate(segments):
            struct.pack_into("<IIQQQQQQ", out, 64 + 56 * i, *segment)
        out += bytes(64)
        for start, s in zip(starts, sections):
            out[s.offset : s.offset + len(s.data)] = s.data
            out += struct.pack(
                "<IIQQQQIIQQ", start, s.kind, s.flags, s.address, s.offset, len(s.data), s.link,
                s.info if s.kind in (_DYNSYM, _SYMTAB) else 0, max(s.align, 1), s.entry,
            )  # fmt: skip
        return bytes(out)


def _add(table: bytearray, name: str) -> int:
    start = len(table)
    table += name.encode() + b"\0"
    return start


def _patch(target: ElfSection, where: int, kind: int, distance: int) -> None:
    """Writes a relative address into `target`."""
    if kind == _REL64:
        struct.pack_into("<q", target.data, where, distance)
    elif kind == _REL32:
        struct.pack_into("<i", target.data, where, distance)
    elif kind == _REL32_LO:
        struct.pack_into("<I", target.data, where, distance & 0xFFFFFFFF)
    elif kind == _REL32_HI:
        struct.pack_into("<i", target.data, where, distance >> 32)
    else:
        raise CompileError(f"an AMD object with relocation type {kind}")


def _hash_table(names: list[str]) -> bytearray:
    """The System V hash table of symbols 1, 2, ...: one chain per bucket."""
    buckets, chains = [0] * max(len(names), 1), [0] * (len(names) + 1)
    for i, name in enumerate(names, 1):
        h = 0
        for byte in name.encode():
            h = (h << 4) + byte
            h = (h ^ (h & 0xF0000000) >> 24) & 0x0FFFFFFF
        slot = h % len(buckets)
        chains[i], buckets[slot] = buckets[slot], i
    words = [len(buckets), len(chains), *buckets, *chains]
    return bytearray(struct.pack(f"<{len(words)}I", *words))


def _dynamic(symbols: ElfSection, strings: ElfSection, table: ElfSection) -> bytes:
    entries = (
        (6, symbols.address), (11, 24), (5, strings.address), (10, len(strings.data)),
        (4, table.address), (0, 0),
    )  # fmt: skip
    return b"".join(struct.pack("<QQ", *e) for e in entries)


def _segments(
    loads: list[list[ElfSection]], notes: list[ElfSection], dynamic: ElfSection
) -> list[tuple[int, ...]]:
    """Program headers: type, flags, offset, address, address, size in file and memory, align."""
    table = 56 * _SEGMENTS
    found: list[tuple[int, ...]] = [(6, 4, 64, 64, 64, table, table, 8)]
    for flags, group in zip((4, 5, 6), loads):  # R, RX, RW
        start = 0 if flags == 4 else group[0].offset
        base = group[0].address - group[0].offset + start
        size = group[-1].offset + len(group[-1].data) - start
        found.append((1, flags, start, base, base, size, size, _PAGE))
    place = (dynamic.offset, dynamic.address, dynamic.address)
    size = len(dynamic.data)
    found.append((2, 6, *place, size, size, 8))
    found.append((0x6474E552, 4, *place, size, size, 1))  # GNU_RELRO
    found.append((0x6474E551, 6, 0, 0, 0, 0, 0, 0))  # GNU_STACK
    at = notes[0] if notes else dynamic
    length = sum(len(s.data) for s in notes)
    found.append((4, 4, at.offset, at.address, at.address, length, length, 4))
    return found
