"""Before several ranks train together: each checks that it is about to do the same work.

Rank 0 says what it has; the others compare, and say in words what differs. Whatever would change a
bit counts: weft's source, the settings, the weights to start from, the kind of device. Text and
tokens do not: only rank 0 reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core import tuned, versions
from weft.core.errors import FileFormatError, RankError, UsageError
from weft.importers.hf_config import parse_json
from weft.models.training.settings import Settings, differences, stored
from weft.models.training.weights import Trained
from weft.program.device import Device
from weft.ranks import Ranks

MOST = 1 << 24  # bytes of what rank 0 says
LINE = 600  # bytes of what another says


def facts(settings: Settings, trained: Trained, device: Device) -> dict[str, Any]:
    """What has to be the same on every rank, as JSON holds it."""
    weights = hashlib.sha256()
    for role, value in sorted(trained.model.arrays().items()):
        weights.update(f"{role} {value.dtype} {value.shape}".encode())
        weights.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    caps = replace(device.caps, cores=1, model="")
    return {
        "weft": source(), "settings": settings.as_dict(), "weights": weights.hexdigest(),
        "device": f"{device.kind}: {caps.text()}", "tuning": tuned.digest(device.caps),
    }  # fmt: skip


def source() -> str:
    """A digest of the source of weft."""
    return versions.digest("training")


def differs(mine: Mapping[str, Any], leads: Mapping[str, Any]) -> str:
    """What this rank has otherwise than rank 0; "" for nothing."""
    if mine["weft"] != leads.get("weft"):
        return "another weft: install the same version everywhere"
    other = differences(leads.get("settings", {}), mine["settings"])
    if other:
        return f"other settings: {'; '.join(other)}. Give every rank the same config"
    if mine["device"] != leads.get("device"):
        return (
            f"another device, {mine['device'][:120]}..., whose results may differ in their last "
            "bits: use machines with the same instructions, or [train] device"
        )
    if mine["tuning"] != leads.get("tuning"):
        return "another tuning table: weft tune's files have to be the same everywhere, or nowhere"
    if mine["weights"] != leads.get("weights"):
        return "other weights in [model] from: copy the folder from rank 0's machine"
    return ""


def tell(ranks: Ranks, said: Mapping[str, Any]) -> None:
    """Rank 0: what it has, for all."""
    text = np.frombuffer(json.dumps(said).encode(), np.uint8).copy()
    if len(text) > MOST:
        raise UsageError(f"the model's config takes {len(text):,} bytes; at most {MOST:,} are sent")
    ranks.broadcast(np.array([len(text)], np.int64))
    ranks.broadcast(text)


def hear(ranks: Ranks) -> dict[str, Any]:
    """The others: what rank 0 has. Raises RankError."""
    (size,) = (int(v) for v in ranks.broadcast(np.zeros(1, np.int64)))
    if not 0 < size <= MOST:
        raise RankError(f"{ranks.name(0)} announced {size} bytes of settings")
    text = ranks.broadcast(np.zeros(size, np.uint8)).tobytes()
    try:
        found = parse_json(text, ranks.name(0))
        ok = isinstance(found, dict) and isinstance(found.get("config"), dict)
        if ok:
            found["settings"] = stored(found.get("settings"), ranks.name(0))
    except (FileFormatError, UsageError) as error:
        raise RankError(f"{error}; start the same version everywhere") from None
    if not ok:
        raise RankError(f"{ranks.name(0)} sent no settings; start the same version everywhere")
    return dict(found)


def troubles(ranks: Ranks, trouble: str) -> str:
    """All: `trouble` is what keeps this rank from taking part ("": nothing). The first rank's that
    has one, with its name, on every rank."""
    mine = np.zeros(LINE, np.uint8)
    text = trouble.encode()[:LINE]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    said = ranks.gather(mine, [LINE] * ranks.size).reshape(ranks.size, LINE)
    for rank, line in enumerate(said):
        found = bytes(line).rstrip(b"\0").decode("utf-8", "ignore")
        if found:
            return f"{ranks.name(rank)} has {found}"
    return ""
