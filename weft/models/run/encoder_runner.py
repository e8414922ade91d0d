"""Encoders run by NumPy or by compiled Programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from weft.host.progress import progress
from weft.models.arch.encoder_config import VectorConfig
from weft.models.run.compiled_runner import model_caps
from weft.models.run.placed import Avals, Placed
from weft.models.run.reader import Hidden

if TYPE_CHECKING:
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.program.program import Program
    from weft.program.session import Session


def eager_encoder(config: VectorConfig, weights: Mapping[str, np.ndarray]) -> Hidden:
    """Returns the encoder as a NumPy function."""
    from weft.models.arch import encoder

    return lambda *given: np.asarray(encoder.forward(config, weights, *given))


def encoder_program(
    config: VectorConfig, avals: Avals, shape: tuple[int, int], caps: Caps, typed: bool = False
) -> Program:
    """Returns the Program for ids of one shape; if `typed`, it takes types too."""
    from weft.tensor.program_cache import program_for

    def graph() -> Graph:
        from weft.models.arch.encoder import encoder_graph

        return encoder_graph(config, avals, *shape, typed)

    return program_for(
        (config, sorted(avals.items()), shape, *([typed] if typed else [])), model_caps(caps), graph
    )


def compiled_encoder(config: VectorConfig, placed: Placed, typed: bool = False) -> Hidden:
    """Returns the encoder on a device: one Program per shape of `ids`, compiled on first use. If
    `typed`, it takes the types of tokens."""
    sessions: dict[tuple[int, ...], Session] = {}

    def hidden(ids: np.ndarray, lengths: np.ndarray, *types: np.ndarray) -> np.ndarray:
        if ids.shape not in sessions:
            (batch, length), device = ids.shape, placed.target
            with progress(f"compiling {batch} x {length} tokens for {device.info.id}"):
                program = encoder_program(config, placed.avals, (batch, length), device.caps, typed)
                sessions[ids.shape] = placed.session(program)
        given = {"ids": ids, "lengths": lengths, **({"types": types[0]} if typed else {})}
        return sessions[ids.shape].run(given)[0]

    return hidden
