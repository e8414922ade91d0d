"""Kernels → code of a machine: LLVM's objects, from the disk cache where they are, and lld."""

from __future__ import annotations

import base64
import functools
import hashlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.backends.emulated import guest, library
from weft.backends.emulated.machines import Machine
from weft.backends.llvm.dialect import ENTRY, render
from weft.core import versions
from weft.core.errors import CompileError, DeviceError
from weft.host.cache import DiskCache
from weft.host.confined import ChildError, Confined, Limits, Stopped
from weft.kernel.digest import digest
from weft.kernel.ir import Kernel

LINKER = "ld.lld"
_GUEST = 1 << 24  # the address of the guest's own code
_COMPILER = Path(__file__).with_name("compiler.py")
_PACKAGES = ("weft", "llvmlite", "numpy", "ml_dtypes")  # modules that the compiler imports
_LIMITS = Limits(seconds=300.0, memory=4 << 30, reply=256 << 20)
STEPS = ("weft_copy", "weft_fill")  # functions of the library
# All of an image in one piece, the addresses of what is wanted first.
_IMAGE = """SECTIONS {{
  .image {base:#x} : {{ {addresses} *(.text .text.*) *(.rodata .rodata.*) *(.data .data.*)
    *(.got) *(.toc .branch_lt) *(.sdata .sdata.*) *(.bss .bss.* .sbss .sbss.* COMMON) }}
  /DISCARD/ : {{ *(.comment .note* .eh_frame .riscv.attributes .hexagon.attributes) }}
}}
"""


def missing(machine: Machine) -> str:
    """Returns the missing tool and how to install it, or "" if all are installed."""
    for tool, package in ((machine.qemu[0], "qemu-user"), (LINKER, "lld")):
        if shutil.which(tool) is None:
            return f"{tool} is not there: apt install {package}"
    return ""


class TargetBuilder:
    """Compiles and links for one machine."""

    def __init__(self, machine: Machine, cache: DiskCache) -> None:
        self.machine = machine
        self._cache = cache
        setup = {
            "triple": machine.triple, "cpu": machine.cpu, "features": machine.features,
            "options": machine.options,
        }  # fmt: skip
        self._compiler = Confined(_COMPILER, _PACKAGES, setup, _LIMITS)
        self._salt = f"{versions.stamp('emulated code')}|{setup}"

    def render(self, kernel: Kernel) -> str:
        """The LLVM IR of a kernel."""
        return render(kernel, self.machine.caps, self.machine.target)

    def kernel(self, kernel: Kernel) -> tuple[str, bytes]:
        """The name of its function and the object that has it. Raises CompileError."""
        identity = f"{digest(kernel)}|{self.machine.caps.scratch_bytes}|{self.machine.target}"
        name = f"{ENTRY}_{hashlib.sha256(identity.encode()).hexdigest()[:24]}"

        def text() -> str:
            return self.render(kernel).replace(f"@{ENTRY}(", f"@{name}(")

        return name, self._object(name, kernel.name, text)

    def _object(self, identity: str, name: str, text: Callable[[], str]) -> bytes:
        key = "emulated:" + hashlib.sha256(f"{self._salt}|{identity}".encode()).hexdigest()
        found = self._cache.get(key)
        if found is None:
            found = self._compiled(text(), name)
            self._cache.put(key, found)
        return found

    def _compiled(self, text: str, name: str) -> bytes:
        try:
            found = self._compiler.call({"text": text, "name": name}, _LIMITS)
        except Stopped as why:
            raise CompileError(
                f"kernel {name}: LLVM, compiling it for {self.machine.name}, {why}"
            ) from None
        except ChildError as why:
            raise CompileError(f"{self.machine.name}: {why}") from None
        return base64.b64decode(found)

    def module(self, text: str, name: str) -> bytes:
        """The object of a module of our own."""
        return self._object(text, name, lambda: text)

    @functools.cached_property
    def library(self) -> bytes:
        return self.module(library.source(self.machine), "library")

    def program(self) -> bytes:
        """The guest's executable file."""
        objects = [self.module(guest.program(self.machine), "guest"), self.library]
        return linked(objects, ["--static", "--entry=_start", f"--image-base={_GUEST:#x}"])

    def image(
        self, wanted: Sequence[str], objects: Sequence[bytes], base: int
    ) -> tuple[list[int], bytes]:
        """(the addresses of the `wanted` functions, the bytes that belong at address `base`)."""
        word, letter = ("LONG", "I") if self.machine.pointer == 4 else ("QUAD", "Q")
        script = _IMAGE.format(base=base, addresses=" ".join(f"{word}({name})" for name in wanted))
        data = linked([*objects, self.library], ["--static", "--oformat=binary"], script)
        return list(struct.unpack_from(f"{self.machine.order}{len(wanted)}{letter}", data)), data


def linked(objects: Sequence[bytes], options: Sequence[str], script: str = "") -> bytes:
    """Returns the output of lld for `objects`. Raises CompileError with its first line."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        place = Path(folder)
        paths = []
        for i, data in enumerate(objects):
            paths.append(str(place / f"{i}.o"))
            Path(paths[-1]).write_bytes(data)
        if script:
            (place / "script").write_text(script)
            options = [*options, f"--script={place / 'script'}"]
        command = [LINKER, *options, "-o", str(place / "out"), *paths]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise DeviceError(
                f"{LINKER} does not start ({error.strerror}): apt install lld"
            ) from None
        if done.returncode:
            first = (done.stderr.strip().splitlines() or ["no reason given"])[0]
            raise CompileError(f"{LINKER} refuses the code: {first}")
        return (place / "out").read_bytes()
