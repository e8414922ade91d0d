"""Compiled models in one file (`weft compile`): Programs for one kind of device, weights in its
order, and tokenizer. Running one compiles no graph."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import FileFormatError, UsageError
from weft.engine.defaults import NO_DEFAULTS, GenerationDefaults
from weft.host.records import from_data, to_data
from weft.models.arch.config import DecoderConfig, TokenIds
from weft.models.arch.inputs import columns, states
from weft.models.arch.weights import Weights
from weft.models.run.base import Model
from weft.models.run.compiled_runner import CompiledRunner, step_sizes
from weft.models.run.embedder import Encoder
from weft.models.run.judge import Judge
from weft.models.run.model import Decoder
from weft.models.run.placed import Placed
from weft.models.run.recomputed import CompiledRecomputing
from weft.models.run.runner import PREFILL, ROWS, Runner, kind_of
from weft.models.run.saved_reader import (
    Parts,
    compiled,
    given,
    load_reader,
    reader_parts,
    tokenizer_of,
    with_steps,
)
from weft.program import bundle
from weft.program.bundle import Bundle
from weft.program.program import Program
from weft.program.weights import Ordered
from weft.tensor.program_cache import vouch

if TYPE_CHECKING:
    from weft.program.device import Device


# -- writing --------------------------------------------------------------------------------------


def save(
    model: Model, path: Path, device: str, caps: Caps, flags: Mapping[str, Any], beside: bool
) -> Bundle:
    """Writes a file for `load`, compiled for `caps`, which `device` names; `flags` records the
    options for people. Returns what was written. Raises CompileError, UsageError, StorageError."""
    import weft

    head: dict[str, Any] = {"weft": weft.__version__, "name": model.folder.name, "device": device}
    head |= {"caps": to_data(caps), "flags": dict(flags), "precision": model.precision}
    if isinstance(model, Decoder):
        made, weights, more = _decoder_parts(model, caps)
    elif isinstance(model, Encoder | Judge):
        made, weights, more = reader_parts(model, caps)
    else:
        raise UsageError(f"{model.folder}: a {type(model).__name__} is not compiled to a file")
    files = {}
    tokenizer = model.tokenizer
    if tokenizer is not None:
        about = tokenizer.made()
        files["tokenizer.json"] = about.data
        files["tokenizer_config.json"] = json.dumps(about.config).encode()
        head["text"] = {"limit": tokenizer.limit, "lower": tokenizer.lower}
    from weft.program import serial

    data = {name: serial.dumps(program) for name, program in made.items()}
    tensors: Mapping[str, np.ndarray] = Ordered(made, weights)
    tensors = tensors if isinstance(model, Decoder) else with_steps(model, tensors)
    saved = Bundle(head | more, data, tensors, files)
    bundle.write(saved, path, beside)
    for name, program in made.items():
        vouch(data[name], program)
    return saved


def _decoder_parts(model: Decoder, caps: Caps) -> Parts:
    runner = model.runner(model.max_batch)
    if not isinstance(runner, CompiledRunner):
        raise UsageError("the oracle compiles nothing; load the model on a device")
    if isinstance(runner, CompiledRecomputing):
        raise UsageError(f'{model.folder}: a file holds the steps of a cache, not of cache="none"')
    kinds = [PREFILL, *map(kind_of, step_sizes(caps))]
    made = {kind: compiled(runner.graph(kind), caps) for kind in kinds}
    config = replace(model.config, traced=None)  # its steps are in the Programs
    head = {"kind": "decoder", "config": to_data(config), "context": model.context}
    head |= {"slots": runner.slots, "pages": runner.pages, "tokens": to_data(model.tokens)}
    head |= {"defaults": to_data(model.defaults)}
    return made, runner.weights, head


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Decoder:
    """The head of a decoder's file, as declared for JSON."""

    config: DecoderConfig
    context: int
    slots: int
    pages: int
    tokens: TokenIds
    defaults: GenerationDefaults = NO_DEFAULTS


def load(
    path: Path, read: Bundle, device: Device, advised: bool = True
) -> Decoder | Encoder | Judge:
    """Loads the model in a file that `save` wrote, onto a suitable device; `advised`: its author's
    settings for generating are used. Raises FileFormatError."""
    if read.head["kind"] != "decoder":
        return load_reader(path, read, device)
    made = _load_decoder(path, read, device)
    if not advised:
        made.advice = lambda: NO_DEFAULTS
    return made


