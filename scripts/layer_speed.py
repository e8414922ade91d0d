"""Times layers that mix tokens, alone: attention beside state spaces of the same width.

    python scripts/layer_speed.py [--tokens 1024] [--hidden 768] [--threads 2]

Each model has eight layers of one kind without feed-forwards (Nemotron-H's layers are single parts)
and a tiny vocabulary. A line has the median time of a layer in a prefill, and in a decode step
after it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

LAYERS, HEAD = 8, 64


def models(hidden: int, tokens: int) -> dict[str, dict[str, Any]]:
    """Returns config.json by the name of the layers."""
    sizes = {"vocab_size": 64, "hidden_size": hidden, "dtype": "float32"}
    heads = hidden // HEAD
    single = {
        **sizes, "model_type": "nemotron_h", "intermediate_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": HEAD,
        "max_position_embeddings": 2 * tokens, "mamba_num_heads": 2 * heads,
        "mamba_head_dim": HEAD, "n_groups": 1, "ssm_state_size": 128,
    }  # fmt: skip
    # As many heads as give attention (four matrices) the weights of Mamba 2 (five, two twice as
    # wide; and those of its states), 8 to 5.
    more = {"num_attention_heads": heads * 8 // 5, "num_key_value_heads": heads * 8 // 5}
    return {
        "attention": {**single, "hybrid_override_pattern": "*" * LAYERS},
        "as heavy": {**single, **more, "hybrid_override_pattern": "*" * LAYERS},
        "Mamba 2": {**single, "hybrid_override_pattern": "M" * LAYERS},
        "Mamba": {**sizes, "model_type": "mamba", "num_hidden_layers": LAYERS},
    }


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 1024), ("hidden", 768), ("threads", 2), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    os.environ["WEFT_NUM_THREADS"] = str(given.threads)

    import weft
    from weft.models import random_folder

    ids = [i * 7 % 64 for i in range(given.tokens)]
    runners: dict[str, Any] = {}
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in models(given.hidden, given.tokens).items():
            made = random_folder(Path(folder) / name, config, 3)
            model: Any = weft.load(made, device="cpu", context=2 * given.tokens)
            runners[name] = model.runner()
        for _ in range(given.rounds + 1):  # in turn; the first round only warms up
            for name, runner in runners.items():
                whole = seconds(partial(runner.prefill, 0, ids))
                one = seconds(partial(runner.rows, [5], [0], [given.tokens]))
                found.setdefault(name, []).append((whole, one))
    for name, rounds in found.items():
        whole, one = (statistics.median(times) / LAYERS for times in zip(*rounds[1:]))
        print(
            f"{name:10} {whole * 1e3:7.2f} ms a layer for {given.tokens} tokens, "
            f"{one * 1e6:7.0f} us to decode one"
        )


if __name__ == "__main__":
    main()
