"""Compiled models in one file (`weft compile`): Programs for one kind of device, weights in its
order, and tokenizer. Running one compiles no graph."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import FileFormatError, UsageError
from weft.engine.defaults import NO_DEFAULTS, GenerationDefaults
from weft.host.records import from_data, to_data
from weft.models.arch.config import DecoderConfig, TokenIds, TokenizerContent
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.inputs import columns, states
from weft.models.arch.pooling import Pooling
from weft.models.arch.weights import Weights
from weft.models.run.base import Model
from weft.models.run.compiled_runner import CompiledRunner, model_caps, step_sizes
from weft.models.run.embedder import Encoder
from weft.models.run.model import Decoder
from weft.models.run.placed import Placed, weight_avals
from weft.models.run.reader import Hidden
from weft.models.run.recomputed import CompiledRecomputing
from weft.models.run.runner import PREFILL, ROWS, Runner, kind_of
from weft.program import bundle
from weft.program.bundle import Bundle
from weft.program.program import Program
from weft.program.weights import Ordered
from weft.tensor.program_cache import vouch

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device
    from weft.program.session import Session


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
    elif isinstance(model, Encoder):
        made, weights, more = _encoder_parts(model, caps)
    else:
        raise UsageError(f"{model.folder}: decoders and encoders can be compiled to a file")
    files = {}
    tokenizer = model.tokenizer
    if tokenizer is not None:
        about = tokenizer.made()
        files["tokenizer.json"] = about.data
        files["tokenizer_config.json"] = json.dumps(about.config).encode()
        head["text"] = {"limit": tokenizer.limit, "lower": tokenizer.lower}
    from weft.program import serial

    data = {name: serial.dumps(program) for name, program in made.items()}
    saved = Bundle(head | more, data, Ordered(made, weights), files)
    bundle.write(saved, path, beside)
    for name, program in made.items():
        vouch(data[name], program)
    return saved


Parts = tuple[dict[str, Program], Mapping[str, np.ndarray], dict[str, Any]]


def _decoder_parts(model: Decoder, caps: Caps) -> Parts:
    runner = model.runner(model.max_batch)
    if not isinstance(runner, CompiledRunner):
        raise UsageError("the oracle compiles nothing; load the model on a device")
    if isinstance(runner, CompiledRecomputing):
        raise UsageError(f'{model.folder}: a file holds the steps of a cache, not of cache="none"')
    kinds = [PREFILL, *map(kind_of, step_sizes(caps))]
    made = {kind: _compiled(runner.graph(kind), caps) for kind in kinds}
    config = replace(model.config, traced=None)  # its steps are in the Programs
    head = {"kind": "decoder", "config": to_data(config), "context": model.context}
    head |= {"slots": runner.slots, "pages": runner.pages, "tokens": to_data(model.tokens)}
    head |= {"defaults": to_data(model.defaults)}
    return made, runner.weights, head


def _compiled(graph: Graph, caps: Caps) -> Program:
    """Compiles now, to include the report, which Programs in weft's disk cache lack."""
    from weft.compile.passes import compile_graph

    return compile_graph(graph, model_caps(caps), name=graph.name)


def _encoder_parts(model: Encoder, caps: Caps) -> Parts:
    from weft.models.arch.encoder import encoder_graph

    c, weights = model.config, model.weights
    if model.arrays:
        raise UsageError(f"{model.folder}: files hold no steps with weights after the pooling")
    avals = weight_avals(weights)
    made = {str(n): _compiled(encoder_graph(c, avals, 1, n), caps) for n in model.widths}
    head = {"kind": "encoder", "config": to_data(c), "pooling": to_data(model.pooling)}
    head["of"] = "decoder" if isinstance(c, DecoderConfig) else "encoder"
    return made, weights, head | {"max_length": model.max_length}


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


@dataclass(frozen=True)
class _Encoder:
    config: EncoderConfig
    pooling: Pooling
    max_length: int


@dataclass(frozen=True)
class _Stream:
    """The head of the file of a decoder that gives vectors."""

    config: DecoderConfig
    pooling: Pooling
    max_length: int


@dataclass(frozen=True)
class _Text:
    limit: int | None
    lower: bool


def load(path: Path, read: Bundle, device: Device, advised: bool = True) -> Decoder | Encoder:
    """Loads the model in a file that `save` wrote, onto a suitable device; `advised`: its author's
    settings for generating are used. Raises FileFormatError."""
    if read.head["kind"] != "decoder":
        return _load_encoder(path, read, device)
    made = _load_decoder(path, read, device)
    if not advised:
        made.advice = lambda: NO_DEFAULTS
    return made


def _given(head: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    return {n: head[n] for n in kind.__dataclass_fields__ if n in head}


def _load_decoder(path: Path, read: Bundle, device: Device) -> Decoder:
    about = from_data(_Decoder, _given(read.head, _Decoder), str(path))
    c = about.config
    sizes = {"layers": c.layers, "context": about.context, "slots": about.slots}
    sizes |= {"pages": about.pages, "table": about.slots * columns(about.context)}
    for what, n in sizes.items():
        least = 0 if what == "layers" and c.keeps else 1
        if not least <= n <= 1 << 24 or (what == "layers" and n > 1 << 12):
            raise FileFormatError(f"{path}: {what} is {n}")

    weights = Weights.of(read.tensors)
    made = SavedDecoder(
        path, c, weights, Placed(weights, device), _tokenizer(path, read, c.vocab), about.tokens,
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

    def program(self, kind: str, caps: Caps) -> Program:
        if kind not in self._programs:
            if kind not in self._file.programs:
                raise FileFormatError(f"{self._path}: no Program {kind!r} in it")
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


def _load_encoder(path: Path, read: Bundle, device: Device) -> Encoder:
    kind: Any = _Stream if read.head.get("of") == "decoder" else _Encoder
    about = from_data(kind, _given(read.head, kind), str(path))
    c = about.config
    tokenizer = _tokenizer(path, read, c.vocab)
    weights = Weights.of(read.tensors)
    hidden = _hidden(path, read, Placed(weights, device))
    return Encoder(path, c, weights, device, tokenizer, hidden, about.pooling, about.max_length)


def _hidden(path: Path, read: Bundle, placed: Placed) -> Hidden:
    """Returns an encoder from the file's Programs: one per width, applied text by text."""
    from weft.tensor.program_cache import program_from

    sessions: dict[int, Session] = {}

    def session(width: int) -> Session:
        if width not in sessions:
            if str(width) not in read.programs:
                raise FileFormatError(f"{path}: no Program {str(width)!r} in it")
            sessions[width] = placed.session(program_from(read.programs[str(width)]))
        return sessions[width]

    def hidden(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        one = session(ids.shape[1])
        rows = (
            one.run({"ids": row[None], "lengths": n[None]})[0].copy()
            for row, n in zip(ids, lengths)
        )
        return np.concatenate(list(rows))

    return hidden


def _tokenizer(path: Path, read: Bundle, vocab: int) -> Callable[[], Tokenizer | None]:
    def make() -> Tokenizer | None:
        if "tokenizer.json" not in read.files:
            return None
        from weft.models.text.tokenizer import Tokenizer

        text = from_data(_Text, read.head.get("text"), f"{path}: text")
        try:
            config = json.loads(read.files.get("tokenizer_config.json", b"{}"))
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise FileFormatError(f"{path}: tokenizer_config.json in it is not an object")
        made = TokenizerContent(read.files["tokenizer.json"], config)
        return Tokenizer(path, vocab, text.limit, text.lower, made)

    return make