def _load_decoder(path: Path, read: Bundle, device: Device) -> Decoder:
    about = from_data(_Decoder, given(read.head, _Decoder), str(path))
    c = about.config
    sizes = {"layers": c.layers, "context": about.context, "slots": about.slots}
    sizes |= {"pages": about.pages, "table": about.slots * columns(about.context)}
    for what, n in sizes.items():
        least = 0 if what == "layers" and c.keeps else 1
        if not least <= n <= 1 << 24 or (what == "layers" and n > 1 << 12):
            raise FileFormatError(f"{path}: {what} is {n}")

    weights = Weights.of(read.tensors)
    made = SavedDecoder(
        path, c, weights, Placed(weights, device), tokenizer_of(path, read, c.vocab), about.tokens,
        about.context, about.slots,
    )  # fmt: skip
    made.file, made.pages = read, about.pages
    made.advice = partial(_defaults, path, about.defaults, c)
    made.precision_said = str(read.head.get("precision", ""))[:200]
    return made


def _defaults(path: Path, found: GenerationDefaults, c: DecoderConfig) -> GenerationDefaults:
    """Returns the author's settings in a file. Raises FileFormatError for values out of range."""
    try:
        found.sampling({})
    except UsageError as e:
        raise FileFormatError(f"{path}: {e}") from None
    if not all(0 <= i < c.vocab for i in found.suppressed):
        raise FileFormatError(f"{path}: a suppressed token is outside the vocabulary")
    return found


class SavedDecoder(Decoder):
    """A decoder from a file, with everything fixed at compile time, also the numbers of slots and
    pages: whatever a runner is made for, it has the file's."""

    fixed = True
    file: Bundle
    pages: int
    precision_said: str

    @property
    def precision(self) -> str:
        return self.precision_said

    def runner(self, sequences: int = 1) -> Runner:
        return super().runner(self.max_batch)

    def _own_runner(self, slots: int, pages: int) -> Runner:
        return SavedRunner(
            self.file, self.folder, self.config, self.placed, self.context, self.max_batch,
            self.pages,
        )  # fmt: skip

    def pages_that_fit(self, slots: int, share: float = 0.9) -> int:
        return self.pages

    def graphs(self) -> dict[str, Any]:
        return {}

    def _name(self, role: str) -> str:
        return role


class SavedRunner(CompiledRunner):
    """A runner of the Programs in a file."""

    scores = False

    def __init__(
        self, read: Bundle, path: Path, config: DecoderConfig, placed: Placed, context: int,
        slots: int, pages: int,
    ) -> None:  # fmt: skip
        super().__init__(config, placed, context, slots, pages)
        self._file, self._path = read, path
        self._programs: dict[str, Program] = {}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        found = [re.fullmatch(f"{ROWS}([1-9][0-9]{{0,3}})", name) for name in self._file.programs]
        return 1, *sorted(int(match[1]) for match in found if match)

    def program(self, kind: str, caps: Caps, device: Device | None = None) -> Program:
        if kind not in self._programs:
            if kind not in self._file.programs:
                raise FileFormatError(f"{self._path}: Program {kind!r} is missing")
            self._programs[kind] = self._checked(kind)
        return self._programs[kind]

    def _checked(self, name: str) -> Program:
        """Returns a Program of the file, after checking that its rows, states and outputs match the
        config."""
        from weft.tensor.program_cache import program_from

        program = program_from(self._file.programs[name])
        ids = next((b for b in program.buffers if b.role == "input" and b.name == "ids"), None)
        if ids is None or ids.shape != (self.room(name),):
            raise FileFormatError(f"{self._path}: {name} takes no {self.room(name)} ids")
        wanted = states(self.config, self.slots, self.context, self.pages)
        kept = {b.name: (b.shape, b.dtype) for b in program.buffers if b.role == "state"}
        gives = [program.buffers[i].shape for i in program.outputs]
        if kept != wanted or len(gives) != 1 or gives[0][1:] != (self.config.vocab,):
            raise FileFormatError(
                f"{self._path}: Program {name!r} is of another model than its head"
            )
        return program
