"""The adapter of a model's own for prompts with pictures, in a folder in its folder
(Phi-4-multimodal's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from weft.engine.job import Job
from weft.models.weights.placement import Placement

SEEING = "vision-lora"


def with_own(folder: Path, place: Placement) -> Placement:
    """Returns a placement with the adapter of the folder of a model that sees, if it has one."""
    own = folder / SEEING
    has = place.part is None and (own / "adapter_config.json").exists()
    if not has or SEEING in place.adapters:
        return place
    return replace(place, adapters={**place.adapters, SEEING: own})


def adapted(job: Job, adapters: Sequence[str]) -> Job:
    """Returns a job of a model with these adapters: one with pictures and no other uses its own."""
    sees = job.insets is not None and job.insets.parts
    return replace(job, adapter=SEEING) if sees and not job.adapter and SEEING in adapters else job
