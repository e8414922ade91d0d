"""The nets of the benches against their twins of torch.nn, frozen and not, and what became of
them: each a line of convolutions that end in norm, activation and residual."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from present import opened
from rows import few

import weft
from weft import nn
from weft.bench import encoder_nets, image_nets as nets
from weft.cli.bench import bench
from weft.core.errors import UsageError

SMALL = {"resnet50": 64, "mobilenet_v3": 64, "yolo": 64}  # pixels, for a test's time


def pair(name: str) -> tuple[Any, Any]:
    """weft's net and torch's, with one state, batch norms as after training."""
    torch.manual_seed(0)
    twin = nets.build(name, torch.nn, torch.cat)
    for m in twin.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.running_mean.uniform_(-0.2, 0.2)
            m.running_var.uniform_(0.5, 1.5)
            m.weight.data.uniform_(0.5, 1.5)
            m.bias.data.uniform_(-0.2, 0.2)
    net = nets.build(name, nn, weft.cat)
    net.load_state_dict(dict(twin.state_dict()))
    return net, twin


def image(name: str, batch: int = 2) -> np.ndarray:
    size = SMALL[name]
    return np.random.default_rng(1).standard_normal((batch, 3, size, size), dtype=np.float32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", few(nets.IMAGES, "mobilenet_v3"))
def test_nets_are_pytorchs(name: str) -> None:
    net, twin = pair(name)
    x = image(name)
    with torch.inference_mode():
        want = twin(torch.tensor(x)).numpy()
    frozen = weft.compile(net, frozen=True)
    close(frozen(x).numpy(), want)
    alone = frozen(x[:1]).numpy()
    close(alone, want[:1])
    np.testing.assert_array_equal(alone, frozen(x).numpy()[:1])
    (program, _) = frozen.programs()
    assert len(program.steps) <= {"resnet50": 60, "mobilenet_v3": 85, "yolo": 100}[name]
    back = weft.Program.load(saved(program))
    assert back.formulas == program.formulas and program.formulas


def test_encoders_are_pytorchs() -> None:
    torch.manual_seed(0)
    size = encoder_nets.EncoderSizes(layers=2, width=64, heads=4, places=32, kinds=16)
    twin = encoder_nets.vit(torch.nn, torch.nn.functional, torch.cat, size)
    net = encoder_nets.vit(nn, weft.functional, weft.cat, size)
    net.load_state_dict(dict(twin.state_dict()))
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32), dtype=np.float32)
    with torch.inference_mode():
        close(weft.compile(net, frozen=True)(x).numpy(), twin(torch.tensor(x)).numpy())
    size = size._replace(places=9, kinds=50)
    twin = encoder_nets.bert(torch.nn, torch.nn.functional, size)
    net = encoder_nets.bert(nn, weft.functional, size)
    net.load_state_dict(dict(twin.state_dict()))
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    with torch.inference_mode():
        wanted = twin(torch.tensor(ids))
    for got, want in zip(weft.compile(net, frozen=True)(ids), wanted):
        close(got.numpy(), want.numpy())


def saved(program: weft.Program) -> Any:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "net.weft"
    program.save(path)
    return path


@pytest.mark.parametrize("device", few(["cpu", "vulkan"], "cpu"))
def test_a_net_that_may_change(device: str) -> None:
    net, twin = pair("mobilenet_v3")
    x = image("mobilenet_v3", 1)
    with torch.inference_mode():
        want = twin(torch.tensor(x)).numpy()
    close(weft.compile(net, opened(device))(x).numpy(), want)


def bench_of(*args: str) -> dict[str, Any]:
    args = ("nets", *args, "--repeats", "5", "--budget", "0.1", "--json")
    found: dict[str, Any] = json.loads(
        CliRunner().invoke(bench, args, catch_exceptions=False).stdout
    )
    return found


def test_bench_prints_the_shape_of_peers() -> None:
    result = bench_of("--only", "mobilenet")
    assert result["bench"] == "nets" and set(result["results"]) == {"mobilenet_v3"}
    found = result["results"]["mobilenet_v3"]
    assert {"median_ms", "min_ms", "cpu_ms", "gflops", "roofline", "first_s"} <= set(found)
    assert found["n"] >= 1 and found["gflops"] > 0


def test_bench_of_a_file_beside_onnx_runtime(tmp_path: Path) -> None:
    path = tmp_path / "line.onnx"
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(1, 3, 9, 9),), str(path), dynamo=False)
    result = bench_of("--only", "line", "--model", str(path), "--peers", "ort,eager")
    assert set(result["results"]) == {"line"} and set(result["results"]["line"]["peers"]) == {"ort"}
    peer = result["results"]["line"]["peers"]["ort"]
    assert {"times_ratio", "least_ratio", "cpu_ratio", "version"} <= set(peer)


@pytest.mark.parametrize("args", [("--peers", "tvm"), ("--model", "nothing.onnx")])
def test_bench_of_what_is_not_there(args: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=args[1]):
        bench_of(*args)
