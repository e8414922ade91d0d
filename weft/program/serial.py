"""Programs on disk: JSON and safetensors in a folder, a zip file or bytes. Never pickle.

    program.json         buffers, steps, scalars, kernel heads
    kernels.json         one body text per kernel
    consts.safetensors   constant buffers, by name
    report.json          the compiler's decisions (for people)

Everything read is checked: a truncated, inconsistent or hostile file raises FileFormatError.
"""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import DTypeError, FileFormatError, unreadable
from weft.host.files import write_bytes
from weft.program import tensors
from weft.program.checks import check_program_data
from weft.program.formula import Formula
from weft.program.gemm import Gemm, Matrix
from weft.program.kernel_json import kernel_body, kernel_head, read_kernel
from weft.program.program import (
    BufferRef,
    BufferSpec,
    Copy,
    Dispatch,
    Fill,
    Library,
    Program,
    Step,
)
from weft.program.recipe import Recipe

FORMAT = 2
MEMBERS = ("program.json", "kernels.json", "consts.safetensors")
MAX_BYTES = 1 << 32  # largest Program file: weights are not in it

PathLike = str | os.PathLike[str]


# -- writing --------------------------------------------------------------------------------------


def dumps(program: Program, report: bool = True) -> bytes:
    """The Program as the bytes of an uncompressed zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in _members(program, report).items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def save(program: Program, path: PathLike) -> None:
    """Writes a zip file (or, where `path` is an existing folder, its members there). A reader
    never sees half of it."""
    target = Path(path)
    if target.is_dir():
        for name, data in _members(program, True).items():
            write_bytes(target / name, data)
        return
    write_bytes(target, dumps(program))


def _members(program: Program, report: bool) -> dict[str, bytes]:
    consts = {b.name: b.value for b in program.buffers if b.value is not None}
    members = {
        "program.json": _json(head(program)),
        "kernels.json": _json([kernel_body(k) for k in program.kernels]),
        "consts.safetensors": tensors.dumps(consts),
    }
    found = program.meta.get("report")
    if report and found is not None:
        members["report.json"] = _json(found.data() if hasattr(found, "data") else found)
    return members


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def head(program: Program) -> dict[str, Any]:
    """Returns the content of program.json for a Program (docs/file-format.md), as JSON values."""
    return {
        "format": FORMAT,
        "name": program.name,
        "buffers": [
            [b.name, b.role, b.dtype.name, list(b.shape), b.nbytes] for b in program.buffers
        ],
        "kernels": [kernel_head(k) for k in program.kernels],
        "steps": [_step(s) for s in program.steps],
        "scalars": list(program.scalars),
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "rows": dict(program.meta.get("rows", {})),
        "recipes": {name: list(made) for name, made in program.recipes.items()},
        **({"formulas": _formulas(program)} if program.formulas else {}),
    }


def _formulas(program: Program) -> dict[str, Any]:
    return {name: made.plain() for name, made in program.formulas.items()}


def _ref(r: BufferRef) -> list[int]:
    return [r.buffer, r.offset, r.nbytes]


def _step(step: Step) -> list[Any]:
    if isinstance(step, Dispatch):
        line = ["dispatch", step.kernel, [_ref(a) for a in step.args], step.label]
        return [*line, _gemm(step.gemm)] if isinstance(step, Library) else line
    if isinstance(step, Copy):
        return ["copy", _ref(step.src), _ref(step.dst), step.label]
    return ["fill", _ref(step.dst), step.byte, step.label]


def _gemm(g: Gemm) -> list[Any]:
    every = (g.a, g.b, g.c, g.bias, g.residual)
    operands = [x and [x.arg, x.dtype.name, x.offset, *x.strides] for x in every]
    return [g.m, g.n, g.k, g.batch, g.gelu, *operands]


# -- reading --------------------------------------------------------------------------------------


def load(path: PathLike) -> Program:
    """The Program of a zip file or folder. Raises FileFormatError, whatever is there instead."""
    source = Path(path)
    if not os.path.isdir(source):
        return loads(read(source))
    return _program({name: read(source / name) for name in MEMBERS}, trusted=False)


def read(path: Path) -> bytes:
    """The bytes of a regular file of bounded size."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise FileFormatError(f"{path}: not a regular file; expected part of a weft program")
        if info.st_size > MAX_BYTES:
            raise FileFormatError(f"{path}: {info.st_size} bytes; {MAX_BYTES} are the most allowed")
        return path.read_bytes()
    except OSError as e:
        raise unreadable(path, e, "; not a weft program") from None


