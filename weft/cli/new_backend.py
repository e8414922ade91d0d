"""`weft new-backend`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from weft.cli import options
from weft.core import install
from weft.core.errors import UsageError
from weft.core.hints import command
from weft.host.files import replacing_folder, write_text

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = "weft-{name}"
version = "0.1.0"
description = "The device {name} for weft."
requires-python = ">=3.11"
dependencies = ["{weft}"]

[project.entry-points."weft.backends"]
{name} = "{module}:{type}"

[tool.setuptools]
py-modules = ["{module}"]
"""
_README = """\
# weft-{name}

The device `{name}` for weft. As it is, weft's kernel interpreter computes.

    pip install -e .
    weft devices
    weft check --device {name} --level device

Make `{module}.py` talk to your hardware, one level of `weft check` after the other. What each
proves, and what you replace for it (`weft.program.device` says what each method promises; the
class inherits all of them from `weft.backends.interp`, where you see them work):

| level | what is yours |
| --- | --- |
| `device` | `alloc`, `write`, `read`, and `bind`, `submit` for steps that copy and fill |
| `kernels` | `load`: each Kernel as code of your chip; `bind`, `submit` launch it |
| `primitives`, `templates` | `Caps`, as far as the hardware helps: templates choose by them |
| `models`, `stress` | nothing more |

`load` is handed values of `weft.kernel.ir.Kernel`, about two dozen kinds of node and no operation
of a model (`print(weft.kernel.printer.text(kernel))`). Two ways to code:

- LLVM knows your chip: `weft.backends.llvm.dialect.render(kernel, caps, LlvmTarget("{name}"))` is
  LLVM IR for Caps with `max_threads=1`, with the entry
  `weft_kernel(ptr buffers, ptr scalars, i32 gx, i32 gy, i32 gz, i64 begin, i64 end, ptr scratch)`:
  `buffers` is an array of addresses, and groups `begin` to `end` of the grid are played. Compile it
  for your triple with llvmlite. `weft.backends.emulated` is such a device (its machines.py: what
  differs).
- It takes another language: a dialect, a function from Kernel to text. `weft.backends.wgsl` is one.

`weft.kernel.grid.groups(kernel, scalars)` is the size of a launch. weft's docs/new-hardware.md goes
through all of this with examples.
"""
_TEST = """\
from {module} import {type}

from weft.conform.check import check_device


def test_the_contract_of_a_device():
    report = check_device({type}(), ["device"])
    assert report.ok, [case for case in report.cases if case.status == "fail"]
"""


@click.command(epilog="Example:  weft new-backend mychip && pip install -e weft-mychip")
@click.argument("name")
@options.output("The folder to write (default: weft-NAME).", old=["--out"])
def new_backend(name: str, output: str | None) -> None:
    """Write a starter package that adds the device NAME: a pyproject file, a small module and a
    test. Once installed, it passes `weft check --device NAME --level device` unchanged."""
    folder = Path(output or f"weft-{name}")
    files = package(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; name another folder with -o")
    with replacing_folder(folder) as new:
        for path, content in files.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            write_text(new / path, content)
    click.echo(f"wrote {folder}: {', '.join(files)}")
    check = command("check", "--device", name, "--level", "device")
    click.echo(f"next: pip install -e {shlex.quote(str(folder))} && {check}")


def package(name: str) -> dict[str, str]:
    """The files of a package that adds the device `name`: path -> content. Raises UsageError for a
    name that cannot be a device's."""
    from weft.backends import null, registry

    if not re.fullmatch("[a-z]([a-z0-9_]{0,39}[a-z0-9])?", name):
        raise UsageError(
            f"{name[:60]!r} cannot name a device: use a small letter, then small letters, digits "
            "and underscores, 41 in all at most and no underscore at the end"
        )
    if registry.is_own(name):
        raise UsageError(f"{name} is a device of weft's own; choose another name")
    if f"weft-{name}" == install.name():
        raise UsageError(f"weft-{name} is what weft itself is called; choose another name")
    words = {
        "name": name,
        "weft": install.name(),
        "module": f"weft_{name}",
        "type": "".join(part.capitalize() for part in name.split("_")) + "Device",
    }
    source = Path(null.__file__).read_text(encoding="utf-8")
    head = f'"""The device {name}, begun by `weft new-backend` as a copy of weft.backends.null.'
    body = head + source[source.index("\n") :]
    for old, new in (("NullDevice", words["type"]), ('"null"', f'"{name}"'), ("null:", f"{name}:")):
        body = body.replace(old, new)
    return {
        "pyproject.toml": _PYPROJECT.format(**words),
        "README.md": _README.format(**words),
        f"{words['module']}.py": body,
        "tests/test_device.py": _TEST.format(**words),
    }
