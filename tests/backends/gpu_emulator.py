"""A GPU kernel's LLVM IR, executed on the CPU: what the dialect wrote is what runs.

The text is the one that LLVM gets for a GPU, with the few GPU intrinsics replaced: an index is a
parameter, a barrier a POSIX barrier between as many threads as the group has, an exchange goes
through memory between two barriers, matrix instructions likewise (see gpu_units). What a thread
asks to be copied by itself arrives as late as it may. Groups run one after the other. Linux only.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import threading
from collections.abc import Sequence

import gpu_units
import llvmlite.binding as llvm
import numpy as np

from weft.backends.interp import InterpDevice
from weft.backends.llvm import launch, render_gpu
from weft.backends.llvm.gpu_target import GpuTarget
from weft.kernel.ir import Kernel

_DOTS = {"llvm.nvvm.idp4a.s.s": "ss", "llvm.nvvm.idp4a.u.s": "us", "llvm.amdgcn.sdot4": "ss"}
_HELPERS = """
define internal void @emu_sync(ptr %s) noinline convergent {
  %barrier = load ptr, ptr %s
  %at = getelementptr ptr, ptr %s, i64 1
  %wait = load ptr, ptr %at
  %ignored = call i32 %wait(ptr %barrier)
  ret void
}
define internal void @emu_copy(
    ptr %s, i32 %me, i32 %size, ptr addrspace(3) %to, ptr addrspace(1) %from, i32 %count
) noinline {
  %at = getelementptr ptr, ptr %s, i64 5
  %note = load ptr, ptr %at
  call void %note(i32 %me, i32 %size, ptr addrspace(3) %to, ptr addrspace(1) %from, i32 %count)
  ret void
}
define internal i32 @emu_pick(ptr %s, i32 %me, i32 %from, i32 %v) noinline convergent {
  %at = getelementptr ptr, ptr %s, i64 2
  %all = load ptr, ptr %at
  %mine = getelementptr i32, ptr %all, i32 %me
  store i32 %v, ptr %mine
  call void @emu_sync(ptr %s)
  %other = getelementptr i32, ptr %all, i32 %from
  %r = load i32, ptr %other
  call void @emu_sync(ptr %s)
  ret i32 %r
}
"""


def _dot(name: str, grow: str) -> str:
    """c + the four products of a's and b's bytes."""
    lines = [f"define internal i32 @{name}(i32 %a, i32 %b, i32 %c) {{"]
    lines += [f"  %{v}8 = bitcast i32 %{v} to <4 x i8>" for v in "ab"]
    lines += [f"  %aw = {grow} <4 x i8> %a8 to <4 x i32>", "  %bw = sext <4 x i8> %b8 to <4 x i32>"]
    lines += ["  %p = mul <4 x i32> %aw, %bw"]
    total = "%c"
    for i in range(4):
        lines.append(f"  %e{i} = extractelement <4 x i32> %p, i32 {i}")
        lines.append(f"  %s{i} = add i32 {total}, %e{i}")
        total = f"%s{i}"
    return "\n".join([*lines, f"  ret i32 {total}", "}"])


def _reduced(call: re.Match[str]) -> str:
    """A reduction over 32 threads, by exchanges."""
    out, op, value = call.groups()
    lines = []
    for distance in (16, 8, 4, 2, 1):
        name = f"{out}.{distance}"
        lines.append(f"{name}.from = xor i32 %me, {distance}")
        args = f"ptr %sync, i32 %me, i32 {name}.from, i32 {value}"
        lines.append(f"{name}.other = call i32 @emu_pick({args})")
        if op == "add":
            lines.append(f"{name} = add i32 {value}, {name}.other")
        else:
            sign = {"max": "sgt", "umax": "ugt"}[op]
            lines.append(f"{name}.more = icmp {sign} i32 {value}, {name}.other")
            lines.append(f"{name} = select i1 {name}.more, i32 {value}, i32 {name}.other")
        value = name
    return "\n  ".join([*lines, f"{out} = add i32 {value}, 0"])


def _with_copies(text: str) -> str:
    """cp.async as calls of `Copies.note`: the size and how much of it is read, or a group's end."""
    head = "call void @emu_copy(ptr %sync, i32 %me, "
    text = re.sub(
        r"call void @llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)(\.s)?\((.*)\)",
        lambda m: f"{head}i32 {m[1]}, {m[3]}{'' if m[2] else f', i32 {m[1]}'})",
        text,
    )
    nowhere = "ptr addrspace(3) null, ptr addrspace(1) null"
    text = re.sub(
        r"call void @llvm\.nvvm\.cp\.async\.commit\.group\(\)",
        f"{head}i32 -1, {nowhere}, i32 0)",
        text,
    )
    return re.sub(
        r"call void @llvm\.nvvm\.cp\.async\.wait\.group\(i32 (\d+)\)",
        rf"{head}i32 -2, {nowhere}, i32 \1)",
        text,
    )