def loads(data: bytes, trusted: bool = False) -> Program:
    """The Program of `dumps`. With `trusted` (bytes that weft itself cached), kernel bodies are
    parsed only when a device needs them."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = {i.filename: i for i in archive.infolist()}
            missing = [name for name in MEMBERS if name not in infos]
            if missing:
                raise FileFormatError(f"the program file has no {missing[0]}")
            for info in infos.values():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                    raise FileFormatError(f"{info.filename}: compressed or lying about its size")
            members = {name: archive.read(name) for name in MEMBERS}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"not a weft program file: {error}") from error
    except EOFError as error:
        raise FileFormatError("the program file is truncated") from error
    return _program(members, trusted)


def report(data: bytes) -> Any:
    """The report in the bytes of a Program's file, as JSON; None where there is none to be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return json.loads(archive.read("report.json"))
    except (KeyError, ValueError, RecursionError, OSError, zipfile.BadZipFile):
        return None


def _program(members: Mapping[str, bytes], trusted: bool) -> Program:
    try:
        head = json.loads(members["program.json"])
        consts = tensors.loads(members["consts.safetensors"])
        return _build(head, members["kernels.json"], consts, trusted)
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, DTypeError) as error:
        raise FileFormatError(f"the program file is damaged: {error!r}") from error
    except (AttributeError, OverflowError) as error:
        raise FileFormatError(f"the program file is damaged: {error!r}") from error


def _build(head: Any, bodies: bytes, consts: Mapping[str, np.ndarray], trusted: bool) -> Program:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else None
        raise FileFormatError(f"program format {found!r}; this weft reads {FORMAT}: compile again")
    scalars = tuple(head["scalars"])
    texts = cache(partial(json.loads, bodies))  # the text of each body, when one is needed
    if not trusted and len(texts()) != len(head["kernels"]):
        raise FileFormatError(f"{len(texts())} kernel bodies for {len(head['kernels'])} kernels")
    kernels = (
        read_kernel(h, partial(lambda i: texts()[i], i), len(scalars), trusted)
        for i, h in enumerate(head["kernels"])
    )
    recipes = {name: Recipe(*made) for name, made in head["recipes"].items()}
    formulas = {name: Formula.read(raw) for name, raw in head.get("formulas", {}).items()}
    meta = {"rows": head["rows"], "recipes": recipes, "formulas": formulas}
    program = Program(
        head["name"],
        tuple(_buffer(entry, consts) for entry in head["buffers"]),
        tuple(kernels),
        tuple(_read_step(s) for s in head["steps"]),
        scalars,
        tuple(head["inputs"]),
        tuple(head["outputs"]),
        {k: v for k, v in meta.items() if v},
    )
    check_program_data(program)
    if trusted:
        return program
    from weft.program.foreign import harmless  # and what proves it, which a kept Program has behind

    return harmless(program)


def _buffer(entry: Any, consts: Mapping[str, np.ndarray]) -> BufferSpec:
    name, role, dtype, shape, nbytes = entry
    value = consts.get(name) if role == "const" else None
    return BufferSpec(name, role, as_dtype(dtype), tuple(shape), nbytes, value)


def _read_ref(entry: Any) -> BufferRef:
    buffer, offset, nbytes = entry
    return BufferRef(buffer, offset, nbytes)


def _read_step(entry: Any) -> Step:
    kind, first, second, label, *gemm = entry
    if not isinstance(label, str):
        raise FileFormatError("a step's label is not text")
    if kind == "dispatch":
        args = tuple(_read_ref(a) for a in second)
        if gemm:
            return Library(first, args, label, gemm=_read_gemm(*gemm))
        return Dispatch(first, args, label)
    if gemm:
        raise FileFormatError(f"a step {kind!r} has more to it than it may")
    if kind == "copy":
        return Copy(_read_ref(first), _read_ref(second), label)
    if kind == "fill":
        return Fill(_read_ref(first), second, label)
    raise FileFormatError(f"unknown step {kind!r}")


def _read_gemm(entry: Any) -> Gemm:
    m, n, k, batch, gelu, a, b, c, bias, residual = entry
    added = [None if x is None else _read_matrix(x) for x in (bias, residual)]
    a, b, c = map(_read_matrix, (a, b, c))
    return Gemm(m, n, k, batch, a, b, c, added[0], added[1], gelu)


def _read_matrix(entry: Any) -> Matrix:
    arg, dtype, offset, batch, row, column = entry
    return Matrix(arg, as_dtype(dtype), offset, (batch, row, column))
