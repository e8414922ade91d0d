"""The peak memory of code in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 2816, "vocab_size": 16000, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
SIZE = 189  # MiB of its weights in 16 bits

_END = """
import json as _json
with open("/proc/self/status") as _f:
    _peak = next(int(line.split()[1]) for line in _f if line.startswith("VmHWM"))
print(_json.dumps([_peak / 1024, locals().get("result")]))
"""


def peak_of(code: str, *arguments: object, **env: str) -> tuple[float, Any]:
    """Returns the peak resident memory of a program, MiB, and what it leaves in `result`."""
    done = subprocess.run(
        [sys.executable, "-c", code + _END, *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, **env}, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-2000:]
    peak, result = json.loads(done.stdout.splitlines()[-1])
    return peak, result


def gguf_of(folder: Path, path: Path, kind: str) -> Path:
    """Writes random blocks of a kind as the GGUF file of a folder's model."""
    from functools import partial

    import numpy as np

    from weft.importers.gguf_blocks import BY_NAME
    from weft.importers.gguf_write import TensorToWrite, write_gguf
    from weft.importers.hf_config import read_config
    from weft.models.arch.families import DECODERS
    from weft.models.weights.decoder_names import decoder_layout
    from weft.models.weights.gguf import tensor_name
    from weft.quantize.gguf import metadata

    config = DECODERS["llama"](read_config(folder))
    random = np.random.default_rng(0)

    def blocks(count: int) -> np.ndarray:
        made = np.frombuffer(random.bytes(count * BY_NAME[kind].nbytes), np.uint8).copy()
        layout = BY_NAME[kind].layout
        for name in layout.names or ():
            if layout[name].kind == "f":
                made.view(layout)[name] = 0.0005
        return made

    tensors = {}
    for role, spec in decoder_layout(config).weights.items():
        count = int(np.prod(spec.shape)) // BY_NAME[kind].elements
        tensors[tensor_name(role, "llama")] = (
            TensorToWrite("F32", spec.shape, partial(np.ones, spec.shape, np.float32))
            if spec.kind == "norm" else TensorToWrite(kind, spec.shape, partial(blocks, count))
        )  # fmt: skip
    write_gguf(path, metadata(config, "x"), tensors)
    return path
