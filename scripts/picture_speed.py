"""Pictures per second of a CLIP ViT-B/32 with random weights: weft, PyTorch and ONNX Runtime.

python scripts/picture_speed.py [THREADS]: preparing (decoding a JPEG of 640 x 480, resizing,
scaling) and the tower are timed apart, in turns: the median of several rounds' processor time,
which other work on the machine disturbs little with one thread.
"""

from __future__ import annotations

import io
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
from PIL import Image  # noqa: E402

import weft  # noqa: E402
from weft.vision.decode import decode  # noqa: E402
from weft.vision.tiles import prepare  # noqa: E402

BATCH, ROUNDS = 8, 5


def main() -> None:
    """Prints a row for each."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = transformers.CLIPModel(transformers.CLIPConfig()).eval()
    rng = np.random.default_rng(0)
    out = io.BytesIO()
    y, x = np.mgrid[:480, :640]
    image = np.stack([y % 256, x % 256, (x * y) % 251], -1) + rng.integers(0, 9, (480, 640, 3))
    Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(out, "JPEG")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        said = {"image_processor_type": "CLIPImageProcessor"}
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(said))
        ours: Any = weft.load(folder, device="cpu")
        pixels = np.stack([prepare(ours.steps, decode(out.getvalue())).pixels[0]] * BATCH)
        given = torch.from_numpy(pixels)
        runs: dict[str, Callable[[], Any]] = {
            "prepare": lambda: [prepare(ours.steps, decode(out.getvalue())) for _ in range(BATCH)],
            "weft": lambda: ours._towers[0].many(pixels),
            "PyTorch": lambda: model.get_image_features(given).pooler_output,
            "ONNX Runtime": onnx(model, given, folder),
        }
        with torch.no_grad():
            want = runs["PyTorch"]().numpy()
            for name in ("weft", "ONNX Runtime"):
                off = np.abs(np.asarray(runs[name]()).reshape(want.shape) - want).max()
                assert off < 1e-3 * np.abs(want).max(), (name, off)
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    start = time.process_time()
                    run()
                    times[name].append(time.process_time() - start)
    for name, taken in times.items():
        print(f"{name}: {BATCH / np.median(taken):.1f} pictures/s")
    share = np.median(times["prepare"]) / np.median(times["weft"])
    print(f"preparing takes {share:.1%} of the tower's time")


def onnx(model: Any, given: Any, folder: str) -> Callable[[], Any]:
    """The tower in ONNX Runtime."""
    import onnxruntime

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return self.model.get_image_features(pixel_values).pooler_output

    path = str(Path(folder) / "clip.onnx")
    torch.onnx.export(Tower(), (given,), path, input_names=["x"], dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": given.numpy()})[0]


if __name__ == "__main__":
    main()
