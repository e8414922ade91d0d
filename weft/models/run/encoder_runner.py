"""Encoders run by NumPy or by compiled Programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.host.progress import progress
from weft.models.arch.config import TokenizerContent
from weft.models.arch.encoder_config import VectorConfig
from weft.models.arch.inputs import with_tables
from weft.models.arch.weights import Weight
from weft.models.run.compiled_runner import model_caps
from weft.models.run.placed import Avals, Placed
from weft.models.run.reader import Body, Hidden
from weft.models.text.maker import tokenizer_maker
from weft.models.weights.placement import Placement
from weft.models.weights.weight_dtypes import ready

if TYPE_CHECKING:
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.program.device import Device
    from weft.program.program import Program
    from weft.program.session import Session


def eager_encoder(config: VectorConfig, weights: Mapping[str, np.ndarray]) -> Hidden:
    """Returns the encoder as a NumPy function."""
    from weft.models.arch import encoder

    return lambda *given: np.asarray(encoder.forward(config, weights, *given))


def encoder_program(
    config: VectorConfig, avals: Avals, shape: tuple[int, int], caps: Caps, typed: bool = False,
    device: Device | None = None,
) -> Program:  # fmt: skip
    """Returns the Program for ids of one shape; if `typed`, it takes types too. `device` as in
    `program_for`."""
    from weft.tensor.program_cache import program_for

    def graph() -> Graph:
        from weft.models.arch.encoder import encoder_graph

        return encoder_graph(config, avals, *shape, typed)

    what = (config, sorted(avals.items()), shape, *([typed] if typed else []))
    return program_for(what, model_caps(caps), graph, device)


def compiled_encoder(config: VectorConfig, placed: Placed, typed: bool = False) -> Hidden:
    """Returns the encoder on a device: one Program per shape of `ids`, compiled on first use. If
    `typed`, it takes the types of tokens."""
    sessions: dict[tuple[int, ...], Session] = {}

    def hidden(ids: np.ndarray, lengths: np.ndarray, *types: np.ndarray) -> np.ndarray:
        if ids.shape not in sessions:
            (batch, length), device = ids.shape, placed.target
            with progress(f"compiling {batch} x {length} tokens for {device.info.id}"):
                program = encoder_program(
                    config, placed.avals, (batch, length), device.caps, typed, device
                )
                sessions[ids.shape] = placed.session(program)
        given = {"ids": ids, "lengths": lengths, **({"types": types[0]} if typed else {})}
        return sessions[ids.shape].run(given)[0]

    return hidden


def body_of(
    path: Path, config: VectorConfig, weights: Mapping[str, Weight], device: Device | None,
    place: Placement, longest: int, typed: bool = False, lower: bool = False,
    made: Callable[[], TokenizerContent | None] = lambda: None,
) -> Body:  # fmt: skip
    """Returns the parts of a Reader of texts of at most `longest` tokens: its weights in their
    dtypes, quantised if `place` says so, and its steps. Raises ModelError."""
    if place.quant is not None:
        from weft.quantize.kept import quantised

        config, weights = quantised(path, config, weights, place.quant)
    config, arrays = ready(path, config, weights, place, device)
    longest = min(longest, config.max_positions)
    arrays = with_tables(config, arrays, longest)
    if device is None:
        hidden = eager_encoder(config, arrays)
    else:
        hidden = compiled_encoder(config, Placed(arrays, device), typed)
    make = tokenizer_maker(path, config.vocab, longest, lower, made)
    return Body(path, config, arrays, device, make, hidden, longest)
