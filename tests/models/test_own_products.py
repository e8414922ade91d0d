"""Models never hand their products to a vendor's library: a text's bits must not change with the
number of texts beside it."""

from __future__ import annotations

import dataclasses

from sentences import minilm_folder

import weft
from weft.compile.passes import compile_graph
from weft.core.caps import PRESETS
from weft.models.arch.encoder import encoder_graph
from weft.models.run.compiled_runner import model_caps
from weft.models.run.placed import weight_avals
from weft.program.program import Library


def test_an_encoder_keeps_its_products() -> None:
    model = weft.load(minilm_folder(), device="cpu")
    config = dataclasses.replace(model.config, layers=1)
    graph = encoder_graph(config, weight_avals(model.weights), 8, 64)
    caps = PRESETS["cuda"]

    def libraries(caps) -> int:
        return sum(isinstance(s, Library) for s in compile_graph(graph, caps, "e").steps)

    assert "gemm_library" in caps.features and libraries(caps) > 0
    assert libraries(model_caps(caps)) == 0
