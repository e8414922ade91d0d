"""Measures the effect of rounding on a model: python scripts/kl.py MODEL TEXT.

Compares logits with those of the same weights in float32, for a checkpoint under each load option
and for transformers in the checkpoint's dtype. It prints the mean Kullback-Leibler divergence (nats
per token), the agreement of the likeliest token, and the loss on the text (nats per token).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft

WINDOW = 256  # tokens scored together
WINDOWS = 40  # most windows


def log_softmax(x: np.ndarray) -> np.ndarray:
    """float64 [T, vocab] of logits [T, vocab]."""
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def transformers_logits(path: str) -> Callable[[list[int]], np.ndarray]:
    """Logits as PyTorch computes them in the checkpoint's dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(model(torch.tensor([ids])).logits[0].float())

    return logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    given = parser.parse_args()

    def load(**options: Any) -> Callable[[list[int]], np.ndarray]:
        return weft.load(given.model, device="cpu", context=WINDOW, **options).logits

    exact = weft.load(given.model, device="cpu", context=WINDOW, dtype="float32")
    assert exact.tokenizer is not None
    ids = exact.tokenizer.encode(given.text.read_text())[: WINDOW * WINDOWS]
    parts = [ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
    want = [log_softmax(exact.logits(part)) for part in parts]
    found = {
        "float32 inputs": load(act_dtype="float32"),
        "as loaded by default": load(),
        "transformers": transformers_logits(given.model),
    }
    print(f"{'':22}{'KL':>10}{'top-1':>9}{'loss':>10}   of {len(parts) * WINDOW} tokens")
    for name, logits in {"float32": exact.logits, **found}.items():
        apart, same, loss = [], [], []
        for part, truth in zip(parts, want):
            got = log_softmax(logits(part))
            apart.append((np.exp(truth) * (truth - got)).sum(-1))
            same.append(got.argmax(-1) == truth.argmax(-1))
            loss.append(-got[np.arange(WINDOW - 1), part[1:]])
        figures = [float(np.concatenate(x).mean()) for x in (apart, same, loss)]
        print(f"{name:22}{figures[0]:10.2e}{figures[1]:9.4f}{figures[2]:10.5f}")


if __name__ == "__main__":
    main()
