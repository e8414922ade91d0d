"""Encoders and judges in one compiled file: a Program per width, the arrays of the steps after
their token vectors, and what both kinds of files share with decoders'."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import FileFormatError
from weft.host.records import from_data, to_data
from weft.models.arch.config import DecoderConfig, TokenizerContent
from weft.models.arch.encoder_config import EncoderConfig
from weft.models.arch.pooling import Pooling
from weft.models.arch.weights import Weights
from weft.models.run.compiled_runner import model_caps
from weft.models.run.embedder import Encoder
from weft.models.run.judge import Activation, Judge, Judging
from weft.models.run.placed import Placed, weight_avals
from weft.models.run.reader import Body, Hidden
from weft.program.bundle import Bundle
from weft.program.program import Program

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device
    from weft.program.session import Session

Parts = tuple[dict[str, Program], Mapping[str, np.ndarray], dict[str, Any]]
_STEPS = "steps."  # before the names of the steps' arrays, which no role has


def compiled(graph: Graph, caps: Caps) -> Program:
    """Compiles now, to include the report, which Programs in weft's disk cache lack."""
    from weft.compile.passes import compile_graph

    return compile_graph(graph, model_caps(caps), name=graph.name)


# -- writing --------------------------------------------------------------------------------------


def reader_parts(model: Encoder | Judge, caps: Caps) -> Parts:
    """Returns a model's Programs by width, its weights, and the file's head."""
    from weft.models.arch.encoder import encoder_graph

    c, weights, typed = model.config, model.weights, model.typed
    avals = weight_avals(weights)
    graphs = {str(n): encoder_graph(c, avals, 1, n, typed) for n in model.widths}
    made = {width: compiled(graph, caps) for width, graph in graphs.items()}
    head: dict[str, Any] = {"config": to_data(c), "max_length": model.max_length}
    head["of"] = "decoder" if isinstance(c, DecoderConfig) else "encoder"
    if isinstance(model, Encoder):
        return made, weights, head | {"kind": "encoder", "pooling": to_data(model.pooling)}
    how = model.judging
    said = _Said(how.pooling, how.labels, how.chosen, how.scored, how.tokens, how.ends, typed)
    return made, weights, head | {"kind": "judge", "judging": to_data(said)}


def with_steps(
    model: Encoder | Judge, tensors: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Returns the tensors of a file with the arrays of the steps after the token vectors."""
    arrays = model.arrays if isinstance(model, Encoder) else model.judging.arrays
    return ChainMap({f"{_STEPS}{k}": v for k, v in arrays.items()}, tensors)  # type: ignore[arg-type]


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Encoder:
    """The head of an encoder's file, as declared for JSON."""

    config: EncoderConfig
    max_length: int


@dataclass(frozen=True)
class _Stream:
    """The head of the file of a decoder that gives vectors."""

    config: DecoderConfig
    max_length: int


@dataclass(frozen=True)
class _Said:
    """A judge's `Judging` without arrays, and whether its steps take the parts of a text."""

    pooling: Pooling
    labels: tuple[str, ...]
    chosen: Activation
    scored: Activation
    tokens: bool = False
    ends: int | None = None
    typed: bool = False


@dataclass(frozen=True)
class _Text:
    limit: int | None
    lower: bool


def given(head: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    return {n: head[n] for n in kind.__dataclass_fields__ if n in head}


def load_reader(path: Path, read: Bundle, device: Device) -> Encoder | Judge:
    """Loads the encoder or the judge in a file. Raises FileFormatError."""
    kind: Any = _Stream if read.head.get("of") == "decoder" else _Encoder
    about = from_data(kind, given(read.head, kind), str(path))
    own = {k: v for k, v in read.tensors.items() if not k.startswith(_STEPS)}
    arrays = {k.removeprefix(_STEPS): v for k, v in read.tensors.items() if k not in own}
    weights, make = Weights.of(own), tokenizer_of(path, read, about.config.vocab)
    hidden = _hidden(path, read, Placed(weights, device))
    body = Body(path, about.config, weights, device, make, hidden, about.max_length)
    if read.head["kind"] != "judge":
        pooling = from_data(Pooling, read.head.get("pooling"), str(path))
        _check(path, pooling, arrays, about.config.hidden)
        return Encoder(body, pooling, arrays)
    said = from_data(_Said, read.head.get("judging"), str(path))
    _check(path, said.pooling, arrays, about.config.hidden)
    if not said.labels or said.pooling.width(about.config.hidden) != len(said.labels):
        raise FileFormatError(f"{path}: {len(said.labels)} labels do not fit the model's steps")
    how = Judging(
        said.pooling, said.labels, said.chosen, said.scored, said.tokens, said.ends, arrays
    )  # fmt: skip
    return Judge(body, how, said.typed)


def _check(path: Path, how: Pooling, arrays: Mapping[str, np.ndarray], hidden: int) -> None:
    """Raises FileFormatError if arrays do not fit the steps that read them."""
    size = hidden * len(how.modes)
    known = set()
    for i, step in enumerate(how.steps):
        if step.kind == "normalize":
            continue
        wide = step.width or size
        shapes = {"w": (wide, size) if step.kind == "dense" else (wide,), "b": (wide,)}
        shapes["residual"] = wide, size
        for end, shape in shapes.items():
            array = arrays.get(f"{i}.{end}")
            needed = end == "w" or (end == "b" and step.kind == "norm")
            if (array is None and needed) or (array is not None and array.shape != shape):
                raise FileFormatError(f"{path}: {_STEPS}{i}.{end} is not {list(shape)}")
            known.add(f"{i}.{end}")
        size = wide
    if extra := set(arrays) - known:
        raise FileFormatError(f"{path}: no step reads {_STEPS}{min(extra)}")


def _hidden(path: Path, read: Bundle, placed: Placed) -> Hidden:
    """Returns an encoder from the file's Programs: one per width, applied text by text."""
    from weft.tensor.program_cache import program_from

    sessions: dict[int, Session] = {}

    def session(width: int) -> Session:
        if width not in sessions:
            if str(width) not in read.programs:
                raise FileFormatError(f"{path}: Program {str(width)!r} is missing")
            sessions[width] = placed.session(program_from(read.programs[str(width)]))
        return sessions[width]

    def hidden(ids: np.ndarray, lengths: np.ndarray, *types: np.ndarray) -> np.ndarray:
        one = session(ids.shape[1])
        found = []
        for i, (row, n) in enumerate(zip(ids, lengths)):
            more = {"types": types[0][i][None]} if types else {}
            found.append(one.run({"ids": row[None], "lengths": n[None], **more})[0].copy())
        return np.concatenate(found)

    return hidden


def tokenizer_of(path: Path, read: Bundle, vocab: int) -> Callable[[], Tokenizer | None]:
    """Returns a maker of the tokenizer in a file; it makes None without one."""

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
