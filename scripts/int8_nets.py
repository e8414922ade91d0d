"""Quantised convolution nets compared with ONNX Runtime: processor time on one thread, in turn.

    python scripts/int8_nets.py [resnet18 resnet50 resnet50:8 mobilenet_v3 yolo]

Nets of weft.bench.image_nets (ResNet-18: here) have random weights and statistics of random images.
PyTorch's exporter writes them, and ONNX Runtime's quantize_static quantises them: QDQ, uint8
activations, int8 weights per channel. Both run the same file.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("WEFT_NUM_THREADS", "1")
import numpy as np
import onnxruntime
import torch
from onnxruntime import quantization as tool

from weft.bench import image_nets as nets
from weft.importers import from_onnx

ROUNDS, TURNS = 5, 4


def resnet18() -> Any:
    """ResNet-18 of basic blocks (He et al. 2015)."""

    class Block(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            nn = torch.nn
            self.a = nets._normed(nn, inputs, outputs, 3, stride, act=nn.ReLU)
            self.b = nets._normed(nn, outputs, outputs, 3)
            straight = stride == 1 and inputs == outputs
            self.skip = nn.Identity() if straight else nets._normed(nn, inputs, outputs, 1, stride)

        def forward(self, x: Any) -> Any:
            return (self.b(self.a(x)) + self.skip(x)).relu()

    nn = torch.nn
    layers = [nets._normed(nn, 3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Images(tool.CalibrationDataReader):  # type: ignore[misc]
    """Random ones."""

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(0)
        shape = (1, 3, size, size)
        self.left = [rng.standard_normal(shape, dtype=np.float32) for _ in range(4)]

    def get_next(self) -> Any:
        return {"x": self.left.pop()} if self.left else None


def write(name: str, folder: Path) -> Path:
    """The quantised net as a file."""
    torch.manual_seed(0)
    size = nets.IMAGES.get(name, 224)
    net = resnet18() if name == "resnet18" else nets.build(name, torch.nn, torch.cat)
    with torch.no_grad():
        net.train()
        for _ in range(3):
            net(torch.randn(4, 3, size, size))
    paths = [folder / f"{name}.{kind}.onnx" for kind in ("float", "ready", "int8")]
    torch.onnx.export(
        net.eval(), (torch.randn(1, 3, size, size),), str(paths[0]), input_names=["x"],
        output_names=["y"], dynamic_axes={"x": {0: "n"}}, opset_version=17, dynamo=False,
    )  # fmt: skip
    tool.quant_pre_process(str(paths[0]), str(paths[1]), skip_symbolic_shape=True)
    tool.quantize_static(
        str(paths[1]), str(paths[2]), Images(size), quant_format=tool.QuantFormat.QDQ,
        per_channel=True, activation_type=tool.QuantType.QUInt8, weight_type=tool.QuantType.QInt8,
    )  # fmt: skip
    return paths[2]


def main() -> None:
    """Prints one line of JSON per net."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for case in sys.argv[1:] or ["resnet18", "resnet50", "resnet50:8", "mobilenet_v3", "yolo"]:
        name, _, count = case.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            path = str(write(name, Path(folder)))
            size = nets.IMAGES.get(name, 224)
            shape = (int(count or 1), 3, size, size)
            x = np.random.default_rng(9).standard_normal(shape, dtype=np.float32)
            session: Any = onnxruntime.InferenceSession(path, options)
            model: Any = from_onnx(path, device="cpu")
            got, want = model(x).numpy(), session.run(None, {"x": x})[0]
            times: dict[str, list[float]] = {"weft": [], "onnxruntime": []}
            for _ in range(TURNS):
                run = partial(session.run, None, {"x": x})
                for who, fn in (("weft", partial(model, x)), ("onnxruntime", run)):
                    fn()
                    for _ in range(ROUNDS):
                        start = time.process_time()
                        fn()
                        times[who].append(1e3 * (time.process_time() - start))
        row: dict[str, Any] = {"net": name, "batch": shape[0], "equal": float((got == want).mean())}
        row["most"] = float(np.abs(got - want).max() / np.abs(want).max())
        for who, found in times.items():
            row[f"{who}_ms"] = [round(statistics.median(found), 2), round(min(found), 2)]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
