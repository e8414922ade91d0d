"""The comparison of ranks before they begin: rank 0 sends its facts, and the others compare theirs.

The facts are all that could change a bit: weft's source, the kind of device, its tuning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.compile import tuned
from weft.core import versions
from weft.core.errors import FileFormatError, RankError, UsageError
from weft.importers.hf_config import parse_json
from weft.program.device import Device
from weft.ranks.base import Ranks

MOST = 1 << 24  # bytes of what rank 0 says
LINE = 600  # bytes of what another says


def source() -> str:
    """A digest of the source of weft."""
    return versions.digest("training")


def facts(device: Device) -> dict[str, Any]:
    """The facts that must be the same on every rank, for any work."""
    caps = replace(device.caps, cores=1, model="")
    return {
        "weft": source(), "device": f"{device.kind}: {caps.text()}",
        "tuning": tuned.digest(device.caps),
    }  # fmt: skip


def differs(mine: Mapping[str, Any], leads: Mapping[str, Any]) -> str:
    """The difference between this rank's `facts` and rank 0's; "" if there is none."""
    if mine["weft"] != leads.get("weft"):
        return "another weft: install the same version everywhere"
    if mine["device"] != leads.get("device"):
        return (
            f"another device, {mine['device'][:120]}..., whose results may differ in their last "
            "bits: use machines with the same instructions, or name a device that all have"
        )
    if mine["tuning"] != leads.get("tuning"):
        return "another tuning table: weft tune's files have to be the same everywhere, or nowhere"
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
    except FileFormatError as error:
        raise RankError(f"{error}; start the same version everywhere") from None
    if not isinstance(found, dict):
        raise RankError(f"{ranks.name(0)} sent no settings; start the same version everywhere")
    return found


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
