"""Mixed precision: what runs narrow, what stays in float32, and that it still trains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from nnkit import close, random, twin
from rows import few

import weft
from weft import functional as F, nn, optim
from weft.core.errors import DTypeError

X = weft.tensor(random(6, 8))
Q = weft.tensor(random(1, 2, 5, 8))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_run_narrow_and_the_rest_in_float32(dtype: str) -> None:
    narrow = getattr(weft, dtype)
    w, image = weft.tensor(random(8, 8)), weft.tensor(random(1, 2, 5, 5))
    with weft.autocast(dtype):
        products = {
            "matmul": X @ w,
            "linear": F.linear(X, w),
            "bias": F.linear(X, w, w[0]),
            "attention": F.attention(Q, Q, Q, causal=True),
            "conv2d": F.conv2d(image, weft.tensor(random(3, 2, 3, 3)), weft.zeros(3)),
        }
        rest = {
            "softmax": F.softmax(X.cast(narrow)),
            "log_softmax": F.log_softmax(X.cast(narrow)),
            "layer_norm": F.layer_norm(X.cast(narrow)),
            "rms_norm": F.rms_norm(X.cast(narrow)),
            "batch_norm": F.batch_norm(image.cast(narrow), None, None),
            "cross_entropy": F.cross_entropy(X.cast(narrow), weft.zeros(6, dtype="int32")),
            "mse_loss": F.mse_loss(X.cast(narrow), X),
        }
        with weft.autocast(enabled=False):
            assert (X @ w).dtype == weft.float32
        ids = weft.arange(8)
        assert (ids @ ids).dtype == weft.int32
    assert {k: v.dtype.name for k, v in products.items()} == dict.fromkeys(products, dtype)
    assert {k: v.dtype.name for k, v in rest.items()} == dict.fromkeys(rest, "float32")
    assert (X @ w).dtype == weft.float32
    with pytest.raises(DTypeError, match="use bfloat16 or float16"):
        weft.autocast("float32")


def test_around_and_inside_a_compiled_function() -> None:
    w = weft.tensor(random(8, 8))
    inside = weft.compile(weft.autocast("bfloat16")(lambda x: x @ w), "cpu")
    assert inside(X).dtype == weft.bfloat16
    around = weft.compile(lambda x: x @ w, "cpu")
    assert around(X).dtype == weft.float32
    with weft.autocast("bfloat16"):
        assert around(X).dtype == weft.bfloat16
        assert inside(X).dtype == weft.bfloat16
    assert around(X).dtype == weft.float32
    assert (len(around.programs()), len(inside.programs())) == (2, 1)


class Net(nn.Module):
    """A perceptron with a norm."""

    def __init__(self) -> None:
        self.a, self.n, self.b = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.b(self.n(self.a(x)).gelu())


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        T = torch.nn
        self.a, self.n, self.b = T.Linear(8, 32), T.LayerNorm(32), T.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.nn.functional.gelu(self.n(self.a(x))))


TARGETS = np.arange(6, dtype=np.int64) % 5


def test_gradients_are_pytorchs_autocast() -> None:
    ours, theirs = Net(), TorchNet()
    twin(ours, theirs)
    with torch.autocast("cpu", torch.bfloat16):
        logits = theirs(torch.tensor(X.numpy()))
        want = torch.nn.functional.cross_entropy(logits.float(), torch.tensor(TARGETS))
    want.backward()
    with weft.autocast("bfloat16"):
        loss = F.cross_entropy(ours(X), weft.tensor(TARGETS))
    loss.backward()
    close(loss, want, 1e-2)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert p.dtype == p.grad.dtype == weft.float32
        close(p.grad, q.grad, 2e-2)


@pytest.mark.parametrize(
    "device,dtype",
    few(itertools.product(["cpu", "vulkan"], ["bfloat16", "float16"]),
        ("cpu", "bfloat16"), ("vulkan", "float16")),
)  # fmt: skip
def test_training_follows_float32(device: str, dtype: str) -> None:
    def losses(narrow: bool) -> list[float]:
        weft.manual_seed(1)
        net = Net()
        opt, scaler = optim.AdamW(net.parameters(), 0.02), optim.LossScaler(2.0**10)

        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            with weft.autocast(dtype, enabled=narrow):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            return loss

        run = weft.compile(step, device)
        return [run(X.numpy(), TARGETS).item() for _ in range(12)]

    try:
        weft.zeros(1, device=device).cast(dtype)
    except weft.errors.WeftError as error:
        pytest.skip(str(error))
    wide, narrow = losses(False), losses(True)
    assert narrow[-1] < wide[0] / 2
    np.testing.assert_allclose(narrow, wide, atol=0.05)


@pytest.mark.parametrize("mode", ["eager", "cpu", "vulkan"])
def test_scaler_skips_and_grows_as_pytorchs(mode: str) -> None:
    """Gradients that are finite, infinite or NaN in turn; the scale follows GradScaler's rules."""
    p = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    opt = optim.Adam([p], 0.1)
    scaler = optim.LossScaler(8.0, growth_interval=3)

    def step(factor: weft.Tensor) -> None:
        scaler.scale((p * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

    try:
        run = step if mode == "eager" else weft.compile(step, mode)
    except weft.errors.DeviceError as error:
        pytest.skip(str(error))
    q = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    theirs = torch.optim.Adam([q], 0.1)
    torch_scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    for bad in (0.0, 0.0, 0.0, np.inf, 1.0, np.nan, 0.0, 0.0, 0.0, -np.inf, 0.0):
        factor = np.array([1.0, -2.0, bad], np.float32)
        run(weft.tensor(factor))
        theirs.zero_grad()
        torch_scaler.scale((q * torch.tensor(factor)).sum()).backward()
        torch_scaler.step(theirs)
        torch_scaler.update()
        assert scaler.value() == torch_scaler.get_scale()
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), atol=1e-5)
    assert opt.count.item() == 8
    state = scaler.state_dict()
    again = optim.LossScaler()
    again.load_state_dict(state)
    assert again.value() == scaler.value()


def test_unscaling_comes_before_clipping() -> None:
    p = weft.tensor([3.0, 4.0], requires_grad=True)
    opt, scaler = optim.SGD([p], 1.0), optim.LossScaler(1024.0)
    scaler.scale((p * p).sum() / 2).backward()
    assert bool(scaler.unscale([p]))
    assert optim.clip_grad_norm([p], 100.0).item() == pytest.approx(5.0)
    with pytest.raises(weft.errors.UsageError, match="unscaled twice"):
        scaler.unscale([p])
    scaler.step(opt)
    scaler.update()
    np.testing.assert_array_equal(p.numpy(), [0.0, 0.0])
    with pytest.raises(weft.errors.UsageError, match="after step"):
        scaler.update()