class Copies:
    """What each thread asked to be copied and has not waited for: groups of (target, source, bytes,
    bytes that are read; the rest is 0)."""

    def __init__(self, threads: int) -> None:
        self.groups: list[list[list[tuple[int, int, int, int]]]] = [[[]] for _ in range(threads)]

    def note(self, me: int, size: int, target: int, source: int, count: int) -> None:
        groups = self.groups[me]
        if size == -1:
            groups.append([])
        elif size == -2:
            done = groups[: max(len(groups) - 1 - count, 0)]
            self.groups[me] = groups[len(done) :]
            for copy in (c for group in done for c in group):
                self._copy(*copy)
        else:
            assert target % size == source % size == 0, "a copy that is not aligned"
            groups[-1].append((target, source, size, count))

    def _copy(self, target: int, source: int, size: int, count: int) -> None:
        ctypes.memset(target, 0, size)
        ctypes.memmove(target, source, count)


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
    text = re.sub(
        r"(%\w+) = call i32 @llvm\.nvvm\.redux\.sync\.(\w+)\(i32 (\S+), i32 -1\)", _reduced, text
    )
    text = _with_copies(text)
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
    dots = _dot("emu_dot_ss", "sext") + "\n" + _dot("emu_dot_us", "zext")
    more = [gpu_units.function(f"emu_unit{n}", n, units[name]) for n, name in enumerate(units)]
    return "\n".join([_HELPERS, dots, *more, text, _main(kernel, meets)]), meets, list(units)


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
        "  %g = phi i32 [ 0, %entry ], [ %next, %loop ]",
        "  %gx = urem i32 %g, %x", "  %up = udiv i32 %g, %x", "  %gy = urem i32 %up, %y",
        "  %gz = udiv i32 %up, %y",
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
    kernel: Kernel, target: GpuTarget, arrays: Sequence[np.ndarray], scalars: Sequence[int]
) -> None:
    """Runs the kernel in place on its buffers."""
    grid = launch.launch_grid(kernel, scalars)
    if 0 in grid:
        return
    text, meets, units = cpu_text(kernel, target)
    engine, run = _compile(text)
    n = int(np.prod(kernel.threads))
    copies = [_aligned(a) for a in arrays]
    buffers = (ctypes.c_void_p * max(len(copies), 1))(*[c.ctypes.data for c in copies])
    values = _aligned(np.array([*scalars, 0], np.int32))
    libc = ctypes.CDLL(None)
    barrier, exchange = ctypes.create_string_buffer(256), np.zeros(2048, np.int32)
    libc.pthread_barrier_init(barrier, None, n)
    wait = ctypes.cast(libc.pthread_barrier_wait, ctypes.c_void_p).value
    slots = np.zeros((n, 2 * gpu_units.SLOT), np.uint8)
    failed: list[Exception] = []

    @_COMPUTE
    def compute(which: int, me: int) -> None:
        """The first thread of each subgroup computes for all."""
        if me % target.wave == 0:
            try:
                gpu_units.compute(units[which], slots[me : me + target.wave])
            except Exception as error:
                failed.append(error)

    copies_of = Copies(n)

    @_NOTE
    def note(me: int, size: int, target_at: int, source_at: int, count: int) -> None:
        try:
            copies_of.note(me, size, target_at, source_at, count)
        except Exception as error:
            failed.append(error)

    sync = (ctypes.c_void_p * 6)(
        ctypes.addressof(barrier), wait, exchange.ctypes.data, slots.ctypes.data,
        ctypes.cast(compute, ctypes.c_void_p).value, ctypes.cast(note, ctypes.c_void_p).value,
    )  # fmt: skip

    def thread(me: int) -> None:
        run(ctypes.addressof(buffers), values.ctypes.data, me, *grid, ctypes.addressof(sync))  # type: ignore[operator]

    if meets:
        workers = [threading.Thread(target=thread, args=(me,)) for me in range(n)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    else:
        for me in range(n):
            thread(me)
    if failed:
        raise failed[0]
    for array, copy in zip(arrays, copies):
        array[:] = copy
    del engine


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts where a GPU's buffers may start at least."""
    raw = np.zeros(array.nbytes + launch.ALIGN, np.uint8)
    start = -raw.ctypes.data % launch.ALIGN
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


class Emulated(InterpDevice):
    """A device whose kernels are a GPU's code, executed by the emulator."""

    kind = "recorder"

    def __init__(self, target: GpuTarget) -> None:
        super().__init__(target.caps)
        self.target = target
        self.played = 0

    def _dispatch(self, kernel: Kernel, args: list[np.ndarray], scalars: Sequence[int]) -> None:
        arrays = [
            raw[: b.size * b.dtype.itemsize].view(b.dtype.numpy)
            for raw, b in zip(args, kernel.buffers, strict=True)
        ]
        play(kernel, self.target, arrays, scalars)
        self.played += 1
