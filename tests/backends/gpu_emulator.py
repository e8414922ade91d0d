"""A GPU kernel's LLVM IR, executed on the CPU: what the dialect wrote is what runs.

The text is the one that LLVM gets for a GPU, with the few GPU intrinsics replaced: an index is a
parameter, a group's threads are fibers that meet at its barriers (gpu_fibers), an exchange goes
through memory between two barriers, matrix instructions likewise (see gpu_units). What a thread
asks to be copied by itself arrives as late as it may. Groups run one after the other. Linux only.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import gpu_copies
import gpu_fibers
import gpu_helpers
import gpu_junk
import gpu_units
import llvmlite.binding as llvm
import numpy as np

from weft.backends import registry
from weft.backends.interp import HostBuffer, InterpBound, InterpDevice
from weft.backends.llvm import launch, render_gpu
from weft.backends.llvm.gpu_target import GpuTarget
from weft.conform.report import Skip
from weft.core import dtypes as dt
from weft.kernel.ir import Kernel
from weft.program.device import Bound, Buffer
from weft.program.program import BufferRef, Copy, Dispatch, Fill

Arrays, Ints = list[np.ndarray], Sequence[int]
_DOTS = {"llvm.nvvm.idp4a.s.s": "ss", "llvm.nvvm.idp4a.u.s": "us", "llvm.amdgcn.sdot4": "ss"}


def cpu_text(kernel: Kernel, target: GpuTarget) -> tuple[str, bool, list[str]]:
    """The module for the CPU, whether its threads meet, and the names of the matrix instructions,
    in the order of their numbers."""
    plain = dataclasses.replace(target, bf16_round=False, f16_convert=False)
    text = render_gpu(kernel, plain)
    text = text.replace(", addrspace(5)", "").replace("ptr addrspace(5)", "ptr")
    text = re.sub(r"^target triple.*\n|^!llvm.module.flags.*\n|^!0 = .*\n", "", text, flags=re.M)
    text = text.replace("internal addrspace(3) global", "addrspace(3) global")
    given = launch.shared_bytes(kernel, target.static_shared)
    text = text.replace(
        "external addrspace(3) global [0 x i8]",
        f"addrspace(3) global [{given} x i8] zeroinitializer",
    )
    units = gpu_units.declared(text)
    text = re.sub(r"^declare .*@llvm\.(nvvm|amdgcn)\..*\n", "", text, flags=re.M)
    extra = "i32 %me, i32 %tx, i32 %ty, i32 %tz, i32 %gx, i32 %gy, i32 %gz, ptr %sync"
    text = re.sub(
        r"define protected \w+ void @\w+\((.*)\) #0",
        rf"define internal void @body(\1, {extra})",
        text,
    )
    text = re.sub(r"^attributes #0.*$", "", text, flags=re.M)
    for axis in "xyz":
        for name, short in ((target.thread, "t"), (target.group, "g")):
            call = rf"call range\(.*?\) i32 @{re.escape(name.format(axis))}\(\)"
            text = re.sub(call, f"add i32 %{short}{axis}, 0", text)
    before = text
    text = re.sub(
        r"call void @llvm\.(nvvm\.barrier|amdgcn\.s\.barrier).*",
        "call void @emu_sync(ptr %sync)",
        text,
    )
    text = re.sub(
        r"(%\w+) = call i32 @llvm\.nvvm\.shfl\S+\(i32 -1, i32 (\S+), i32 (\d+), i32 31\)",
        r"\1.from = xor i32 %me, \3\n"
        r"  \1 = call i32 @emu_pick(ptr %sync, i32 %me, i32 \1.from, i32 \2)",
        text,
    )
    text = re.sub(
        r"(%\w+) = call i32 @llvm\.amdgcn\.ds\.swizzle\(i32 (\S+), i32 (\d+)\)",
        lambda m: (
            f"{m[1]}.from = xor i32 %me, {int(m[3]) >> 10}\n  {m[1]} = call i32 "
            f"@emu_pick(ptr %sync, i32 %me, i32 {m[1]}.from, i32 {m[2]})"
        ),
        text,
    )
    text = re.sub(r"call i32 @llvm\.amdgcn\.mbcnt\.lo\(i32 -1, i32 0\)", "add i32 0, 0", text)
    text = re.sub(r"call i32 @llvm\.amdgcn\.mbcnt\.hi\(.*\)", "and i32 %me, 63", text)
    text = re.sub(
        r"(%\w+) = call i32 @llvm\.amdgcn\.ds\.bpermute\(i32 (\S+), i32 (\S+)\)",
        r"\1.lane = lshr i32 \2, 2\n  \1.wave = and i32 %me, -64\n"
        r"  \1.from = or i32 \1.lane, \1.wave\n"
        r"  \1 = call i32 @emu_pick(ptr %sync, i32 %me, i32 \1.from, i32 \3)",
        text,
    )
    redux = r"(%\w+) = call i32 @llvm\.nvvm\.redux\.sync\.(\w+)\(i32 (\S+), i32 -1\)"
    text = re.sub(redux, gpu_helpers.reduced, text)
    text = gpu_copies.with_copies(text)
    for n, name in enumerate(units):
        text = text.replace(f"@{name}(", f"@emu_unit{n}(ptr %sync, i32 %me, ")
    meets = text != before
    for name, kind in _DOTS.items():
        text = re.sub(rf"@{re.escape(name)}\((.*?)(, i1 false)?\)", rf"@emu_dot_{kind}(\1)", text)
    text = re.sub(
        r"@llvm\.amdgcn\.sudot4\(i1 (true|false), (.*?), i1 true, (.*?), i1 false\)",
        lambda m: f"@emu_dot_{'ss' if m[1] == 'true' else 'us'}({m[2]}, {m[3]})",
        text,
    )
    left = re.search(r"@llvm\.(nvvm|amdgcn)\.\S+", text)
    assert left is None, left
    dots = gpu_helpers.dot("emu_dot_ss", "sext") + "\n" + gpu_helpers.dot("emu_dot_us", "zext")
    more = [gpu_units.function(f"emu_unit{n}", n, units[name]) for n, name in enumerate(units)]
    text = gpu_junk.with_junk(text)
    return (
        "\n".join([gpu_fibers.TEXT, gpu_helpers.HELPERS, dots, *more, text, _main(kernel, meets)]),
        meets,
        list(units),
    )


def _main(kernel: Kernel, meets: bool) -> str:
    """run(bufs, scalars, thread, groups x, y, z, sync): one thread's part of every group."""
    x, y, _ = kernel.threads
    n = len(kernel.buffers)
    lines = [
        "define void @run(ptr %bufs, ptr addrspace(1) %scalars, i32 %me, i32 %x, i32 %y, i32 %z, "
        "ptr %sync) {",
        "entry:",
        f"  %tx = urem i32 %me, {x}",
        f"  %upper = udiv i32 %me, {x}",
        f"  %ty = urem i32 %upper, {y}",
        f"  %tz = udiv i32 %upper, {y}",
    ]
    for i in range(n):
        lines.append(f"  %at{i} = getelementptr ptr, ptr %bufs, i64 {i}")
        lines.append(f"  %b{i} = load ptr addrspace(1), ptr %at{i}")
    args = [f"ptr addrspace(1) %b{i}" for i in range(n)] + ["ptr addrspace(1) %scalars"]
    args += ["i32 %me", "i32 %tx", "i32 %ty", "i32 %tz", "i32 %gx", "i32 %gy", "i32 %gz"]
    lines += [
        "  %xy = mul i32 %x, %y", "  %total = mul i32 %xy, %z", "  br label %loop", "loop:",
        "  %g = phi i32 [ 0, %entry ], [ %next, %go ]",
        "  %gx = urem i32 %g, %x", "  %up = udiv i32 %g, %x", "  %gy = urem i32 %up, %y",
        "  %gz = udiv i32 %up, %y",
        "  %first = icmp eq i32 %me, 0", "  br i1 %first, label %fill, label %go", "fill:",
        "  %at.fill = getelementptr ptr, ptr %sync, i64 7", "  %filled = load ptr, ptr %at.fill",
        "  call void %filled()", "  br label %go", "go:",
        *(["  call void @emu_sync(ptr %sync)"] if meets else []),
        f"  call void @body({', '.join(args)}, ptr %sync)",
        *(["  call void @emu_sync(ptr %sync)"] if meets else []),
        "  %next = add i32 %g, 1", "  %more = icmp ult i32 %next, %total",
        "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


_NOTE = ctypes.CFUNCTYPE(
    None, ctypes.c_int32, ctypes.c_int32, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int32
)
_COMPUTE = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32)
_FILL = ctypes.CFUNCTYPE(None)
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int32] * 4, ctypes.c_void_p
)


