"""Trains what a `weft train` config says in PyTorch: same weights at the start, same batches, same
schedule, same log, so that the two curves can be laid side by side.

    python scripts/box_torch.py examples/box.toml --out box-torch [--steps N] [--threads 2]

Needs torch and transformers, and the data that `weft train` made (its [output] folder).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from weft.importers.hf_config import Fields
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import checkpoint_names
from weft.training.model import config_of, fresh_weights
from weft.training.prepare import prepare_data
from weft.training.settings import OptimizerSettings, read_settings
from weft.training.step import UNDECAYED
from weft.training.tokens import Batches, evaluation


def rate(o: OptimizerSettings, done: int, steps: int) -> float:
    """The learning rate after `done` steps."""
    if done < o.warmup:
        return o.lr * (done + 1) / o.warmup
    part = min((done - o.warmup) / max(steps - o.warmup, 1), 1.0)
    if o.schedule == "constant":
        return o.lr
    share = 0.5 * (1 + math.cos(math.pi * part)) if o.schedule == "cosine" else 1 - part
    return o.min_lr + (o.lr - o.min_lr) * share


def build(raw: dict[str, Any], weights: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any]]:
    """transformers' model with weft's weights, and its parameters by role."""
    fields = {k: v for k, v in raw.items() if k not in ("model_type", "architectures")}
    config = AutoConfig.for_model(raw["model_type"], **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    params = dict(model.named_parameters())
    names = checkpoint_names(config_of(Fields(raw, "config")))
    named = {role: params[name] for role, name in names.items()}
    assert len(named) == len(params), "a parameter has no role"
    with torch.no_grad():
        for role, p in named.items():
            p.copy_(torch.from_numpy(weights[role]))
    return model, named


def loss_of(model: Any, ids: np.ndarray, targets: np.ndarray, precision: str) -> torch.Tensor:
    """The mean cross-entropy of targets; matrices multiplied in `precision`."""
    dtype = getattr(torch, precision)
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        logits = model(torch.from_numpy(ids).long()).logits
    flat = torch.from_numpy(targets).long().reshape(-1)
    return torch.nn.functional.cross_entropy(logits.float().reshape(len(flat), -1), flat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for log.jsonl")
    parser.add_argument("--steps", type=int, help="stop after this step (the schedule stays)")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = read_settings(given.config)
    t, o = settings.train, settings.optimizer
    data, config, raw = prepare_data(settings, Path(settings.output.folder))
    model, named = build(raw, fresh_weights(config, t.seed))
    model.train()
    layout = decoder_layout(config).weights
    decays = {role: layout[role].kind not in UNDECAYED for role in named}
    groups = [
        {"params": [p for r, p in named.items() if decays[r] == yes], "weight_decay": decay}
        for yes, decay in ((True, o.weight_decay), (False, 0.0))
    ]
    opt = torch.optim.AdamW(
        [g for g in groups if g["params"]], o.lr, (o.betas[0], o.betas[1]), o.eps
    )
    train, held_out = data.train, data.held_out
    assert isinstance(train, np.ndarray) and isinstance(held_out, np.ndarray)  # no conversations
    batches = Batches(train, t.batch, t.context, t.seed)
    held = evaluation(held_out, t.batch, t.context, settings.output.eval_batches)
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "log.jsonl").open("w", encoding="utf-8") as log:
        start = {"step": 0, "event": "start", "torch": torch.__version__, "data": data.digest}
        log.write(json.dumps(start) + "\n")
        for number in range(min(given.steps or t.steps, t.steps)):
            begun = time.perf_counter()
            for group in opt.param_groups:
                group["lr"] = rate(o, number, t.steps)
            total = 0.0
            for i in range(t.accumulate):
                loss = loss_of(model, *batches.at(number * t.accumulate + i), t.precision)
                (loss / t.accumulate).backward()
                total += loss.item() / t.accumulate
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip or math.inf)
            opt.step()
            opt.zero_grad()
            speed = t.accumulate * t.batch * t.context / (time.perf_counter() - begun)
            record: dict[str, Any] = {
                "step": number + 1, "loss": total, "norm": norm.item(),
                "lr": rate(o, number, t.steps), "tokens_per_s": round(speed, 1),
            }  # fmt: skip
            log.write(json.dumps(record) + "\n")
            if held and (number + 1) % (settings.output.eval_every or t.steps) == 0:
                with torch.no_grad():
                    model.eval()
                    mean = sum(loss_of(model, *b, t.precision).item() for b in held) / len(held)
                    model.train()
                log.write(json.dumps({"step": number + 1, "eval_loss": mean}) + "\n")
                print(f"step {number + 1}: held-out loss {mean:.4f}", flush=True)
            log.flush()


if __name__ == "__main__":
    main()
