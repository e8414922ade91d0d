"""Fingerprints: digests of all that determines answers, but for the request. Two servers with the
same fingerprint give the same answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import weft
from weft.host.records import to_data
from weft.host.samples import files_digest
from weft.models.arch.config import DecoderConfig
from weft.models.run.base import Model
from weft.models.run.model import Decoder


def print_of(model: Model) -> str:
    """The fingerprint of a model: of its files and how they were loaded, weft, and the device's
    abilities."""
    kind = "numpy"
    if model.device is not None:  # the number of cores and their name change no bit
        caps = replace(model.device.caps, cores=1, model="")
        kind = json.dumps([model.device.info.kind, to_data(caps)])
    limit = model.context if isinstance(model, Decoder) else None
    config = model.config
    # the number of machines with layers changes no bit either
    if isinstance(config, DecoderConfig):
        config = replace(config, run=None)
    advice = repr(model.defaults) if isinstance(model, Decoder) else ""
    loaded = [repr(config), model.precision, str(limit), advice]
    return digest_of(*loaded, weft.__version__, kind, files_digest(model.folder), between="\n")


def digest_of(*parts: str | bytes, between: str = " ") -> str:
    """The fingerprint of parts."""
    data = between.encode().join(p.encode() if isinstance(p, str) else p for p in parts)
    return "fp_" + hashlib.sha256(data).hexdigest()[:16]