def _compile(text: str) -> tuple[llvm.ExecutionEngine, object]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine, _SIGNATURE(engine.get_function_address("run"))


def play(
    kernel: Kernel,
    target: GpuTarget,
    arrays: Sequence[np.ndarray],
    scalars: Sequence[int],
    known: Sequence[np.ndarray | None] | None = None,
    kinds: Sequence[str] = gpu_junk.KINDS[:2],
) -> None:
    """Runs the kernel in place on its buffers, once for each kind of junk (see gpu_junk), which
    must differ in every byte."""
    grid = launch.launch_grid(kernel, scalars)
    if 0 in grid:
        return
    emulation = _Emulation(kernel, target)
    writes = [b.access == "w" for b in kernel.buffers]
    fills = gpu_junk.Fills(arrays, known or [None] * len(arrays), writes)
    found = {kind: [_aligned(a) for a in fills.fill(kind)] for kind in kinds}
    for i, (kind, copies) in enumerate(found.items()):
        emulation.run(copies, scalars, grid, kind, backwards=i % 2 == 1)
    fills.settle(kernel.name, found)


class _Emulation:
    """One kernel, compiled for the CPU."""

    def __init__(self, kernel: Kernel, target: GpuTarget) -> None:
        text, self.meets, self.units = cpu_text(kernel, target)
        self.engine, self.function = _compile(text)
        self.n, self.wave = int(np.prod(kernel.threads)), target.wave
        address = self.engine.get_global_value_address
        self.shared = [(address(k), n) for k, n in gpu_junk.shared_arrays(text).items()]

    def run(
        self,
        arrays: list[np.ndarray],
        scalars: Sequence[int],
        grid: tuple[int, int, int],
        kind: str,
        backwards: bool = False,
    ) -> None:
        """All groups; the threads of each take turns upwards, or `backwards`."""
        buffers = (ctypes.c_void_p * max(len(arrays), 1))(*[a.ctypes.data for a in arrays])
        values = _aligned(np.array([*scalars, 0], np.int32))
        fibers = gpu_fibers.Fibers(self.n, grid, backwards)
        exchange = np.zeros(2048, np.int32)
        slots = np.zeros((self.n, 2 * gpu_units.SLOT), np.uint8)
        left = gpu_junk.junk(kind, 1 << 19, np.dtype(np.float32))
        failed: list[Exception] = []

        @_COMPUTE
        def compute(which: int, me: int) -> None:
            """The first thread of each subgroup computes for all."""
            if me % self.wave == 0:
                try:
                    gpu_units.compute(self.units[which], slots[me : me + self.wave])
                except Exception as error:
                    failed.append(error)

        copies_of = gpu_copies.Copies(self.n)

        @_NOTE
        def note(me: int, size: int, target_at: int, source_at: int, count: int) -> None:
            try:
                copies_of.note(me, size, target_at, source_at, count)
            except Exception as error:
                failed.append(error)

        @_FILL
        def fill() -> None:
            for at, nbytes in self.shared:
                ctypes.memmove(at, left.ctypes.data, nbytes)

        at = [ctypes.cast(f, ctypes.c_void_p).value for f in (compute, note, fill)]
        places = (ctypes.c_void_p * 10)(
            fibers.state.ctypes.data, fibers.contexts.ctypes.data, exchange.ctypes.data,
            slots.ctypes.data, at[0], at[1], left.ctypes.data, at[2],
            ctypes.addressof(buffers), values.ctypes.data,
        )  # fmt: skip
        where = ctypes.addressof(places)
        if self.meets:
            fibers.run(self.engine, where)
        else:
            for me in range(self.n)[:: -1 if backwards else 1]:
                self.function(ctypes.addressof(buffers), values.ctypes.data, me, *grid, where)  # type: ignore[operator]
        if failed:
            raise failed[0]


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts where a GPU's buffers may start at least."""
    raw = np.zeros(array.nbytes + launch.ALIGN, np.uint8)
    start = -raw.ctypes.data % launch.ALIGN
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


