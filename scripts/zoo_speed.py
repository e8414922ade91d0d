"""Speed of a random model by weft's own family and traced from transformers, in turn, as JSON:
python scripts/zoo_speed.py [--type qwen3_moe] [--quant int4] (two minutes on two cores).
docs/performance-kernels.md has results."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig

import weft
from weft.models.arch.families import DECODERS

PROMPT, STEPS, ROUNDS = 512, 32, 7
SIZES: dict[str, Any] = {
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "intermediate_size": 3072,
}
GROUPED: dict[str, Any] = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_size": 1024,
}
CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": lambda layers: LlamaConfig(
        **SIZES, hidden_size=768, num_hidden_layers=layers or 12, num_attention_heads=12
    ),
    "qwen3": lambda layers: Qwen3Config(**SIZES, **GROUPED, num_hidden_layers=layers or 8),
    "qwen3_moe": lambda layers: Qwen3MoeConfig(
        **SIZES, **GROUPED, num_hidden_layers=layers or 6, moe_intermediate_size=512,
        num_experts=16, num_experts_per_tok=4,
    ),
}  # fmt: skip


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measured(model: Any) -> dict[str, float]:
    """Tokens per second of a prompt and of the tokens after it."""
    runner = model.runner()
    ids = [7 + 31 * i % 30000 for i in range(PROMPT)]
    prompt = seconds(lambda: runner.prefill(0, ids))

    def decode() -> None:
        for i in range(STEPS):
            runner.rows([5], [0], [PROMPT + i])

    return {"prefill": PROMPT / prompt, "decode": STEPS / seconds(decode)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", choices=[*CONFIGS], default="llama")
    parser.add_argument("--quant", help="a scheme of weft.load, such as int4")
    parser.add_argument("--layers", type=int, help="how many (default: by type)")
    given = parser.parse_args()
    config = CONFIGS[given.type](given.layers)
    own = dict(DECODERS)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config, dtype=torch.float16).save_pretrained(folder)
        models, loads = {}, {}
        for name, families in (("own", own), ("traced", {})):
            DECODERS.clear()
            DECODERS.update(families)
            start = time.perf_counter()
            models[name] = weft.load(folder, device="cpu", context=1024, quant=given.quant)
            loads[name] = round(time.perf_counter() - start, 2)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in models}
        for turn in range(ROUNDS + 1):
            for name, model in models.items():
                found = measured(model)
                if turn:  # the first compiles
                    rounds[name].append(found)
    medians = {
        name: {key: round(statistics.median(r[key] for r in runs), 1) for key in runs[0]}
        for name, runs in rounds.items()
    }
    said = {"type": given.type, "layers": config.num_hidden_layers, "quant": given.quant}
    print(json.dumps({**said, "load": loads, "tokens per second": medians}, indent=1))


if __name__ == "__main__":
    main()
