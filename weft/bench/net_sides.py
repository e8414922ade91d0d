"""One side of `weft bench nets`: a process that holds a net of weft, PyTorch or ONNX Runtime.

It runs the net on request, so that sides take turns and none has another's threads.

    python -m weft.bench.net_sides '{"side": "ort", "net": "resnet50", "batch": 1, ...}'

It prints a JSON object of facts once it is ready. For each number n on its input it then makes n
calls. It prints the seconds of each, and the seconds that its threads were busy.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.bench import image_nets as nets

WARM = 3  # untimed calls


class Wanted(NamedTuple):
    """The side and its net: a name of nets.build, or an ONNX file (`path`)."""

    side: str
    net: str
    batch: int
    threads: int
    device: str = "cpu"
    path: str = ""


Ready = tuple[Callable[[], object], Callable[[], dict[str, Any]]]  # a call, and facts after one


def _weft(want: Wanted) -> Ready:
    import weft
    from weft import nn
    from weft.backends import registry
    from weft.importers import from_onnx
    from weft.tensor import functional

    device = registry.get(want.device)
    if want.path:
        net, x = from_onnx(want.path, device=want.device), weft.tensor(_input_of(want))
    else:
        net = nets.build(want.net, nn, weft.cat, functional)
        x = weft.tensor(nets.example(want.net, want.batch))
    x = x.to(want.device)
    compiled = weft.compile(net, device=want.device, frozen=True)

    def call() -> object:
        return compiled(x)

    if not device.synchronous:
        call = _waiting(call, device.sync)

    def facts() -> dict[str, Any]:
        found = compiled.programs()
        steps = [(p, s) for p in found for s in p.steps]
        flops = sum(p.kernels[s.kernel].flops for p, s in steps if hasattr(s, "kernel"))
        return {"version": weft.__version__, "flops": float(flops), "launches": len(steps)}

    return call, facts


def _waiting(call: Callable[[], object], sync: Callable[[], object]) -> Callable[[], object]:
    def both() -> None:
        call()
        sync()

    return both


def _input_of(want: Wanted) -> np.ndarray:
    """Random numbers for the one input of an ONNX file; an axis without a length is the batch, or
    of an image 320."""
    import onnx

    (port,) = onnx.load(want.path, load_external_data=False).graph.input
    sizes = [d.dim_value for d in port.type.tensor_type.shape.dim]
    shape = [n or (320 if i > 1 else want.batch) for i, n in enumerate(sizes)]
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def _torch(want: Wanted) -> Ready:
    import torch

    torch.set_num_threads(want.threads)
    torch.manual_seed(0)
    net = nets.build(want.net, torch.nn, torch.cat, torch.nn.functional)
    x = torch.tensor(nets.example(want.net, want.batch))
    run = torch.compile(net) if want.side == "compile" else net

    def call() -> None:
        with torch.inference_mode():
            run(x)

    return call, lambda: {"version": torch.__version__}


def _ort(want: Wanted) -> Ready:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = want.threads, 1
    with tempfile.TemporaryDirectory() as folder:
        path = want.path or _exported(want, Path(folder) / "net.onnx")
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    x = _input_of(want) if want.path else nets.example(want.net, want.batch)
    given = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, given), lambda: {"version": onnxruntime.__version__}


def _exported(want: Wanted, path: Path) -> str:
    """PyTorch's net as an ONNX file."""
    import torch

    net = nets.build(want.net, torch.nn, torch.cat, torch.nn.functional)
    x = torch.tensor(nets.example(want.net, want.batch))
    torch.onnx.export(net, (x,), str(path), dynamo=False, opset_version=17)
    return str(path)


SIDES = {"weft": _weft, "ort": _ort, "eager": _torch, "compile": _torch}


def main() -> None:
    """Plays one side until its input ends."""
    want = Wanted(**json.loads(sys.argv[1]))
    out, sys.stdout = sys.stdout, sys.stderr  # exporters print
    call, facts = SIDES[want.side](want)
    start, cpu = time.perf_counter(), time.process_time()
    call()
    first = {"first_s": time.perf_counter() - start, "first_cpu_s": time.process_time() - cpu}
    for _ in range(WARM - 1):
        call()
    print(json.dumps({**first, **facts()}), file=out, flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start, cpu = time.perf_counter(), time.process_time()
            call()
            times.append((time.perf_counter() - start, time.process_time() - cpu))
        print(json.dumps(times), file=out, flush=True)


if __name__ == "__main__":
    main()
