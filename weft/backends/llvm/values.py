"""Expressions: each Kernel IR expression becomes a few lines of LLVM IR and an operand."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm import text
from weft.backends.llvm.target import LlvmTarget
from weft.core import dtypes as dt
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.ir import Expr, Type
from weft.kernel.linear import is_linear

_FLOAT_UNARY = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil"}
_FLOAT_UNARY |= {"trunc": "trunc", "rint": "rint"}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_INT_BINARY |= {"shl": "shl"}
_SIGNED = {"div": "sdiv", "rem": "srem", "shr": "ashr", "lt": "slt", "le": "sle"}
_UNSIGNED = {"div": "udiv", "rem": "urem", "shr": "lshr", "lt": "ult", "le": "ule"}


def is_literal(operand: str) -> bool:
    """Is this operand the text of an integer constant?"""
    return operand.lstrip("-").isdigit()


class Values:
    """Emits the expressions of one kernel. `env` maps Var names to operands; a mutable Var maps to
    the pointer of its stack slot (listed in `slots`). `wides` holds the 64-bit form of the int32
    Vars that form addresses, so that LLVM does not widen them in loops."""

    def __init__(self, kernel: ir.Kernel, target: LlvmTarget) -> None:
        self.kernel = kernel
        self.target = target
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.slots: set[str] = set()
        self.axes: set[int] = set()
        self.params: dict[int, str] = {}
        self.wides: dict[str, str] = {}
        self.addressing: set[str] = set()  # Vars whose arithmetic forms addresses
        self.stack = text.pointer(target.stack_space)
        self._count = 0

    def fail(self, why: str) -> CompileError:
        return CompileError(f"kernel {self.kernel.name}: {why}")

    # -- lines and names

    def fresh(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, instruction: str) -> str:
        """Appends `%new = instruction` and returns the new operand."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def call(
        self, name: str, result: str, args: Sequence[tuple[str, str]], convergent: bool = False
    ) -> str:
        """A call of an intrinsic; `args` are (type, operand). Returns the operand ("" if void).
        Set `convergent` where LLVM does not mark the intrinsic as such itself."""
        types = ", ".join(type_.split(" align")[0] for type_, _ in args)
        self.declared[name] = f"declare {result} @{name}({types})"
        line = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self.lines.append(f"  {line}")
            return ""
        return self.emit(line + " convergent" * convergent)

    def intrinsic(self, base: str, type_: Type, *operands: str) -> str:
        """A call of `base` overloaded on one type that is also the type of every argument."""
        t = text.register(type_)
        name = f"{base}.{text.mangle(text.REGISTER[type_.dtype], type_.lanes)}"
        return self.call(name, t, [(t, x) for x in operands])

    # -- expressions

    def wide(self, x: Expr) -> str:
        """Emits the scalar int32 `x`, which forms an address, in the target's index type (64 bits
        on a CPU): such arithmetic does not overflow int32, so additions and products may be done
        in 64."""
        t = self.target.index
        if isinstance(x, ir.Var) and x.name in self.wides:
            return self.wides[x.name]
        if is_linear(x):
            assert isinstance(x, ir.Binary)
            a, b = self.wide(x.a), self.wide(x.b)
            return _fold(x.op, a, b) or self.emit(f"{_INT_BINARY[x.op]} nsw {t} {a}, {b}")
        return self.widened(self.value(x))

    def widened(self, operand: str) -> str:
        """An int32 operand in the target's index type."""
        if self.target.index == "i32" or is_literal(operand):
            return operand
        return self.emit(f"sext i32 {operand} to i64")

    def axis(self, x: ir.Axis) -> str:
        """The index of the group or thread."""
        if x.kind == "thread":
            return "0"
        self.axes.add(x.dim)
        return f"%group{x.dim}"

    def value(self, x: Expr) -> str:
        """Emits `x` and returns its operand."""
        if isinstance(x, ir.Const):
            return text.constant(x.value, x.type)
        if isinstance(x, ir.Var):
            operand = self.env[x.name]
            if x.name in self.slots:
                return self.emit(f"load {text.register(x.type)}, {self.stack} {operand}")
            return operand
        if isinstance(x, ir.Binary):
            return self.binary(x)
        if isinstance(x, ir.Load):
            return self.load(x)
        if isinstance(x, ir.Fma):
            return self.fma(x.type, self.value(x.a), self.value(x.b), self.value(x.c))
        if isinstance(x, ir.Select):
            return self.select(x)
        if isinstance(x, ir.Cast):
            return self.cast(self.value(x.x), x.x.type, x.type)
        if isinstance(x, ir.Vec):
            return self.vec(x)
        if isinstance(x, ir.Unary):
            return self.unary(x)
        if isinstance(x, ir.Bitcast):
            return self.bitcast(self.value(x.x), x.x.type, x.type)
        if isinstance(x, ir.Param):
            return self.params.setdefault(x.slot, f"%param{x.slot}")
        if isinstance(x, ir.Axis):
            return self.axis(x)
        if isinstance(x, ir.Collective):
            return self.collective(x)
        raise self.fail(f"the LLVM dialect has no rule for {type(x).__name__}")

    def load(self, x: ir.Load) -> str:
        raise NotImplementedError  # memory.Memory

    def unary(self, x: ir.Unary) -> str:
        operand, t, dtype = self.value(x.x), text.register(x.type), x.type.dtype
        if dtype.is_float:
            if dtype != dt.float32:
                raise self.fail(f"{x.op} on {dtype}: compute in float32")
            if x.op == "keep":
                return operand
            if x.op == "neg":
                return self.emit(f"fneg {t} {operand}")
            if x.op == "trunc" and x.type.lanes > 1 and not self.target.to_zero:
                return self.toward_zero(operand, x.type)
            if x.op in _FLOAT_UNARY:
                return self.intrinsic(f"llvm.{_FLOAT_UNARY[x.op]}", x.type, operand)
        elif x.op == "not":
            ones = "true" if dtype.kind == "bool" else "-1"
            full = ones if x.type.lanes == 1 else f"splat ({text.REGISTER[dtype]} {ones})"
            return self.emit(f"xor {t} {operand}, {full}")
        elif x.op == "neg" and dtype.is_int:
            return self.emit(f"sub {t} {text.constant(0, x.type)}, {operand}")
        elif x.op == "abs" and dtype.is_int:
            if dtype.kind == "uint":
                return operand
            name = f"llvm.abs.{text.mangle(text.REGISTER[dtype], x.type.lanes)}"
            return self.call(name, t, [(t, operand), ("i1", "false")])
        raise self.fail(f"no unary {x.op} on {dtype}")

    def toward_zero(self, x: str, type_: Type) -> str:
        """The integers that floats round to toward zero, by the nearest ones; signs are kept."""
        t, mask = text.register(type_), text.vector("i1", type_.lanes)
        near = self.intrinsic("llvm.rint", type_, x)
        sizes = [self.intrinsic("llvm.fabs", type_, v) for v in (near, x)]
        beyond = self.emit(f"fcmp ogt {t} {sizes[0]}, {sizes[1]}")
        one = self.intrinsic("llvm.copysign", type_, text.constant(1.0, type_), x)
        less = self.emit(f"fsub {t} {near}, {one}")
        found = self.emit(f"select {mask} {beyond}, {t} {less}, {t} {near}")
        return self.intrinsic("llvm.copysign", type_, found, x)

    def bitcast(self, operand: str, source: Type, goal: Type) -> str:
        """The same bits, the first lane in the lowest ones (of which a big-endian machine thinks
        otherwise)."""
        s, g = text.register(source), text.register(goal)
        if s == g:
            return operand
        n, m = source.lanes, goal.lanes
        if not self.target.swap or n == m:
            return self.emit(f"bitcast {s} {operand} to {g}")
        per = max(n, m) // min(n, m)
        turned = [i - i % per + per - 1 - i % per for i in range(max(n, m))]
        if n > m:
            return self.emit(f"bitcast {s} {self.shuffle(operand, 'poison', s, turned)} to {g}")
        return self.shuffle(self.emit(f"bitcast {s} {operand} to {g}"), "poison", g, turned)

    def fma(self, type_: Type, a: str, b: str, c: str) -> str:
        """a * b + c, in one rounding where the target has it."""
        if self.target.fused:
            return self.intrinsic("llvm.fma", type_, a, b, c)
        if self.target.madd:
            return self._madd(type_.lanes, a, b, c)
        product = self.emit(f"fmul {text.register(type_)} {a}, {b}")
        return self.emit(f"fadd {text.register(type_)} {product}, {c}")

    def _madd(self, n: int, *operands: str) -> str:
        """Emits the target's instruction of four lanes, so that a lane has the bits of a scalar."""
        t, four = text.vector("float", n), "<4 x float>"
        if n == 4:
            return self.call(self.target.madd, four, [(four, x) for x in operands])
        if n < 4:
            if n == 1:
                wide = [self.splat(x, Type(dt.float32, 4)) for x in operands]
            else:
                wide = [self.shuffle(x, "poison", t, [*range(n), *[0] * (4 - n)]) for x in operands]
            found = self._madd(4, *wide)
            if n == 1:
                return self.emit(f"extractelement {four} {found}, i32 0")
            return self.shuffle(found, "poison", four, range(n))
        halves = [
            self._madd(n // 2, *(self.shuffle(x, "poison", t, lanes) for x in operands))
            for lanes in (range(n // 2), range(n // 2, n))
        ]
        return self.shuffle(halves[0], halves[1], text.vector("float", n // 2), range(n))

    def min_max(self, op: str, type_: Type, a: str, b: str) -> str:
        """IEEE 754-2008 minNum or maxNum."""
        if self.target.min_max:
            return self.intrinsic(f"llvm.{op}num", type_, a, b)
        t, i1 = text.register(type_), text.vector("i1", type_.lanes)
        first = self.emit(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {a}, {b}")
        alone = self.emit(f"fcmp uno {t} {b}, {b}")
        chosen = self.emit(f"or {i1} {first}, {alone}")
        return self.emit(f"select {i1} {chosen}, {t} {a}, {t} {b}")

    def binary(self, x: ir.Binary) -> str:
        a, b = self.value(x.a), self.value(x.b)
        type_, op = x.a.type, x.op
        dtype, t = type_.dtype, text.register(x.a.type)
        if dtype.is_float:
            if dtype != dt.float32:
                raise self.fail(f"{op} on {dtype}: compute in float32")
            if op in ("min", "max"):
                return self.min_max(op, type_, a, b)
            if op in _FLOAT_COMPARE:
                return self.emit(f"fcmp {_FLOAT_COMPARE[op]} {t} {a}, {b}")
            if op in _FLOAT_BINARY:
                return self.emit(f"{_FLOAT_BINARY[op]} {t} {a}, {b}")
            raise self.fail(f"no binary {op} on {dtype}")
        if dtype == dt.int32 and type_.lanes == 1:
            folded = _fold(op, a, b)
            if folded is not None:
                return folded
        if dtype.kind == "bool" and op in ("min", "max"):
            op = {"min": "and", "max": "or"}[op]
        signed = dtype.kind == "int"
        if op in ("min", "max"):
            return self.intrinsic(f"llvm.{'s' if signed else 'u'}{op}", type_, a, b)
        if op in ("eq", "ne"):
            return self.emit(f"icmp {op} {t} {a}, {b}")
        if op in _INT_BINARY:
            return self.emit(f"{_INT_BINARY[op]} {t} {a}, {b}")
        name = (_SIGNED if signed else _UNSIGNED).get(op)
        if name is None:
            raise self.fail(f"no binary {op} on {dtype}")
        if op in ("div", "rem") and not (isinstance(x.b, ir.Const) and x.b.value not in (0, -1)):
            b = self._divisor(a, b, type_)
        return self.emit(f"{'icmp ' if op in ('lt', 'le') else ''}{name} {t} {a}, {b}")

    def _divisor(self, a: str, b: str, type_: Type) -> str:
        """1 in place of a divisor that would stop the process: 0 (its quotient is undefined, but
        lanes that a mask leaves out may hold it), and -1 under the least integer (which wraps)."""
        t, i1 = text.register(type_), text.vector("i1", type_.lanes)
        one = text.constant(1, type_)
        bad = self.emit(f"icmp eq {t} {b}, {text.constant(0, type_)}")
        if type_.dtype.kind == "int":
            least = text.constant(-(1 << (type_.dtype.itemsize * 8 - 1)), type_)
            negative = self.emit(f"icmp eq {t} {b}, {text.constant(-1, type_)}")
            low = self.emit(f"icmp eq {t} {a}, {least}")
            wraps = self.emit(f"and {i1} {negative}, {low}")
            bad = self.emit(f"or {i1} {bad}, {wraps}")
        return self.emit(f"select {i1} {bad}, {t} {one}, {t} {b}")

    def select(self, x: ir.Select) -> str:
        cond, a, b = self.value(x.cond), self.value(x.a), self.value(x.b)
        if cond in ("true", "false"):
            return a if cond == "true" else b
        c, t = text.register(x.cond.type), text.register(x.type)
        return self.emit(f"select {c} {cond}, {t} {a}, {t} {b}")

    # -- lanes

    def vec(self, x: ir.Vec) -> str:
        t = text.register(x.type)
        if x.op == "iota":
            element = text.REGISTER[x.type.dtype]
            return "<" + ", ".join(f"{element} {i}" for i in range(x.type.lanes)) + ">"
        args = [self.value(a) for a in x.args]
        source = text.register(x.args[0].type)
        if x.op == "splat":
            return self.splat(args[0], x.type)
        if x.op == "pack":
            result = "poison"
            for i, operand in enumerate(args):
                result = self.emit(f"insertelement {t} {result}, {source} {operand}, i32 {i}")
            return result
        if x.op == "any":
            name = f"llvm.vector.reduce.or.{text.mangle('i1', x.args[0].type.lanes)}"
            return self.call(name, "i1", [(source, args[0])])
        if x.op == "extract":
            return self.emit(f"extractelement {source} {args[0]}, i32 {x.lanes[0]}")
        if x.op == "shuffle":
            return self.shuffle(args[0], args[-1] if len(args) > 1 else "poison", source, x.lanes)
        if x.op == "lookup":
            return self._lookup(args[0], x.args[0].type.lanes, args[1], x.type.lanes)
        raise self.fail(f"no Vec {x.op}")

    def _lookup(self, table: str, size: int, index: str, n: int) -> str:
        """Emits the target's permutation; for a larger table, that of each half."""
        t, i32 = text.vector("float", n), text.vector("i32", n)
        if n not in self.target.permute:
            raise self.fail(f"no lookup in {n} lanes")
        if size <= n:
            whole = self.shuffle(
                table, "poison", text.vector("float", size), [i % size for i in range(n)]
            )
            return self.call(self.target.permute[n], t, [(t, whole), (i32, index)])
        half, source = size // 2, text.vector("float", size)
        low, high = (self.shuffle(table, "poison", source, range(h, h + half)) for h in (0, half))
        low, high = (self._lookup(x, half, index, n) for x in (low, high))
        bit = self.emit(f"and {i32} {index}, splat (i32 {half})")
        upper = self.emit(f"icmp ne {i32} {bit}, zeroinitializer")
        return self.emit(f"select <{n} x i1> {upper}, {t} {high}, {t} {low}")

    def splat(self, operand: str, type_: Type) -> str:
        element, t = text.REGISTER[type_.dtype], text.register(type_)
        if not operand.startswith("%"):
            return f"splat ({element} {operand})"
        first = self.emit(f"insertelement {t} poison, {element} {operand}, i32 0")
        return self.shuffle(first, "poison", t, (0,) * type_.lanes)

    def shuffle(self, a: str, b: str, t: str, lanes: Sequence[int]) -> str:
        if (
            self.target.dot4_features
            and t == "<4 x i8>"
            and list(lanes) == [0, 1, 2, 3] * (len(lanes) // 4)
        ):
            return self._splat_word(a, len(lanes) // 4)
        mask = ", ".join(f"i32 {i}" for i in lanes)
        return self.emit(f"shufflevector {t} {a}, {t} {b}, <{len(lanes)} x i32> <{mask}>")

    def _splat_word(self, bytes_: str, n: int) -> str:
        """Four bytes n times, as the splat of a word: LLVM takes others apart on Hexagon."""
        word = self.emit(f"bitcast <4 x i8> {bytes_} to i32")
        return self.emit(
            f"bitcast <{n} x i32> {self.splat(word, Type(dt.int32, n))} to <{4 * n} x i8>"
        )

    def cast(self, operand: str, source: Type, goal: Type) -> str:
        raise NotImplementedError  # casts.Casts

    def collective(self, x: ir.Collective) -> str:
        raise NotImplementedError  # dots.Dots


def _fold(op: str, a: str, b: str) -> str | None:
    """int32 arithmetic on literals, and neutral elements, so that unrolled code has constant
    indices from the start."""
    if is_literal(a) and is_literal(b) and op in ("add", "sub", "mul"):
        x, y = int(a), int(b)
        result = {"add": x + y, "sub": x - y, "mul": x * y}[op]
        return str(result) if -(1 << 31) <= result < 1 << 31 else None
    if op == "add" and a == "0":
        return b
    if op in ("add", "sub") and b == "0":
        return a
    if op == "mul" and "0" in (a, b):
        return "0"
    if op == "mul" and "1" in (a, b):
        return b if a == "1" else a
    return None