class Emulated(InterpDevice):
    """A device whose kernels are a GPU's code, executed by the emulator. It knows which bytes of
    its memory were written, and gives the others to kernels as junk."""

    kind = "recorder"

    def __init__(self, target: GpuTarget, kinds: Sequence[str] = gpu_junk.KINDS[:2]) -> None:
        super().__init__(target.caps)
        self.target, self.kinds = target, kinds
        self.played = 0

    def alloc(self, nbytes: int) -> HostBuffer:
        buffer = super().alloc(nbytes)
        buffer.known = np.zeros(buffer.data.size, bool)  # type: ignore[attr-defined]
        return buffer

    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        super().write(buffer, data, offset)
        buffer.known[offset : offset + data.nbytes] = True  # type: ignore[attr-defined]

    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: dt.DType, offset: int = 0
    ) -> np.ndarray:
        found = super().read(buffer, shape, dtype, offset)
        known = buffer.known[offset : offset + found.nbytes]  # type: ignore[attr-defined]
        assert known.all(), f"{(~known).sum()} bytes of {found.nbytes} were never written"
        return found

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        assert isinstance(bound, InterpBound)

        def known(ref: BufferRef) -> np.ndarray:
            found: np.ndarray = bound.buffers[ref.buffer].known  # type: ignore[attr-defined]
            return found[ref.offset : ref.offset + ref.nbytes]

        for step in bound.program.steps:
            if isinstance(step, Dispatch):
                kernel = bound.program.kernels[step.kernel]
                arrays, marks = [], []
                for ref, b in zip(step.args, kernel.buffers, strict=True):
                    nbytes = b.size * b.dtype.itemsize
                    arrays.append(bound.view(ref)[:nbytes].view(b.dtype.numpy))
                    marks.append(known(ref)[:nbytes])
                self.launch(kernel, arrays, scalars, marks)
                self.played += 1
            elif isinstance(step, Copy):
                bound.view(step.dst)[:] = bound.view(step.src).copy()
                known(step.dst)[:] = known(step.src).copy()
            elif isinstance(step, Fill):
                bound.view(step.dst)[:] = step.byte
                known(step.dst)[:] = True

    def launch(self, kernel: Kernel, arrays: Arrays, scalars: Ints, known: Arrays) -> None:
        """One dispatch, in place; `known` marks the bytes that were written."""
        play(kernel, self.target, arrays, scalars, known, self.kinds)

    def run_checks(
        self, checks: Iterable[tuple[str, Any]], let: tuple[type[Exception], ...] = (Skip,)
    ) -> int:
        """Runs a level's checks here; what they raise of `let` is no failure. How many kernels
        that took."""
        registry._open_devices["recorder:0"] = self
        try:
            for name, check in checks:
                try:
                    check()
                except let:
                    continue
                except Exception as error:
                    raise AssertionError(f"{self.caps.name}, {name}: {error}") from error
        finally:
            del registry._open_devices["recorder:0"]
        return self.played
