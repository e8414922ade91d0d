"""PyTorch eager, torch.compile, Triton and transformers alone on one device, by the names and in
the JSON shape of the other peers' scripts: python scripts/gpu_peers.py --only matmul

Prints one JSON line per variant; progress goes to stderr. The decoder's cases need --model FOLDER.
"""

from __future__ import annotations

import argparse
import json
import sys

from gpulab import cases
from gpulab.torch_side import Torch

PEERS = {"eager": "torch", "compile": "torch-compile", "triton": "triton"}


def main() -> None:
    """Measures every variant of every case whose name contains one of --only."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="cuda")
    p.add_argument("--only", default="", help="comma list: parts of cases' names")
    p.add_argument("--budget", type=float, default=0.5, help="seconds per case")
    p.add_argument("--model", default="", help="folder of the decoder, in Hugging Face's layout")
    p.add_argument("--quick", action="store_true", help="small sizes")
    a = p.parse_args()
    only = [o for o in a.only.split(",") if o]
    side = Torch(a.device, a.model, a.quick)
    results: dict[str, dict[str, object]] = {v: {} for v in PEERS}
    for name, case in cases.every(a.quick).items():
        if (only and not any(o in name for o in only)) or (case.part == "model" and not a.model):
            continue
        for variant in side.variants(name)["variants"]:
            try:
                found = side.answer({"run": name, "variant": variant, "budget": a.budget})
            except Exception as error:  # the other cases go on
                found = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(f"# {PEERS[variant]} {name}: {found}", file=sys.stderr, flush=True)
            results[variant][name] = found
            side.answer({"drop": name})
    for variant, found in results.items():
        if found:
            line = {"bench": "micro", "peer": PEERS[variant], "device": a.device, **side.info(),
                    "results": found}  # fmt: skip
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
