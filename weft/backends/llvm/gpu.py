"""GPU kernels: one Kernel becomes one LLVM function that every thread runs (see launch.py)."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.llvm import launch, text
from weft.backends.llvm.gpu_copies import GpuCopies
from weft.backends.llvm.gpu_target import GpuTarget
from weft.core import dtypes as dt
from weft.core.errors import LimitError
from weft.kernel import ir
from weft.kernel.clean import cleared
from weft.kernel.ir import Type

_SHARED = 3  # the address space of memory that a group shares
_STACK = 256 << 10  # bytes of private arrays that a thread may have


def render_gpu(kernel: ir.Kernel, target: GpuTarget) -> str:
    """The text of one LLVM module with the kernel's function, named `launch.entry(kernel)`.

    Raises LimitError for a group that the architecture cannot hold, CompileError for what it
    cannot express.
    """
    return _GpuRenderer(cleared(kernel) if kernel.clean else kernel, target).module()


class _GpuRenderer(GpuCopies):
    end = "done"

    def __init__(self, kernel: ir.Kernel, target: GpuTarget) -> None:
        super().__init__(kernel, target)
        self.globals: list[str] = []
        self.entry = launch.entry(kernel)
        self.block = "group"
        self._private_bytes = 0
        self.shared_places, self.shared_bytes = launch.shared_layout(kernel)
        self.dynamic = launch.shared_bytes(kernel, target.static_shared) > 0

    def module(self) -> str:
        kernel, caps = self.kernel, self.gpu.caps
        x, y, z = kernel.threads
        if x * y * z > caps.max_threads:
            raise LimitError(
                f"kernel {kernel.name}: {x * y * z} threads per group; {caps.name} takes "
                f"{caps.max_threads}"
            )
        if self.shared_bytes > caps.shared_bytes:
            raise LimitError(
                f"kernel {kernel.name}: {self.shared_bytes} bytes of shared memory; {caps.name} "
                f"has {caps.shared_bytes}"
            )
        body = self.body()
        axes = self._axes()
        sizes = {"x": x, "y": y, "z": z, "n": x * y * z, "resident": kernel.resident}
        attributes = self.gpu.attributes.format(**sizes)
        flag = self.gpu.module_flags
        flags = [f'!llvm.module.flags = !{{!0}}\n!0 = !{{i32 1, !"{flag}", i32 500}}']
        lines = [
            f"; {' '.join(kernel.name.split())} for {self.gpu.arch}",
            f'target triple = "{self.gpu.triple}"',
            *self.globals,
            f"define protected {self.gpu.convention} void @{self.entry}({self._arguments()}) #0 {{",
            "entry:", *self.prologue, *self._load_params(), *axes,
            "  br label %group",
            "group:", *body,
            "  br label %done",
            "done:",
            "  ret void", "}",
            *sorted(self.declared.values()),
            f"attributes #0 = {{ {attributes} }}",
            "!1 = !{}",
            *(flags if flag else []),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    # -- arguments and indices

    def _arguments(self) -> str:
        p = text.pointer(self.target.buffer_space)
        how = {"r": " readonly", "w": " writeonly", "rw": ""}
        args = [
            f"{p} noalias{how[b.access]} align {launch.ALIGN} %buffer{i}"
            for i, b in enumerate(self.kernel.buffers)
        ]
        return ", ".join([*args, f"{p} noalias readonly align {launch.ALIGN} %scalars"])

    def _load_params(self) -> list[str]:
        lines, p = [], text.pointer(self.target.buffer_space)
        for slot, name in sorted(self.params.items()):
            lines.append(f"  {name}.at = getelementptr i32, {p} %scalars, i64 {slot}")
            lines.append(f"  {name} = load i32, {p} {name}.at, align 4, !invariant.load !1")
        return lines

    def axis(self, x: ir.Axis) -> str:
        """The index of the group or thread; 0 along an axis of one."""
        if x.kind == "group":
            self.axes.add(x.dim)
            return f"%group{x.dim}"
        threads = self.kernel.threads[x.dim]
        return self._index(self.gpu.thread, x.dim, threads) if threads > 1 else "0"

    def _index(self, name: str, dim: int, limit: int) -> str:
        name = name.format("xyz"[dim])
        self.declared[name] = f"declare i32 @{name}()"
        return self.emit(f"call range(i32 0, {limit}) i32 @{name}()")

    def _axes(self) -> list[str]:
        """%group0.. of the axes in use; of a folded grid from one number and the grid's lengths,
        which the scalars give."""
        outer, self.lines = self.lines, []
        most = (1 << 31) - 1
        if not launch.folded(self.kernel):
            for dim in sorted(self.axes):
                number = self._index(self.gpu.group, dim, most if dim == 0 else 65536)
                self.lines.append(f"  %group{dim} = add nuw nsw i32 {number}, 0")
        elif self.axes:
            number = self._index(self.gpu.group, 0, most)
            x, y = (self.value(g) for g in self.kernel.grid[:2])
            self.lines.append(f"  %group0 = urem i32 {number}, {x}")
            upper = self.emit(f"udiv i32 {number}, {x}")
            self.lines.append(f"  %group1 = urem i32 {upper}, {y}")
            self.lines.append(f"  %group2 = udiv i32 {upper}, {y}")
        found, self.lines = self.lines, outer
        return found

    # -- memory

    def declare_array(self, array: ir.Array) -> None:
        """A shared array is a variable of the module (or part of the launch's shared memory), a
        private one a local of the thread."""
        if array.name in self.places:
            return
        count, element = max(array.size, 1), text.MEMORY[array.dtype]
        nbytes = count * array.dtype.itemsize
        if array.space == "shared":
            name = self._shared_array(array, f"[{count} x {element}]")
        else:
            self._private_bytes += nbytes
            if self._private_bytes > _STACK:
                raise LimitError(
                    f"kernel {self.kernel.name}: {self._private_bytes} bytes of private arrays "
                    f"per thread; at most {_STACK}"
                )
            name = f"%{self.fresh('array')}"
            self.spaces[array.name] = self.target.stack_space
            where = f"align {launch.ALIGN}{self.stack_note}"
            self.prologue.append(f"  {name} = alloca [{count} x {element}], {where}")
            self.cleared(name, nbytes, self.target.stack_space)
        self.places[array.name] = name

    def _shared_array(self, array: ir.Array, type_: str) -> str:
        self.spaces[array.name] = _SHARED
        if not self.dynamic:
            name = f"@{self.entry}_{array.name}"
            kind = f"internal addrspace({_SHARED}) global {type_}"
            self.globals.append(f"{name} = {kind} poison, align {launch.ALIGN}")
            return name
        whole = f"@{self.entry}_shared"
        if not self.globals:
            kind = f"external addrspace({_SHARED}) global [0 x i8]"
            self.globals.append(f"{whole} = {kind}, align {launch.ALIGN}")
        at = self.shared_places[array.name]
        return f"getelementptr (i8, ptr addrspace({_SHARED}) {whole}, i32 {at})"

    def barrier(self, s: ir.Barrier) -> None:
        """All threads of the group meet, and see what the others wrote."""
        self.arrive()
        for line in self.gpu.barrier:
            if "@" in line:
                name = line.split("@")[1].split("(")[0]
                types = "i32" if "i32" in line else ""
                self.declared[name] = f"declare void @{name}({types})"
            self.lines.append(f"  {line}")

    # -- collectives

    def collective(self, x: ir.Collective) -> str:
        if x.op in ("dot2", "dot4"):
            return super().collective(x)
        value = self.value(x.args[0])
        if x.op == "subgroup_xor":
            return self._per_lane(value, x.type, lambda v: self._exchange(v, x.type.dtype, x.attr))
        op = x.op.removeprefix("subgroup_")
        return self._per_lane(value, x.type, lambda v: self._reduce(op, v, x.type.dtype))

    def _per_lane(self, operand: str, type_: Type, one: Callable[[str], str]) -> str:
        if type_.lanes == 1:
            return one(operand)
        t, element, result = text.register(type_), text.REGISTER[type_.dtype], "poison"
        for i in range(type_.lanes):
            part = one(self.emit(f"extractelement {t} {operand}, i32 {i}"))
            result = self.emit(f"insertelement {t} {result}, {element} {part}, i32 {i}")
        return result

    def _reduce(self, op: str, operand: str, dtype: dt.DType) -> str:
        """The sum or maximum over the subgroup, in every thread: for integers one instruction
        where there is one, else exchanges at distances wave / 2 ... 1."""
        name = self.gpu.reduce.get((op, dtype.kind))
        if name is not None:
            return self.call(name, "i32", [("i32", operand), ("i32", "-1")])
        t, distance = text.REGISTER[dtype], self.gpu.wave // 2
        while distance:
            other = self._exchange(operand, dtype, distance)
            if op == "add":
                add = "fadd" if dtype.is_float else "add"
                operand = self.emit(f"{add} {t} {operand}, {other}")
            else:
                base = {"float": "llvm.maxnum", "int": "llvm.smax", "uint": "llvm.umax"}[dtype.kind]
                operand = self.intrinsic(base, Type(dtype), operand, other)
            distance //= 2
        return operand

    def _exchange(self, operand: str, dtype: dt.DType, k: int) -> str:
        """The value of thread `lane ^ k`."""
        if not 0 <= k < self.gpu.wave:
            raise self.fail(f"subgroup_xor with {k} in a subgroup of {self.gpu.wave}")
        t = text.REGISTER[dtype]
        bits = operand if t == "i32" else self.emit(f"bitcast {t} {operand} to i32")
        if k >= self.gpu.swizzle:
            moved = self._far(bits, k)
        else:
            name, pattern = self.gpu.shuffle
            values = {"v": bits, "k": str(k), "pattern": str(k << 10 | 0x1F)}
            moved = self.call(name, "i32", [(u, v.format(**values)) for u, v in pattern])
        return moved if t == "i32" else self.emit(f"bitcast i32 {moved} to {t}")

    def _far(self, bits: str, k: int) -> str:
        """An exchange beyond 32 lanes, by the lane's own number (AMD)."""
        ones = [("i32", "-1")]
        low = self.call("llvm.amdgcn.mbcnt.lo", "i32", [*ones, ("i32", "0")])
        lane = self.call("llvm.amdgcn.mbcnt.hi", "i32", [*ones, ("i32", low)])
        other = self.emit(f"xor i32 {lane}, {k}")
        at = self.emit(f"shl i32 {other}, 2")
        return self.call("llvm.amdgcn.ds.bpermute", "i32", [("i32", at), ("i32", bits)])

    def _dot4(self, n: int, acc: str, a: str, b: str, a_dtype: dt.DType, small: int = 0) -> str:
        """One instruction per word where there is one."""
        words_of = self.gpu.dot4_word
        known = words_of.get(a_dtype.name) or (words_of.get("int8") if small else None)
        if known is None:
            return super()._dot4(n, acc, a, b, a_dtype, small)
        name, pattern = known
        i32 = text.vector("i32", n)
        words = [self.emit(f"bitcast <{4 * n} x i8> {v} to {i32}") for v in (a, b)]
        if n == 1:
            return self._dot_word(name, pattern, words[0], words[1], acc)
        result = "poison"
        for i in range(n):
            x, y, c = (self.emit(f"extractelement {i32} {v}, i32 {i}") for v in (*words, acc))
            part = self._dot_word(name, pattern, x, y, c)
            result = self.emit(f"insertelement {i32} {result}, i32 {part}, i32 {i}")
        return result

    def _dot_word(
        self, name: str, pattern: tuple[tuple[str, str], ...], a: str, b: str, c: str
    ) -> str:
        return self.call(name, "i32", [(t, v.format(a=a, b=b, c=c)) for t, v in pattern])
