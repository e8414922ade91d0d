"""own: kernels that a user wrote in the kernel language (`@weft.kernel`).

A composite "own" names such a kernel, written for the shapes of one call, by the digest of its
text. The kernel is portable: it names its threads itself. For a CPU, whose groups are one thread,
it becomes loops over them. Accesses that are not proved in range get a guard, as a stranger's do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError, LimitError, WeftError
from weft.core.lines import line_of
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.guard import guard
from weft.kernel.ir import Kernel
from weft.kernel.language import KernelWriter
from weft.kernel.one_thread import one_thread
from weft.kernel.printer import text
from weft.kernel.verify import verify
from weft.kernel.walk import changed, statements
from weft.ops.primitive import Aval
from weft.templates.group import Group
from weft.templates.registry import template

Numbers = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class WrittenKernel:
    """A kernel as its function wrote it, its outputs, and the user's line of each statement."""

    kernel: Kernel
    outputs: tuple[Aval, ...]
    lines: Mapping[int, str]


class OwnKernel:
    """A kernel for operands of some shapes and dtypes. `numbers` are the keyword arguments of
    `function`; each of `choices` gives some of them other values, which may be faster."""

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        operands: Sequence[tuple[str, Aval]],
        numbers: Numbers,
        choices: Sequence[Numbers] = (),
    ) -> None:
        self.name, self.operands, self.numbers = name, tuple(operands), dict(numbers)
        self._function, self.choices = function, tuple(dict(c) for c in choices)
        self._written: dict[Any, WrittenKernel] = {}
        self.outputs = self.written().outputs
        texts = [text(self.written(choice).kernel) for choice in ({}, *self.choices)]
        parts = (name, self.operands, self.outputs, self.choices, texts)
        self.digest = f"{name}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"

    def written(self, choice: Numbers = {}, same: Sequence[int] = ()) -> WrittenKernel:  # noqa: B006
        """The kernel with these numbers. `same` gives for each operand the first that is the same
        value: one buffer serves both. Raises what the function raises; errors of weft name the
        user's line."""
        key = (tuple(sorted(choice.items())), tuple(same))
        if key not in self._written:
            self._written[key] = self._write({**self.numbers, **choice}, same)
        return self._written[key]

    def suited(self, caps: Caps, choice: Numbers = {}, same: Sequence[int] = ()) -> WrittenKernel:  # noqa: B006
        """The kernel with `choice`, or with the first of the choices that the target can run."""
        able = (c for c in (choice, *self.choices) if not beyond(self.written(c).kernel, caps))
        return self.written(next(able, choice), same)

    def _write(self, numbers: Numbers, same: Sequence[int]) -> WrittenKernel:
        k = KernelWriter(self.name)
        places: list[Any] = []
        for i, (name, aval) in enumerate(self.operands):
            known = bool(same) and same[i] != i
            places.append(places[same[i]] if known else k.argument(name, aval.shape, aval.dtype))
        try:
            self._function(k, *places, **numbers)
            kernel = k.finished()
            verify(kernel)
        except WeftError as error:
            raise at_line(error, self.name, k.builder.lines) from None
        outputs = tuple(Aval(out.shape, out.dtype) for out in k.outputs)
        return WrittenKernel(kernel, outputs, k.builder.lines)


def at_line(error: WeftError, name: str, lines: Mapping[int, str]) -> WeftError:
    """The error with the user's line in front: that of the statement it is about, or that which
    raised it."""
    where = lines.get(id(getattr(error, "stmt", None))) or line_of(error)
    said = str(error)
    if where and where in said:
        return error
    return type(error)(f"{where + ': ' if where else ''}kernel {name}: {_bare(said, name)}")


def _bare(said: str, name: str) -> str:
    return said.removeprefix(f"kernel {name}: ")


BY_DIGEST: dict[str, OwnKernel] = {}


@template("own")
def build_own(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The user's kernel for these Caps. config: some of its numbers, one of its choices."""
    assert group.anchor is not None
    own = BY_DIGEST[group.anchor.attrs["params"]["kernel"]]
    first = {id(x): i for i, x in reversed(list(enumerate(group.anchor.inputs)))}
    same = [first[id(x)] for x in group.anchor.inputs]
    if [id(x) for x in group.inputs] != list(dict.fromkeys(map(id, group.anchor.inputs))):
        raise CompileError(f"the operands of kernel {own.name} are not in memory as they are")
    for choice in (config, {}, *own.choices):
        written = own.written(choice, same if len(set(same)) < len(same) else ())
        problem = beyond(written.kernel, caps)
        if not problem or (choice is config and config):
            break
    else:
        raise LimitError(f"kernel {own.name}: {beyond(own.written().kernel, caps)}")
    return for_caps(written.kernel, caps)


def beyond(kernel: Kernel, caps: Caps) -> str:
    """The feature that the kernel needs and the target lacks, or ""."""
    if len(kernel.buffers) > caps.max_bindings:
        return f"{len(kernel.buffers)} tensors, but {caps.name} binds {caps.max_bindings}"
    if caps.is_cpu:
        return ""
    x, y, z = kernel.threads
    if x * y * z > caps.max_threads:
        return f"{x * y * z} threads in a group, but {caps.name} has {caps.max_threads}"
    arrays = [s for s in statements(kernel.body) if isinstance(s, ir.Array)]
    shared = sum(a.size * a.dtype.itemsize for a in arrays if a.space == "shared")
    if shared > caps.shared_bytes:
        return f"{shared} bytes of shared arrays, but {caps.name} has {caps.shared_bytes}"
    return ""


def for_caps(kernel: Kernel, caps: Caps) -> Kernel:
    """The kernel with guards, for a CPU with one thread a group."""
    guarded = guard(kernel).kernel
    # Guards rely on integers in local arrays, which must start as zeros then; floats need not.
    arrays = [s for s in statements(kernel.body) if isinstance(s, ir.Array)]
    guarded = changed(guarded, clean=any(a.dtype is dt.int32 for a in arrays))
    return one_thread(guarded, caps.lanes) if caps.is_cpu else guarded


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """Returns the kernel's choices that fit the target."""
    assert group.anchor is not None
    own = BY_DIGEST[group.anchor.attrs["params"]["kernel"]]
    return [dict(c) for c in own.choices if not beyond(own.written(c).kernel, caps)]
