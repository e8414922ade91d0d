"""Time to the first token of a prompt with a picture of 1,008 tokens, in a Qwen2.5-VL of 160M
parameters with random weights: weft and transformers.

python scripts/seeing_speed.py [THREADS]: preparing the picture, the tower, and the whole, in turns,
the median of several rounds' processor time. Each round has a picture of its own, so that no cache
helps.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
os.environ["OMP_NUM_THREADS"] = os.environ["WEFT_NUM_THREADS"] = str(THREADS)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessorPil,
)

import weft  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
from picture_zoo import ID, tokenizer  # noqa: E402

ROUNDS, SIZE = 3, (784, 1008)  # pixels; 28 x 28 become a token
TEXT = {
    "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6},
    "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
VISION = {
    "hidden_size": 512, "out_hidden_size": 768, "intermediate_size": 1368, "depth": 12,
    "num_heads": 8, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [3, 7, 11],
}  # fmt: skip
BEGIN, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
PROMPT = f"user: {BEGIN}{PAD}{END}What is this?\nassistant:"


def main() -> None:
    """Prints a row for each."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        reference, images = written(Path(folder))
        model: Any = weft.load(folder, device="cpu", context=2048)
        eyes = model.need_eyes()
        rng = np.random.default_rng(0)
        shown = [rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8) for _ in range(2 * ROUNDS + 2)]
        rows: list[np.ndarray] = []

        def ours(picture: np.ndarray) -> np.ndarray:
            prompt = eyes.prompt(PROMPT, [picture], model.tokenizer, False)
            model.generate(prompt, max_new_tokens=1, logits=lambda _, row: rows.append(row) or row)
            return rows[-1]

        def theirs(picture: np.ndarray) -> np.ndarray:
            made = dict(images(picture, return_tensors="pt"))
            ids = model.tokenizer.encode(PROMPT.replace(PAD, PAD * 1008), False)
            with torch.no_grad():
                given = torch.tensor([ids])
                kinds = (given == ID[PAD]).int()  # 1: a picture's
                out = reference(input_ids=given, mm_token_type_ids=kinds, logits_to_keep=1, **made)
            logits: np.ndarray = out.logits[0, -1].numpy()
            return logits

        want = theirs(shown[-1])
        off = np.abs(ours(shown[-1]) - want).max() / np.abs(want).max()
        assert off < 1e-3, off
        whole = times({"weft": ours, "transformers": theirs}, shown)
        parts = times({
            "weft: preparing": lambda p: weft_prepared(eyes, p),
            "weft: tower": lambda p: eyes.see(p),
        }, shown[ROUNDS:])  # fmt: skip
    for name, taken in (whole | parts).items():
        print(f"{name}: {np.median(taken) * 1e3:.0f} ms ({min(taken) * 1e3:.0f} at best)")


def weft_prepared(eyes: Any, picture: np.ndarray) -> Any:
    """The pixels that weft's tower reads."""
    from weft.vision.tiles import prepare

    return prepare(eyes.steps, picture)


def times(
    runs: dict[str, Callable[[np.ndarray], Any]], shown: list[np.ndarray]
) -> dict[str, list[float]]:
    """Seconds of each run with each of ROUNDS pictures, in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for picture in shown[:ROUNDS]:
        for name, run in runs.items():
            start = time.process_time()
            run(picture)
            found[name].append(time.process_time() - start)
    return found


def written(folder: Path) -> tuple[Any, Any]:
    """Writes the model; returns transformers' and its image processor."""
    config = transformers.Qwen2_5_VLConfig(
        text_config=TEXT, vision_config=VISION, image_token_id=ID[PAD],
        vision_start_token_id=ID[BEGIN], vision_end_token_id=ID[END],
        video_token_id=ID["<|video_pad|>"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.0f}M parameters, {THREADS} threads")
    tokenizer().save(str(folder / "tokenizer.json"))
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 1 << 20})
    (folder / "preprocessor_config.json").write_text(json.dumps(images.to_dict(), default=str))
    return model, images


if __name__ == "__main__":
    main()
