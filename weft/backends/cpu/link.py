"""Places object code in executable memory, so that a cached Program runs without loading LLVM.

A small linker for what our own compilations produce: x86-64 ELF relocatable objects with code,
constants, and calls of C library functions (memset, memmove, fmodf, ...). Anything else it meets
is handed to LLVM's MCJIT (jit.link_by_llvm). Sections and relocations: System V ABI, AMD64
supplement, section 4.4; ELF-64 object file format, version 1.5.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence

from weft.core.errors import CompileError

_ALLOC, _NOBITS, _SYMTAB, _RELA = 2, 8, 2, 4
_R_64, _R_PC32, _R_GOTPCREL, _R_PLT32, _R_32S = 1, 2, 9, 4, 11
_R_PC64, _R_GOTPCRELX, _R_REX_GOTPCRELX = 24, 41, 42
_STUB = bytes.fromhex("ff2500000000")  # jmp *0(%rip), followed by the 8-byte address


class NeedsLinker(Exception):
    """This object needs LLVM's own linker."""


class Region:
    """Executable memory, freed when the last reference to it or to an Address in it goes."""

    def __init__(self, base: int, size: int) -> None:
        self.base, self.size = base, size
        self._unmap = _libc().munmap

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():  # threads may still run its code during finalisation
            self._unmap(self.base, self.size)


class FunctionAddress(int):
    """The address of a function. It keeps the function's code in memory."""

    region: Region

    @classmethod
    def within(cls, region: Region, offset: int) -> FunctionAddress:
        made = cls(region.base + offset)
        made.region = region
        return made


class _Object:
    """The parsed tables of one ELF object."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
            raise NeedsLinker("not a little-endian ELF-64 object")
        (machine,) = struct.unpack_from("<H", data, 18)
        if machine != 62:
            raise NeedsLinker(f"ELF machine {machine}")
        (table,) = struct.unpack_from("<Q", data, 40)
        (count,) = struct.unpack_from("<H", data, 60)
        self.data = data
        fields = "<IIQQQQIIQQ"
        self.sections = [struct.unpack_from(fields, data, table + 64 * i) for i in range(count)]
        self.symbols: list[tuple[str, int, int]] = []  # name, section, value
        for _, kind, _, _, offset, size, link, _, _, _ in self.sections:
            if kind == _SYMTAB:
                strings = self.sections[link][4]
                for at in range(offset, offset + size, 24):
                    name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                    end = data.index(b"\0", strings + name)
                    text = data[strings + name : end].decode("ascii", "replace")
                    self.symbols.append((text, section, value))

    def externals(self) -> list[str]:
        return [name for name, section, _ in self.symbols if section == 0 and name]


def link(objects: Sequence[bytes], wanted: Sequence[str]) -> list[dict[str, FunctionAddress]]:
    """Loads objects into one executable region; for each, the addresses of its `wanted` symbols
    that it defines. The region stays while one of them is held. Raises Unsupported."""
    parsed = [_Object(data) for data in objects]
    layout: list[tuple[dict[int, int], int]] = []
    size = 0
    for obj in parsed:
        places = {}
        for i, (_, _, flags, _, _, length, _, _, align, _) in enumerate(obj.sections):
            if flags & _ALLOC:
                size = -(-size // max(align, 64)) * max(align, 64)
                places[i] = size
                size += length
        size = -(-size // 16) * 16
        layout.append((places, size))  # then its stubs: 16 bytes per external symbol
        size += 16 * len(obj.externals())
    image = bytearray(size)
    region = Region(_reserve(size), size)
    found = []
    for obj, (places, stubs) in zip(parsed, layout):
        found.append(_place(obj, places, stubs, image, region, wanted))
    ctypes.memmove(region.base, bytes(image), size)
    _protect(region.base, size)
    return found


def _place(
    obj: _Object,
    places: dict[int, int],
    stubs: int,
    image: bytearray,
    region: Region,
    wanted: Sequence[str],
) -> dict[str, FunctionAddress]:
    for i, at in places.items():
        _, kind, _, _, offset, length, _, _, _, _ = obj.sections[i]
        if kind != _NOBITS:
            image[at : at + length] = obj.data[offset : offset + length]
    stub: dict[str, int] = {}
    for name in obj.externals():
        at = stubs + 16 * len(stub)
        image[at : at + 14] = _STUB + struct.pack("<Q", _external(name))
        stub[name] = at
    for _, kind, _, _, offset, length, _, target, _, _ in obj.sections:
        if kind == _RELA and target in places:
            for at in range(offset, offset + length, 24):
                _relocate(obj, places, stub, image, region.base, target, at)
    return {
        name: FunctionAddress.within(region, places[section] + value)
        for name, section, value in obj.symbols
        if name in wanted and section in places
    }


def _relocate(
    obj: _Object, places: dict[int, int], stub: dict[str, int], image: bytearray, base: int,
    target: int, at: int,
) -> None:  # fmt: skip
    where, info, addend = struct.unpack_from("<QQq", obj.data, at)
    kind, (name, section, value) = info & 0xFFFFFFFF, obj.symbols[info >> 32]
    spot = places[target] + where
    if section in places:
        goal = places[section] + value
    elif name in stub and kind in (_R_PLT32, _R_PC32):
        goal = stub[name]
    elif name in stub and kind in (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX):
        goal = stub[name] + 6  # the address word inside the stub serves as the table entry
    else:
        raise NeedsLinker(f"symbol {name!r} in section {section}")
    if kind in (_R_PC32, _R_PLT32) or (section == 0 and kind != _R_64):
        struct.pack_into("<i", image, spot, goal + addend - spot)
    elif kind == _R_64:
        struct.pack_into("<Q", image, spot, base + goal + addend)
    elif kind == _R_PC64:
        struct.pack_into("<q", image, spot, goal + addend - spot)
    else:
        raise NeedsLinker(f"relocation type {kind}")


_libraries: list[ctypes.CDLL] = []


def _external(name: str) -> int:
    if not _libraries:
        _libraries.append(ctypes.CDLL(None))
    for attempt in (0, 1):
        if attempt and len(_libraries) == 1:
            _libraries.append(ctypes.CDLL("libm.so.6"))
        try:
            function = _libraries[attempt][name]
        except AttributeError:
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise CompileError(f"compiled code needs the C function {name}, which this system lacks")


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    number = ctypes.c_int
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long,
    ]  # fmt: skip
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _reserve(size: int) -> int:
    if sys.platform != "linux":
        raise NeedsLinker(sys.platform)
    address = _libc().mmap(None, size, 3, 0x22, -1, 0)  # read+write, private+anonymous
    if address in (None, ctypes.c_void_p(-1).value):
        raise NeedsLinker("no memory for code")
    return int(address)


def _protect(base: int, size: int) -> None:
    if _libc().mprotect(base, size, 5):  # read+execute
        raise NeedsLinker("the system forbids new executable memory")
