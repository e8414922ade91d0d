"""Models of transformers, with a few weights each, through torch.export: equal to PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rows import few
from torch import nn
from torch.export import export
from torch_zoo import ZOO, example

import weft
from weft.core.tolerance import compare
from weft.importers import from_torch

DEFAULT = ("deberta-v2", "falcon", "swin", "wav2vec2", "patchtst")


def leaves(x: Any) -> list[Any]:
    """Tensors in the order of their names in a model's output."""
    if isinstance(x, torch.Tensor | weft.Tensor):
        return [x]
    if isinstance(x, dict):
        return [leaf for v in x.values() for leaf in leaves(v)]
    return [leaf for v in x for leaf in leaves(v)] if isinstance(x, list | tuple) else []


@pytest.mark.parametrize("name", few(list(ZOO), *DEFAULT))
def test_equal_to_pytorch(name: str) -> None:
    torch.manual_seed(0)
    cls, config, kind = ZOO[name]
    made = getattr(transformers, cls)
    model = made(made.config_class(**config)).eval()
    args, kwargs = example(kind)
    with torch.no_grad():
        want = leaves(model(*args, **kwargs))
    module = from_torch(export(model, args, kwargs, strict=False))
    given = [x.numpy() for x in args]
    named = {k: v.numpy() for k, v in kwargs.items()}
    for run in (module, weft.compile(module)):
        got = leaves(run(*given, **named))
        assert len(got) == len(want)
        for g, w in zip(got, want):
            found = compare(g.numpy(), w.numpy().astype(g.dtype.numpy), "model")
            assert found.ok, found.message


class Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0, lambda a: (self.layer(a) + 1, a.sum()),
            lambda a: (a * 2, a.mean()), (x,),
        )  # fmt: skip


@pytest.mark.parametrize("saved", [False, True])
def test_a_condition_chooses_between_its_branches(saved: bool, tmp_path: Any) -> None:
    model, x = Choice().eval(), torch.randn(3, 4)
    program = export(model, (x,))
    if saved:
        torch.export.save(program, tmp_path / "c.pt2")
    module = from_torch(str(tmp_path / "c.pt2") if saved else program)
    for run in (module, weft.compile(module)):
        for given in (x.abs(), -x.abs()):
            for g, w in zip(run(given.numpy()), model(given), strict=True):
                np.testing.assert_allclose(g.numpy(), w.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_heads_of_attention_broadcast() -> None:
    class One(nn.Module):
        def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, kv, kv)

    q, kv = torch.randn(2, 4, 5, 8), torch.randn(1, 1, 6, 8)
    got = from_torch(export(One(), (q, kv)))(q.numpy(), kv.numpy())
    np.testing.assert_allclose(got.numpy(), One()(q, kv).numpy(), rtol=1e-5, atol=1e-6)
