"""Lines that people type, under PyTorch and under weft.torch: the results are the same."""

from __future__ import annotations

import copy
import io
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch as theirs
import torch.optim.swa_utils

import weft.torch as mine

# name -> a text that sets `r`
IDIOMS = {
    "backward of several": """
a = torch.ones(2, requires_grad=True)
torch.autograd.backward([(a * 2).sum(), (a * 3).sum()])
r = a.grad
""",
    "backward for some inputs": """
a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
y = a * 2
(y * b).sum().backward(inputs=[a])
r = [a.grad, b.grad]
""",
    "gradients of what is not used": """
a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
r = [torch.autograd.grad((a * 2).sum(), [a, b], allow_unused=True),
     torch.autograd.grad((a * 2).sum(), [a, b], materialize_grads=True)]
try:
    torch.autograd.grad((a * 2).sum(), [a, b])
except RuntimeError:
    r.append("an error")
""",
    "a Sequential is edited": """
m = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 5))
m[1] = nn.Tanh()
m[-1] = nn.Linear(m[-1].in_features, 3)
m.add_module("out", nn.Sigmoid())
m.append(nn.Identity())
r = [repr(m), repr(m[:2]), repr(m[1:]), list(m.state_dict())]
del m[1]
r += [repr(m), len(m), m.pop(0).in_features, repr(m)]
m.insert(1, nn.GELU())
m.extend([nn.ReLU(), nn.ELU()])
r.append(repr(m))
""",
    "a Sequential with names": """
m = nn.Sequential(OrderedDict([("fc", nn.Linear(2, 2)), ("act", nn.ReLU())]))
r = [list(m.state_dict()), repr(m.fc), repr(m[:1]), m(x[:, :2]).shape]
""",
    "a ModuleList is edited": """
m = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
m.extend([nn.ReLU()])
m.insert(0, nn.Tanh())
m[2] = nn.Linear(4, 1)
r = [repr(m), len(m), repr(m[1:3]), repr(m + [nn.ELU()]), repr(m.pop(0)), repr(m)]
del m[-2:]
m += [nn.SiLU()]
r.append(repr(m))
""",
    "a ModuleDict is edited": """
m = nn.ModuleDict({"a": nn.ReLU()})
m["b"] = nn.Linear(1, 1)
m.update({"c": nn.Tanh()})
r = [list(m.keys()), "a" in m, [n for n, _ in m.items()], len(m), repr(m.pop("a")), repr(m)]
del m["b"]
m.clear()
r.append(len(m))
""",
    "modules and parameters by name": """
m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
m._modules["1"] = nn.Tanh()
r = [list(m._modules), repr(m), list(m[0]._parameters), "weight" in m[0]._parameters]
""",
    "averages by a rule for all": """
swa = torch.optim.swa_utils
r = []
for rule in (swa.get_ema_multi_avg_fn(0.9), swa.get_swa_multi_avg_fn()):
    m = fill(nn.Linear(2, 1))
    average = swa.AveragedModel(m, multi_avg_fn=rule)
    for _ in range(3):
        average.update_parameters(m)
        m.weight.data.add_(1)
    r.append(average.module.weight)
""",
    "a group that comes later": """
m = fill(nn.Linear(2, 1))
o = optim.SGD([m.weight], lr=0.1, momentum=0.9)
o.add_param_group({"params": m.bias, "lr": 1.0})
for _ in range(2):
    o.zero_grad()
    m(x[:, :2]).sum().backward()
    o.step()
r = [m.weight, m.bias, len(o.param_groups), o.param_groups[1]["momentum"]]
""",
    "a state dict that fits, and one that does not": """
m = nn.Linear(2, 1)
r = [str(m.load_state_dict(m.state_dict()))]
try:
    m.load_state_dict({})
except RuntimeError:
    r.append("an error")
""",
    "errors are of PyTorch's kinds": """
r = []
for bad in (lambda: x @ x, lambda: torch.cat([x, torch.ones(2)]), lambda: x.view(5, 5),
            lambda: torch.tensor([1, 2], requires_grad=True), lambda: bool(x),
            lambda: torch.ones(2, requires_grad=True).add_(1)):
    try:
        bad()
    except RuntimeError:
        r.append("an error")
try:
    x[5]
except IndexError:
    r.append("an index")
""",
    "results in given memory": """
o, top = torch.empty(3, 4), (torch.empty(0), torch.empty(0, dtype=torch.long))
view = o[0]
r = [torch.add(x, x, out=o) is o, o.clone(), view.clone(), torch.topk(x, 2, out=top)[0] is top[0]]
r += [*top, torch.mean(x, dim=1, out=torch.empty(3)), torch.stack([x, x], out=torch.empty(0))]
""",
    "shapes": """
r = [str(x.shape), repr(x[0].size()), x.shape.numel(), x.size().numel(), x.shape == (3, 4),
     [*x.shape], x.shape[-1], isinstance(x.shape, torch.Size), str(x.device), x.device.type]
""",
    "close": """
torch.testing.assert_close(x, x + 1e-9)
torch.testing.assert_close({"a": [x, 1.0]}, {"a": [x.clone(), 1.0 + 1e-9]})
r = []
for a, b, options in ((x, x + 1e-3, {}), (x, x.double(), {}), (x, x[0], {}), (1, 2, {}),
                      (x, x + 1e-3, {"rtol": 0, "atol": 1e-2}), ([x], [x, x], {}),
                      (x.half(), (x.half().float() * 1.0005).half(), {}), (x / 0, x / 0, {}),
                      (x * math.nan, x * math.nan, {})):
    try:
        torch.testing.assert_close(a, b, **options)
        r.append(True)
    except AssertionError:
        r.append(False)
""",
    "convolution and norm as one": """
i = (torch.arange(32.0).view(1, 2, 4, 4) * 0.1).sin()
r = []
for c, transpose in ((nn.Conv2d(2, 3, 3), False), (nn.ConvTranspose2d(2, 3, 2, bias=False), True)):
    b = fill(nn.BatchNorm2d(3))
    fill(c).eval(), b.eval()
    b.running_mean.add_(0.5)
    b.running_var.mul_(2)
    fused = nn.utils.fuse_conv_bn_eval(c, b, transpose)
    r += [fused.weight, fused.bias, (fused(i) - b(c(i))).abs().max().item() < 1e-5]
r.append(nn.utils.skip_init(nn.Linear, 2, 1).weight.shape)
""",
    "attributes of layers": """
r = [nn.MultiheadAttention(4, 2).head_dim, nn.Embedding(5, 3).num_embeddings, nn.Dropout(0.1).p,
     nn.LSTM(2, 3).hidden_size, nn.BatchNorm1d(3).momentum, nn.Conv2d(1, 2, 3).kernel_size]
""",
    "weights that are exchanged": """
m = fill(nn.Linear(2, 1))
kept = [p.data for p in m.parameters()]
for p in m.parameters():
    p.data = p.data * 2
r = [p.clone() for p in m.parameters()]
for p, old in zip(m.parameters(), kept):
    p.data = old
r += [*m.parameters()]
""",
}  # fmt: skip


def plain(v: Any) -> Any:
    if hasattr(v, "detach"):
        v = v.detach()
        return [str(v.dtype).replace("torch.", ""), list(v.shape), v.tolist()]
    if isinstance(v, list | tuple):
        return [plain(i) for i in v]
    return v


def result(text: str, torch: Any) -> Any:
    def fill(module: Any) -> Any:
        with torch.no_grad():
            for i, p in enumerate(module.parameters()):
                p.copy_((torch.arange(p.numel()).float() * 1.3 + i).sin().reshape(p.shape) * 0.5)
        return module

    names = {
        "torch": torch, "nn": torch.nn, "F": torch.nn.functional, "optim": torch.optim,
        "x": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 5 - 1, "fill": fill,
        "math": math, "copy": copy, "io": io, "OrderedDict": OrderedDict, "__name__": "users",
    }  # fmt: skip
    exec(text, names)
    return plain(names["r"])


def close(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.isclose(a, b, rtol=2e-4, atol=1e-5, equal_nan=True))
    return bool(a == b)


@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_idioms(name: str) -> None:
    want, got = result(IDIOMS[name], theirs), result(IDIOMS[name], mine)
    assert close(got, want), f"{got}\nPyTorch {want}"
