"""Dtypes, views and sizes that PyTorch refuses: weft.torch refuses them too, and takes the
neighbouring calls that PyTorch takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft.torch
from weft.core.errors import WeftError

# m is the library, F its functional; f, d, i are tensors of float32, float64 and int64
REFUSED = """
m.nn.Linear(3, 2)(d)
m.nn.Conv1d(2, 1, 1)(d)
m.nn.LSTM(3, 4)(d.reshape(2, 1, 3))
m.nn.GRU(3, 4)(d.reshape(2, 1, 3))
m.nn.GRUCell(3, 4)(d)
m.nn.LayerNorm(3)(d)
m.nn.GroupNorm(1, 3)(d)
m.nn.BatchNorm1d(3)(d)
m.nn.BatchNorm1d(3)(i)
m.nn.MultiheadAttention(3, 1)(d, d, d)
m.nn.TransformerEncoderLayer(3, 1, 4)(d.reshape(2, 1, 3))
m.nn.PReLU()(d)
f @ d.t()
i @ f.t()
f.matmul(i.t())
m.mm(f, d.t())
m.bmm(f[None], d.t()[None])
m.mv(f, d[0])
m.dot(f[0], d[0])
m.addmm(d[:, :2], f, f.t())
m.baddbmm(f[None, :, :2], f[None], d.t()[None])
m.einsum("ij,kj->ik", f, d)
m.tensordot(f, d.t(), 1)
m.inner(f, d)
m.cdist(i, i)
m.cdist(f, d)
m.cross(f, d)
m.isclose(f, d)
m.allclose(f, d)
m.heaviside(f, d)
F.linear(i, f)
F.linear(f, f, d[:, 0])
F.conv1d(d, f[:, :2, None])
F.conv2d(i.reshape(1, 1, 2, 3), f.reshape(1, 1, 2, 3))
F.scaled_dot_product_attention(f[None], d[None], f[None])
F.layer_norm(d, (3,), f[0])
F.batch_norm(i, None, None, training=True)
F.batch_norm(f, None, None)
F.binary_cross_entropy(f, i)
F.cross_entropy(f, i[0, :2], weight=d[0])
F.mse_loss(i, i)
F.kl_div(i, f)
F.huber_loss(i, f)
F.softmax(i, dim=0)
F.log_softmax(i, dim=0)
i.softmax(0)
m.softmax(i, 0)
i.std()
i.var(dim=0)
m.var_mean(i)
i.norm()
m.linalg.norm(i)
m.linalg.det(i[:, :2])
m.linalg.inv(i[:, :2])
m.nanmean(i)
m.histc(i)
m.multinomial(i[0], 1)
m.lerp(i, i, 0.5)
F.elu(i)
F.leaky_relu(i)
F.softplus(i)
F.mish(i)
F.glu(i[:, :2])
F.normalize(i)
F.cosine_similarity(i, i)
i.clone().normal_()
i.clone().uniform_()
f.index_copy(0, m.tensor([0, 1]), d)
f.index_put((m.tensor([0]),), d[:1])
f[::-1]
f[:, ::-1]
f[::0]
f.__setitem__(slice(None, None, -1), 0.0)
f.t().view(6)
f.t().view(-1)
f[:, :2].view(4)
f.expand(2, 2, 3).view(12)
f.transpose(0, 1).view(2, 3)
m.zeros(2.5)
F.max_pool1d(f, 2, stride=0)
m.nn.MaxPool1d(2, 0)(f)
""".strip().splitlines()

TAKEN = """
m.nn.Linear(3, 2).double()(d)
m.nn.LayerNorm(3)(f.bfloat16())
m.nn.BatchNorm1d(3)(f.bfloat16())
m.nn.Linear(3, 2)(f)
f + d
i * f
m.outer(f[0], d[0])
i @ i.t()
F.mse_loss(f, i)
F.mse_loss(f, d)
F.softmax(i, dim=0, dtype=m.float32)
i.softmax(0, dtype=m.float32)
i.float().std()
F.gelu(f)
F.silu(i.float())
F.cross_entropy(f, i[0, :2], weight=f[0])
f.flip(0)
f[::2]
f.t().reshape(6)
f.t().contiguous().view(6)
f.t().view(3, 2, 1)
f[:1].view(3)
f[None].transpose(0, 1).view(2, 3)
(f @ f.t()).t().contiguous().view(4)
f.softmax(0).view(6)
F.softmax(f, 0).view(-1)
f.max(0)[0].view(3, 1)
f.gather(0, i * 0).view(-1)
m.topk(f, 2, 0)[0].view(-1)
f.sort(0)[0].view(-1)
f[:, [0, 1]].view(-1)
m.nn.MultiheadAttention(3, 1)(f[:, None], f[:, None], f[:, None])[0].view(-1, 3)
m.nn.Softmax(0)(f).view(6)
F.max_pool1d(f, 2, stride=())
m.zeros(2, m.tensor(3))
""".strip().splitlines()


def _run(m: Any, line: str) -> Any:
    f = m.arange(1.0, 7.0).reshape(2, 3) / 10
    given = {"m": m, "F": m.nn.functional, "f": f, "d": f.double(), "i": m.ones(2, 3).long()}
    return eval(line, given)


@pytest.mark.parametrize("line", REFUSED)
def test_both_refuse(line: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError, NotImplementedError)):
        _run(torch, line)
    with pytest.raises(WeftError) as error:
        _run(weft.torch, line)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("line", TAKEN)
def test_both_take(line: str) -> None:
    theirs, ours = (_run(m, line) for m in (torch, weft.torch))
    assert ours.shape == theirs.shape and f"torch.{ours.dtype.name}" == str(theirs.dtype)


def test_the_messages_say_what_to_do() -> None:
    for line, what in (
        ("f @ d.t()", r"matmul: .*float32.* with .*float64.*\.to\(float32\)"),
        ("i.std()", r"std: .*int64.*\.float\(\)"), ("f[::-1]", "use flip"),
        ("f.t().view(6)", "use reshape"), ("m.zeros(2.5)", "such as 2"),
    ):  # fmt: skip
        with pytest.raises(WeftError, match=what):
            _run(weft.torch, line)


def test_autocast_mixes_dtypes() -> None:
    with weft.torch.autocast("cpu", dtype=weft.torch.bfloat16):
        f = weft.torch.ones(2, 3)
        assert (f @ f.bfloat16().t()).dtype == weft.torch.bfloat16
        assert weft.torch.nn.Linear(3, 2)(f.bfloat16()).dtype == weft.torch.bfloat16


def test_compiled_functions_refuse_too() -> None:
    run = weft.torch.compile(lambda x, y: x @ y)
    with pytest.raises(WeftError, match="matmul: "):
        run(weft.torch.ones(2, 3), weft.torch.ones(3, 2).half())


def test_results_are_views_of_what_the_caller_holds() -> None:
    """A result whose base only the function held is a tensor of its own; others share."""
    x = weft.torch.arange(6.0).reshape(2, 3)
    made = x.softmax(0)
    assert made.is_contiguous()
    x.t()[0, 0] = 9.0
    weft.torch.transpose(x, 0, 1)[1, 0] = 8.0
    first, second = weft.torch.unbind(x)
    first[2] = 7.0
    assert x.tolist() == [[9.0, 8.0, 7.0], [3.0, 4.0, 5.0]] and second.tolist() == [3.0, 4.0, 5.0]
