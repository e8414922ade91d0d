"""Reading AMD code objects: kernels' metadata (MessagePack in a note) and their descriptors.

Sources: LLVM "User Guide for AMDGPU Backend", "Code Object Metadata" and "Kernel Descriptor";
the MessagePack specification.
"""

from __future__ import annotations

import struct
from typing import Any

from weft.backends.llvm.amd_link import ElfFile
from weft.backends.llvm.resources import Resources
from weft.core.errors import CompileError

_METADATA = 32  # NT_AMDGPU_METADATA
_DEPTH = 16


def kernels(data: bytes) -> dict[str, Resources]:
    """Returns the resources of each kernel of an object or code object, by its function's name.
    Raises CompileError for any other file."""
    found = {}
    for k in metadata(data).get("amdhsa.kernels", []):
        try:
            found[k[".name"]] = Resources(
                threads=k[".max_flat_workgroup_size"],
                registers=k[".vgpr_count"],
                shared=k[".group_segment_fixed_size"],
                stack=k[".private_segment_fixed_size"],
                spills=k[".vgpr_spill_count"] + k[".sgpr_spill_count"],
                scalar_registers=k[".sgpr_count"],
            )
        except KeyError as missing:
            raise CompileError(f"AMD metadata without {missing}") from None
    return found


def metadata(data: bytes) -> dict[str, Any]:
    """The metadata note of an object or code object."""
    for section in ElfFile(data).sections:
        if section.name != ".note" or len(section.data) < 12:
            continue
        owner, size, kind = struct.unpack_from("<III", section.data)
        start = 12 + -(-owner // 4) * 4
        if kind == _METADATA:
            try:
                found = _Reader(bytes(section.data[start : start + size])).value(0)
            except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
                raise CompileError(f"broken AMD metadata: {error}") from None
            return found if isinstance(found, dict) else {}
    raise CompileError("an AMD object without metadata")


class _Reader:
    """MessagePack: the maps, lists, strings, integers and booleans of which metadata is made."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def value(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise CompileError("AMD metadata is nested too deeply")
        tag = self.data[self.at]
        self.at += 1
        if tag < 0x80 or tag >= 0xE0:
            return tag if tag < 0x80 else tag - 0x100
        if tag < 0x90:
            return self._map(tag & 15, depth)
        if tag < 0xA0:
            return [self.value(depth + 1) for _ in range(tag & 15)]
        if tag < 0xC0:
            return self._string(tag & 31)
        if tag in _SIMPLE:
            return _SIMPLE[tag]
        if tag in _INTEGERS:
            return self._number(_INTEGERS[tag])
        if tag in _SIZED:
            kind, form = _SIZED[tag]
            size = self._number(form)
            if kind == "string":
                return self._string(size)
            if kind == "map":
                return self._map(size, depth)
            return [self.value(depth + 1) for _ in range(size)]
        raise CompileError(f"AMD metadata with the byte {tag:#x}")

    def _map(self, size: int, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(size):
            key = self.value(depth + 1)
            found[key] = self.value(depth + 1)
        return found

    def _string(self, size: int) -> str:
        raw = self.data[self.at : self.at + size]
        if len(raw) != size:
            raise IndexError("a string beyond the end")
        self.at += size
        return raw.decode()


_SIMPLE = {0xC0: None, 0xC2: False, 0xC3: True}
_INTEGERS = {
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_SIZED = {
    0xD9: ("string", ">B"), 0xDA: ("string", ">H"), 0xDB: ("string", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
