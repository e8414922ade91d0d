"""The memory that the CPU's native code and Python share: steps, and the state of the workers."""

from __future__ import annotations

import numpy as np

from weft.backends.cpu.native import NativeSlot, NativeValue

# One step, or the part of it that has `groups` groups from `first` on. `cost` is clock ticks per
# group times 256, 0 while unknown.
_ENTRY = "fn:u8 args:u8 gx:i4 gy:i4 gz:i4 pad:i4 groups:i8 chunk:i8 chunks:i4 first:i4 cost:i8"
ENTRY_DTYPE = np.dtype([(name, form) for name, form in (f.split(":") for f in _ENTRY.split())])

# Shared by the caller and the workers: name, format, offset. Words that different threads write
# stand on cache lines of their own: done, the line of the sleepers, and a ticket per thread.
_POOL = (
    ("done", "i4", 64),
    ("wake", "i4", 128), ("sleepers", "i4", 132), ("stop", "i4", 136), ("caller_waits", "i4", 140),
    ("entry", "u8", 192), ("scalars", "u8", 200), ("syscall", "u8", 208), ("futex", "i8", 216),
    ("yield", "u8", 224), ("threads", "i4", 232), ("spins", "i4", 236), ("serial_ticks", "i8", 240),
    ("wake_ticks", "i8", 248), ("chunk_ticks", "i8", 256), ("scratch", "u8", 264),
    ("tickets", "u8", 320),
)  # fmt: skip
POOL_OFFSETS = {name: offset for name, _, offset in _POOL}
POOL_DTYPE = np.dtype(
    {
        "names": list(POOL_OFFSETS),
        "formats": [form for _, form, _ in _POOL],
        "offsets": list(POOL_OFFSETS.values()),
        "itemsize": 384,
    }
)

_TYPES = {"u8": "ptr", "i4": "i32", "i8": "i64"}
_FORMS = {name: form for name, form, _ in _POOL}


def pool_field(pool: NativeValue, name: str) -> NativeSlot:
    """A field of the state at the address `pool`."""
    return pool.at(_TYPES[_FORMS[name]], POOL_OFFSETS[name])


def entry_field(entry: NativeValue, name: str) -> NativeSlot:
    """A field of the step at the address `entry`."""
    dtype, offset = ENTRY_DTYPE.fields[name][:2]  # type: ignore[index]
    form = "u8" if dtype.kind == "u" else f"i{dtype.itemsize}"
    return entry.at(_TYPES[form], int(offset))
