"""A page of a tiny model that trains, for the tests of training in a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from page_kit import light

import weft
from weft.hub.box import box_folder
from weft.importers.hf_config import Fields
from weft.models.run.model import Decoder
from weft.models.weights.writing import write_model
from weft.training.model import config_of, fresh_weights
from weft.training.prepare import new_config
from weft.training.settings import ModelSettings, TrainSettings
from weft.web.export import export_decoder
from weft.web.training import LORA, SCRATCH, training

STEPS = 20
SMALL = TrainSettings(batch=2, context=16, steps=STEPS)
CHOSEN = {
    "scratch": replace(SCRATCH, train=SMALL, model=ModelSettings(hidden=16, layers=1, heads=2)),
    "lora": replace(LORA, train=SMALL, optimizer=replace(LORA.optimizer, lr=0.02)),
}


def write_small(root: Path) -> tuple[Path, Decoder]:
    """A page that trains both kinds, in small batches, and its model."""
    folder, base = root / "page", root / "tiny"
    raw = new_config(ModelSettings(hidden=32, layers=1, heads=2), 2048, 64, 0)
    config = config_of(Fields(raw, "tiny"))
    folder.mkdir()
    base.mkdir()
    write_model(base, config, raw, box_folder(), fresh_weights(config, 1))
    model = weft.load(base, device="cpu", context=32, max_batch=1)
    with light():
        export_decoder(model, folder, [training(model, k, s) for k, s in CHOSEN.items()])
    return folder, model
