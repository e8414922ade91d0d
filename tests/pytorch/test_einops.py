"""einops for weft.torch: its functions, its layers and the imports that `weft port` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.torch.porting import ported

pytest.importorskip("einops")
X = np.random.default_rng(0).standard_normal((2, 6, 8), np.float32)

SCRIPT = """
import torch
from torch import nn
from einops import rearrange, reduce, repeat, pack, unpack, einsum
from einops.layers.torch import Rearrange, Reduce, EinMix as Mix

torch.manual_seed(0)
x = torch.tensor(X, requires_grad=True)
net = nn.Sequential(Rearrange("b (h w) c -> b c h w", h=2), nn.Conv2d(8, 4, 2),
                    Reduce("b c h w -> b c", "mean"), nn.Linear(4, 3))
mix = Mix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=8, d=5)
with torch.no_grad():
    for i, p in enumerate([*net.parameters(), *mix.parameters()]):
        p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) + i)
packed, shapes = pack([x, x[:, 0]], "b * c")
results = [
    net(x), mix(x), rearrange(x, "b (h w) c -> b c h w", w=3), reduce(x, "b t c -> b c", "max"),
    reduce(x, "b t c -> t", "prod"), repeat(x, "b t c -> b (t n) c", n=2), packed,
    unpack(packed, shapes, "b * c")[1], einsum(x, x, "b t c, b s c -> b t s"),
]
sum((r * r).mean() for r in results).backward()
results.append(x.grad)
names = list(mix.state_dict()) + [repr(net[0])]
"""


def test_a_script_with_einops_gives_pytorchs_numbers() -> None:
    told: list[dict[str, Any]] = [{"X": X}, {"X": X}]
    made = ported(SCRIPT)
    assert "from weft.torch.einops import Rearrange, Reduce, EinMix as Mix" in made
    exec(SCRIPT, told[0])
    exec(made, told[1])
    assert told[0]["names"] == told[1]["names"]
    for want, got in zip(told[0]["results"], told[1]["results"], strict=True):
        assert isinstance(want, theirs.Tensor) and isinstance(got, torch.Tensor)
        scale = max(float(want.detach().abs().max()), 1.0)
        np.testing.assert_allclose(
            got.detach().numpy() / scale, want.detach().numpy() / scale, atol=1e-5
        )


def test_layers_compile() -> None:
    from weft.torch.einops import Rearrange

    layer = torch.nn.Sequential(Rearrange("b t c -> b (t c)"), torch.nn.Linear(48, 2)).eval()
    x = torch.tensor(X)
    with torch.no_grad():
        np.testing.assert_allclose(
            torch.compile(layer)(x).numpy(), layer(x).numpy(), rtol=1e-5, atol=1e-6
        )


def test_the_names_that_port_writes() -> None:
    assert ported("import einops\n") == "import weft.torch.einops as einops\n"
    lines = ported("import einops.layers.torch as e\nimport torch.nn\n").splitlines()
    assert lines[0] == "import weft.torch.einops as e"
    assert lines[1] == "import weft.torch as torch; import weft.torch.nn"


def test_lists_of_parameters_nest() -> None:
    found = []
    for m in (torch, theirs):
        inner = m.nn.ParameterList([m.ones(2), m.zeros(3)])
        outer = m.nn.ParameterList([inner, m.nn.Parameter(m.ones(1))])
        found.append(list(outer.state_dict()))
        first, second = outer
        assert first[0].shape == (2,) and second.shape == (1,) and len(outer) == 2
    assert found[0] == found[1] and len(found[0]) == 3
