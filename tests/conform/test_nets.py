"""The nets of the benches against their twins of torch.nn, frozen and not, and what became of
them: each a line of convolutions that end in norm, activation and residual."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from present import opened

import weft
from weft import nn
from weft.cli.bench import bench
from weft.conform import nets

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


@pytest.mark.parametrize("name", nets.IMAGES)
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


def saved(program: weft.Program) -> Any:
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "net.weft"
    program.save(path)
    return path


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_a_net_that_may_change(device: str) -> None:
    net, twin = pair("mobilenet_v3")
    x = image("mobilenet_v3", 1)
    with torch.inference_mode():
        want = twin(torch.tensor(x)).numpy()
    close(weft.compile(net, opened(device))(x).numpy(), want)


def test_bench_prints_the_shape_of_peers() -> None:
    args = ["nets", "--only", "mobilenet", "--repeats", "5", "--budget", "0.1", "--json"]
    result = json.loads(CliRunner().invoke(bench, args, catch_exceptions=False).stdout)
    assert result["bench"] == "nets" and set(result["results"]) == {"mobilenet_v3"}
    assert {"median_ms", "min_ms", "gflops", "roofline"} <= set(result["results"]["mobilenet_v3"])
