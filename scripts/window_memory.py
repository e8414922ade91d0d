"""Prints the peak memory of a small model with sliding windows (Gemma 3's shape, window 512) that
reads a long prompt and writes 64 tokens on the CPU: python scripts/window_memory.py 16000 60000

One process measures each prompt. At another commit it measures that commit.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT = 65536
SIZES = {
    "max_position_embeddings": CONTEXT, "sliding_window": 512, "num_hidden_layers": 6,
    "sliding_window_pattern": 6, "layer_types": None, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "hidden_size": 256,
}  # fmt: skip


def measure(folder: Path, count: int) -> None:
    """Prints the resident memory before and after a prompt of `count` tokens."""
    import numpy as np

    import weft

    model = weft.load(folder, device="cpu", context=CONTEXT)
    ids = np.random.default_rng(1).integers(0, model.config.vocab, count).tolist()
    model.generate(ids[:600], 4)  # type: ignore[call-arg]
    before = _peak()
    model.generate(ids, 64)  # type: ignore[call-arg]
    print(f"{count} tokens: {before} MiB after 600 tokens, {_peak()} MiB at the peak")


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) // 1024 for x in lines if x.startswith("VmHWM"))


def main() -> None:
    if len(sys.argv) == 3 and not sys.argv[1].isdigit():
        measure(Path(sys.argv[1]), int(sys.argv[2]))
        return
    from weft.conform.models import CONFIGS
    from weft.models import random_folder

    with tempfile.TemporaryDirectory() as made:
        folder = random_folder(Path(made) / "model", {**CONFIGS["gemma3"], **SIZES}, scale=0.1)
        for count in sys.argv[1:] or ["16000", "60000"]:
            subprocess.run([sys.executable, __file__, str(folder), count], check=True)


if __name__ == "__main__":
    main()
