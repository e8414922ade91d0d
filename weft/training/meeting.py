"""Checks, before several ranks train together, that each has the same work.

Rank 0 sends its facts; the others compare and name what differs. Everything that could change a bit
counts: weft's source, the settings, the initial weights, the kind of device. Text and tokens are
not compared, because only rank 0 reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.errors import RankError, UsageError
from weft.program.device import Device
from weft.ranks import Ranks, meeting
from weft.training.settings import TrainingSettings, differences, stored
from weft.training.weights import Trained


def facts(settings: TrainingSettings, trained: Trained, device: Device) -> dict[str, Any]:
    """Returns the facts that every rank must share, as JSON values."""
    weights = hashlib.sha256()
    for role, value in sorted(trained.model.arrays().items()):
        weights.update(f"{role} {value.dtype} {value.shape}".encode())
        weights.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    own = {"settings": settings.as_dict(), "weights": weights.hexdigest()}
    return meeting.facts(device) | own


def differs(mine: Mapping[str, Any], leads: Mapping[str, Any]) -> str:
    """Returns a message about how this rank differs from rank 0, "" if it does not."""
    if trouble := meeting.differs(mine, leads):
        return trouble
    other = differences(leads.get("settings", {}), mine["settings"])
    if other:
        return f"other settings: {'; '.join(other)}. Give every rank the same config"
    if mine["weights"] != leads.get("weights"):
        return "other weights in [model] from: copy the folder from rank 0's machine"
    return ""


def hear(ranks: Ranks) -> dict[str, Any]:
    """Receives rank 0's facts, on the other ranks. Raises RankError."""
    found = meeting.hear(ranks)
    try:
        found["settings"] = stored(found.get("settings"), ranks.name(0))
    except UsageError as error:
        raise RankError(f"{error}; start the same version everywhere") from None
    if not isinstance(found.get("config"), dict):
        raise RankError(f"{ranks.name(0)} sent no settings; start the same version everywhere")
    return found
