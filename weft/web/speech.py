"""Whisper as three Programs for a page that writes down what it hears."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compile.passes import compile_graph
from weft.models.arch.seq2seq_graphs import decoder_graph, encoder_graph
from weft.models.run.compiled_runner import model_caps
from weft.models.run.seq2seq_runner import STEPS, reads
from weft.models.run.whisper import Whisper
from weft.program.program import Program
from weft.web.folder import TARGETS

ROWS = STEPS[:2]  # of the decoder's Programs


def speech_parts(
    model: Whisper,
) -> tuple[dict[str, dict[str, Program]], dict[str, np.ndarray], dict[str, Any]]:
    """Returns the Programs "encode", "step.1" and "step.8" by target, their weights, and the
    manifest's numbers. Raises ModelError for settings that are missing."""
    c, s, avals = model.config, model.settings, model.placed.avals
    inner = {role: v for role, v in avals.items() if reads(c, "encode", role)}
    outer = {role: v for role, v in avals.items() if reads(c, "step", role)}
    graphs = {"encode": encoder_graph(c, inner, 1, (2 * c.source, c.mels))}
    graphs |= {f"step.{n}": decoder_graph(c, outer, 1, n, False) for n in ROWS}
    made = {
        caps.name: {k: compile_graph(g, model_caps(caps), name=k) for k, g in graphs.items()}
        for caps in TARGETS
    }
    about = {
        "family": c.family, "vocab": c.vocab, "heads": c.heads, "mels": c.mels, "source": c.source,
        "positions": c.max_positions, "start": s.start, "end": s.end, "no_times": s.no_times,
        "languages": dict(s.languages), "tasks": dict(s.tasks), "longest": s.longest,
        "suppressed": [i for i in s.suppressed if i >= 0],
        "suppressed_first": [i for i in s.suppressed_first if i >= 0],
        "latest_first": s.latest_first,
    }  # fmt: skip
    weights = {role: np.asarray(model.weights[role]) for role in {*inner, *outer}}
    return made, weights, about
