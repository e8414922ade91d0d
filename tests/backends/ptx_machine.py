"""PTX executed as it is printed: an interpreter that shares nothing with the code's makers.

All threads of some groups advance together, those at the lowest instruction first; threads wait at
a barrier for their group and at a warp's instructions for their warp. Registers, shared and local
memory start as junk; using what was not written, or lies beyond a buffer, is an error. A copy
without threads (cp.async) arrives at once: what comes early here is what the emulator has come
late.

Source: NVIDIA "PTX ISA". Not known: timing, caches, races, floating-point exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import gpu_junk
import gpu_units
import numpy as np
import ptx_text
import ptx_values
from ptx_memory import Fault, Memory
from ptx_text import Instruction
from ptx_values import TYPES, typed

_APART = 1 << 12  # bytes before, between and after buffers
_WARP = 32
_READY, _BARRIER, _TOGETHER, _DONE = range(4)
_FOR_WARPS = ("shfl", "redux", "mma", "ldmatrix")


class Machine:
    """Some groups of one kernel. `bases` gives the addresses of the parameters."""

    def __init__(
        self, entry: ptx_text.Entry, threads: Sequence[int], groups: np.ndarray,
        grid: Sequence[int], memory: Memory, bases: Sequence[int], dynamic: int, junk: str,
    ) -> None:  # fmt: skip
        self.entry, self.junk = entry, junk
        x, y, z = threads
        self.threads = x * y * z
        self.n = n = self.threads * len(groups)
        thread = np.tile(np.arange(self.threads, dtype=np.uint32), len(groups))
        group = np.repeat(groups.astype(np.uint32), self.threads)
        self.part = np.repeat(np.arange(len(groups)), self.threads)
        self.special = {
            "%tid.x": thread % x, "%tid.y": thread // x % y, "%tid.z": thread // (x * y),
            "%ctaid.x": group % grid[0], "%ctaid.y": group // grid[0] % grid[1],
            "%ctaid.z": group // (grid[0] * grid[1]),
        }  # fmt: skip
        self.params = dict(zip(entry.params, bases, strict=True))
        self.symbols, sizes = {}, {"shared": 0, "local": 0}
        for name, (space, align, nbytes) in entry.arrays.items():
            at = -(-sizes[space] // align) * align
            self.symbols[name] = at
            sizes[space] = at + (nbytes or dynamic)
        local = np.arange(n)
        self.spaces = {
            "global": (memory, np.zeros(n, np.int64)),
            "shared": (Memory(sizes["shared"], len(groups), junk), self.part),
            "local": (Memory(sizes["local"], n, junk), local),
        }
        self.registers: dict[str, np.ndarray] = {}
        self.written: dict[str, np.ndarray] = {}
        self.pc, self.state = np.zeros(n, np.int64), np.zeros(n, np.int8)

    def run(self) -> None:
        while True:
            ready = self.state == _READY
            if not ready.any():
                if (self.state == _DONE).all():
                    return
                self._meet()
                continue
            at = int(self.pc[ready].min())
            lanes = np.nonzero(ready & (self.pc == at))[0]
            try:
                self._step(self.entry.code[at], at, lanes)
            except (Fault, AssertionError) as error:
                raise Fault(f"{self.entry.name}: `{self.entry.code[at]}`: {error}") from None

    def _meet(self) -> None:
        """Everyone waits: those of whole groups at a barrier go on."""
        arrived = (self.state == _BARRIER).reshape(-1, self.threads).all(1)
        if not arrived.any():
            raise Fault(f"{self.entry.name}: threads wait for others that do not come")
        self.state[np.repeat(arrived, self.threads)] = _READY

    def _step(self, i: Instruction, at: int, lanes: np.ndarray) -> None:
        root = i.op.split(".")[0]
        if root in _FOR_WARPS:
            lanes = self._whole_warps(at, lanes)
            if not lanes.size:
                return
        self.pc[lanes] = at + 1
        if i.guard:
            lanes = lanes[self.get(i.guard.lstrip("!"), "pred", lanes) ^ i.guard.startswith("!")]
        special = getattr(self, f"do_{root}", None)
        if special is not None:
            special(i, lanes)
            return
        kinds = self._kinds(i)
        with np.errstate(all="ignore"):
            values = [
                self.get(o, k, lanes, exact=True)
                for o, k in zip(i.operands[1:], kinds, strict=True)
            ]
            found = ptx_values.compute(i.op, values)
        self.put(i.operands[0], found, lanes, exact=True)

    def _whole_warps(self, at: int, lanes: np.ndarray) -> np.ndarray:
        self.state[lanes] = _TOGETHER
        here = ((self.state == _TOGETHER) & (self.pc == at)).reshape(-1, _WARP).all(1)
        found = np.nonzero(np.repeat(here, _WARP))[0]
        self.state[found] = _READY
        return found

    def _kinds(self, i: Instruction) -> list[str]:
        parts, count = i.op.split("."), len(i.operands) - 1
        kinds = [parts[-1]] * count
        if parts[0] in ("shl", "shr"):
            kinds[1] = "u32"
        elif parts[0] == "selp":
            kinds[2] = "pred"
        elif parts[-2] == "f32" and kinds[0] in ("f16", "bf16"):  # the last operand is wide
            kinds[-1] = "f32"
        return kinds

    # -- operands

    def get(self, operand: str, kind: str, lanes: np.ndarray, exact: bool = False) -> np.ndarray:
        """The operand in these lanes; not `exact`, the low part of a larger register."""
        if operand in self.special:
            return typed(self.special[operand][lanes], kind)
        if operand.startswith("%"):
            written = self.written.get(operand)
            if written is None or not written[lanes].all():
                raise Fault(f"{operand} was not written")
            if exact and self.registers[operand].itemsize != np.dtype(TYPES[kind]).itemsize:
                raise Fault(f"{operand} is no {kind}")
            return typed(self.registers[operand][lanes], kind)
        return np.full(lanes.size, self._constant(operand, kind))

    def _constant(self, text: str, kind: str) -> np.generic:
        goal = np.dtype(TYPES[kind])
        if operand := re.fullmatch(r"0f([0-9A-F]{8})", text):
            bits = int(operand[1], 16)
        elif text in self.symbols:
            bits = self.symbols[text]
        else:
            bits = int(text.rstrip("U"), 0)
        if kind == "pred":
            return np.bool_(bits != 0)
        raw = (bits % (1 << 8 * goal.itemsize)).to_bytes(goal.itemsize, "little")
        found: np.generic = np.frombuffer(raw, goal)[0]
        return found

    def put(
        self,
        name: str,
        value: np.ndarray,
        lanes: np.ndarray,
        known: np.ndarray | bool = True,
        exact: bool = False,
    ) -> None:
        """Writes a register in these lanes; not `exact`, extends a smaller value to it."""
        if name == "_":
            return
        kind = self.entry.registers[re.sub(r"\d+$", "", name)]
        goal = np.dtype(TYPES[kind])
        if name not in self.registers:
            start = gpu_junk.junk(self.junk, self.n * goal.itemsize, np.dtype(np.float32))
            self.registers[name] = start.copy().view(goal)
            self.written[name] = np.zeros(self.n, bool)
        if value.dtype.itemsize < goal.itemsize and not exact:
            value = value.astype(f"{value.dtype.kind}{goal.itemsize}")
        if value.dtype.itemsize != goal.itemsize:
            raise Fault(f"{name} is no {value.dtype}")
        self.registers[name][lanes] = value.view(goal)
        self.written[name][lanes] = known

    def _address(self, operand: str, lanes: np.ndarray) -> np.ndarray:
        base, _, offset = operand.strip("[]").partition("+")
        return self.get(base, "s64", lanes) + np.int64(offset or 0)

    def _items(self, operand: str) -> list[str]:
        return operand.strip("{}").replace(",", " ").split()

    # -- instructions with effects or several results

    def do_bra(self, i: Instruction, lanes: np.ndarray) -> None:
        self.pc[lanes] = self.entry.labels[i.operands[0]]

    def do_ret(self, i: Instruction, lanes: np.ndarray) -> None:
        self.state[lanes] = _DONE

    def do_bar(self, i: Instruction, lanes: np.ndarray) -> None:
        assert i.op == "bar.sync" and i.operands == ("0",)
        self.state[lanes] = _BARRIER

    def do_mov(self, i: Instruction, lanes: np.ndarray) -> None:
        target, source = i.operands
        kind = i.op.split(".")[1]
        if source.startswith("{"):
            items = self._items(source)
            part = f"b{int(kind[1:]) // len(items)}"
            value = np.stack([self.get(x, part, lanes) for x in items], 1).view(TYPES[kind])[:, 0]
        else:
            value = self.get(source, kind, lanes)
        names = self._items(target)
        if len(names) == 1:
            self.put(target, value, lanes)
            return
        halves = np.ascontiguousarray(value)[:, None].view(f"u{value.dtype.itemsize // len(names)}")
        for k, name in enumerate(names):
            self.put(name, halves[:, k], lanes)

    def do_setp(self, i: Instruction, lanes: np.ndarray) -> None:
        _, how, kind = i.op.split(".")
        a, b = (self.get(o, kind, lanes) for o in i.operands[1:])
        self.put(i.operands[0], ptx_values.compare(how, a, b), lanes)

    def do_cvt(self, i: Instruction, lanes: np.ndarray) -> None:
        parts = i.op.split(".")
        with np.errstate(all="ignore"):
            values = [self.get(o, parts[-1], lanes) for o in i.operands[1:]]
            self.put(i.operands[0], ptx_values.convert(parts, values), lanes)

    def do_ld(self, i: Instruction, lanes: np.ndarray) -> None:
        parts = i.op.split(".")
        kind, names = TYPES[parts[-1]], self._items(i.operands[0])
        if parts[1] == "param":
            value = self.params[i.operands[1].strip("[]")]
            self.put(names[0], np.full(lanes.size, value, kind), lanes)
            return
        memory, part = self.spaces[parts[1]]
        nbytes = np.dtype(kind).itemsize * len(names)
        at = self._address(i.operands[1], lanes)
        raw, known = memory.read(at, part[lanes], nbytes, len(names))
        found = np.ascontiguousarray(raw).view(kind)
        for k, name in enumerate(names):
            self.put(name, found[:, k], lanes, known[:, k])

    def do_st(self, i: Instruction, lanes: np.ndarray) -> None:
        parts = i.op.split(".")
        items = self._items(i.operands[1])
        values = np.stack([self.get(x, parts[-1], lanes) for x in items], 1)
        memory, part = self.spaces[parts[1]]
        memory.write(self._address(i.operands[0], lanes), part[lanes], values.view(np.uint8))

    def do_cp(self, i: Instruction, lanes: np.ndarray) -> None:
        if i.op.startswith(("cp.async.commit_group", "cp.async.wait_group")):
            return
        target, source, nbytes, *count = i.operands
        size = int(nbytes)
        values = np.zeros((lanes.size, size), np.uint8)
        given = self.get(count[0], "s32", lanes) if count else np.full(lanes.size, size)
        assert np.isin(given, (0, size)).all()
        some = given > 0
        memory, part = self.spaces["global"]
        at = self._address(source, lanes)
        values[some] = memory.read(at[some], part[lanes][some], size)[0]
        memory, part = self.spaces["shared"]
        memory.write(self._address(target, lanes), part[lanes], values)

    # -- warps

    def do_shfl(self, i: Instruction, lanes: np.ndarray) -> None:
        assert i.op == "shfl.sync.bfly.b32" and i.operands[3:] == ("31", "-1")
        value = self.get(i.operands[1], "b32", lanes)
        self.put(i.operands[0], value[np.arange(lanes.size) ^ int(i.operands[2])], lanes)

    def do_redux(self, i: Instruction, lanes: np.ndarray) -> None:
        how, kind = i.op.split(".")[2:]
        assert (self.get(i.operands[2], "u32", lanes) == 0xFFFFFFFF).all()
        rows = self.get(i.operands[1], kind, lanes).reshape(-1, _WARP)
        fold = {"add": np.add, "max": np.maximum}[how].reduce(rows, 1, dtype=rows.dtype)
        self.put(i.operands[0], np.repeat(fold, _WARP), lanes)

    def do_dp4a(self, i: Instruction, lanes: np.ndarray) -> None:
        kinds = ["i1" if k == "s32" else "u1" for k in i.op.split(".")[1:]]
        a, b, c = (self.get(o, "b32", lanes) for o in i.operands[1:])
        bytes_ = [x[:, None].view(k).astype(np.int32) for x, k in zip((a, b), kinds)]
        self.put(i.operands[0], (bytes_[0] * bytes_[1]).sum(1, np.int32) + c.view(np.int32), lanes)

    def do_mma(self, i: Instruction, lanes: np.ndarray) -> None:
        shape, sums = i.op.split(".")[3], i.op.split(".")[6]
        assert i.op.startswith(f"mma.sync.aligned.{shape}.row.col.{sums}.")
        assert (shape, sums) in (("m16n8k16", "f32"), ("m16n8k32", "s32"))
        names = [x for o in i.operands[1:] for x in self._items(o)]
        given = np.stack([self.get(x, "b32", lanes) for x in names], 1).view(np.uint8)
        self._per_warp(i, f"llvm.nvvm.mma.{shape}." + i.op.split(".")[-2], given, lanes)

    def do_ldmatrix(self, i: Instruction, lanes: np.ndarray) -> None:
        memory, part = self.spaces["shared"]
        at = self._address(i.operands[1], lanes)
        memory.read(at, part[lanes], 16)
        pointers = memory.data.ctypes.data + part[lanes] * memory.size + at
        given = pointers.astype(np.uint64)[:, None].view(np.uint8)
        turned = ".trans" if ".trans" in i.op else ""
        self._per_warp(i, f"llvm.nvvm.ldmatrix{turned}", given, lanes)

    def _per_warp(self, i: Instruction, name: str, given: np.ndarray, lanes: np.ndarray) -> None:
        slots = np.zeros((lanes.size, 2 * gpu_units.SLOT), np.uint8)
        slots[:, : given.shape[1]] = given
        for first in range(0, lanes.size, _WARP):
            gpu_units.compute(name, slots[first : first + _WARP])
        found = np.ascontiguousarray(slots[:, gpu_units.SLOT :]).view(np.uint32)
        for k, register in enumerate(self._items(i.operands[0])):
            self.put(register, found[:, k], lanes)


def play(
    text: str,
    arrays: Sequence[np.ndarray],
    known: Sequence[np.ndarray | None],
    threads: Sequence[int],
    grid: Sequence[int],
    dynamic: int = 0,
    junk: str = "random",
) -> None:
    """Runs the one kernel of a module in place on its buffers, the last of which are the scalars.
    `known` marks the bytes that are written (None: all). Raises Fault."""
    (entry,) = ptx_text.entries(text)
    bases, end = [], _APART
    for a in arrays:
        bases.append(end)
        end += -(-a.nbytes // 256) * 256 + _APART
    memory = Memory(end, 1, junk)
    memory.valid[:] = False
    for a, at, mark in zip(arrays, bases, known, strict=True):
        memory.data[at : at + a.nbytes] = a.view(np.uint8)
        memory.valid[at : at + a.nbytes] = True
        memory.known[at : at + a.nbytes] = True if mark is None else mark
    total, step = int(np.prod(grid)), max(1, (1 << 14) // int(np.prod(threads)))
    for first in range(0, total, step):
        groups = np.arange(first, min(first + step, total))
        Machine(entry, threads, groups, grid, memory, bases, dynamic, junk).run()
    for a, at, mark in zip(arrays, bases, known, strict=True):
        a.view(np.uint8)[:] = memory.data[at : at + a.nbytes]
        if mark is not None:
            mark[:] = memory.known[at : at + a.nbytes]
