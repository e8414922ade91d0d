"""Everyday lines of scripts, one result each."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

x = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 5 - 1
y = torch.tensor([[1.0, -2.0, 3.0, 0.5], [0.25, 4.0, -1.0, 2.0], [2.5, 1.5, -0.5, 3.5]])
ids = torch.tensor([2, 0, 1])
results = {}


def note(name, value):
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).replace("torch.", "")
        value = [kind, tuple(value.shape), value.detach().tolist()]
    elif isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value):
        for i, v in enumerate(value):
            note(f"{name} {i}", v)
        return
    results[name] = value


# sizes and views
note("size", (x.size(0), x.size(-1), tuple(x.size()), x.dim(), x.numel(), len(x), x.ndim))
note("view", x.view(-1, 2, 3))
note("view of size", x.view(x.size(0), -1))
note("t", x.t() @ y)
note("permute", x.unsqueeze(0).permute(2, 0, 1))
note("transpose", y.transpose(0, 1).contiguous().view(-1))
note("flatten", x[None].flatten(1))
note("squeeze", x[:, None].squeeze(1).squeeze(0))
note("expand", x[:1].expand(3, -1) + y)
note("repeat", x[0].repeat(2, 2))
note("chunk", y.chunk(2, dim=1))
note("split", y.split([1, 3], dim=1))
note("unbind", torch.unbind(y, dim=0))
note(
    "cat and stack",
    torch.cat([x, y], dim=-1).sum(0) + torch.stack([x, y]).sum(dim=(0, 1)).repeat(2),
)
note("roll and flip", torch.roll(y, 1, dims=1) - torch.flip(y, dims=[0]))
# reductions
note("max", y.max(1))
note("max of all", y.max())
note("min", torch.min(y, dim=0, keepdim=True))
note("values", y.max(dim=1).values - y.min(dim=1).indices)
note("topk", y.topk(2, dim=1))
note("sort", torch.sort(y, dim=1, descending=True))
note("argmax", y.argmax(-1))
note("std", (y.std(), y.std(dim=1), y.var(0, unbiased=False), torch.std(y, 0, keepdim=True)))
note("var_mean", torch.var_mean(y, dim=1))
note("median", y.median(dim=1))
note("mean", y.mean(-1, keepdim=True))
note("sum of bools", (y > 1).sum(dim=1))
note("any and all", ((y > 3).any().item(), (y > -9).all().item(), (y > 1).any(dim=0).tolist()))
note("norm", (y.norm(), y.norm(p=1, dim=1), torch.linalg.norm(y)))
note("cumsum", y.cumsum(0))
note("logsumexp", torch.logsumexp(y, dim=1))
note("prod", (y.prod(), torch.tensor([2, 3, 4]).prod()))
# picking
note("gather", y.gather(1, ids.unsqueeze(1)))
note("index", (y[ids], y[:, [0, 2]], y[y > 1], y[ids, ids], y[..., -1], y[::2]))
note("where", (torch.where(y > 0, y, torch.zeros_like(y)), torch.where(y > 2)))
note("masked_fill", y.masked_fill(y < 0, -1e9))
note("scatter", torch.zeros(3, 4).scatter_(1, ids.unsqueeze(1), 1.0))
note("one_hot", F.one_hot(ids, num_classes=4))
note("nonzero", (y > 2).nonzero())
note("index_select", torch.index_select(y, 0, ids))
note("unique", torch.unique(torch.tensor([3, 1, 3, 2]), return_counts=True))
note("assign", (lambda z: (z.__setitem__((slice(None), 0), 7.0), z)[1])(y.clone()))
note("tril", torch.tril(torch.ones(3, 3)).bool())
# arithmetic
note("clamp", (y.clamp(min=0), torch.clamp(y, -1, 1), y.clamp_(-9, 9)))
note("in place", y.clone().add_(1).mul_(2).sub_(x, alpha=0.5).div_(3).zero_().fill_(2.5))
note("integers", (torch.tensor([7, -7]) // 2, torch.tensor([7, -7]) % 3, torch.tensor([1, 2]) / 2))
note("powers", (x**2, 2**x, x.abs().sqrt(), x.pow(3), torch.rsqrt(y.abs()), 1 / y))
note("einsum", torch.einsum("ij,kj->ik", x, y))
note(
    "matmul",
    (torch.matmul(x, y.T), x @ y[0], torch.bmm(x[None], y.T[None]), torch.outer(x[0], y[0])),
)
note("comparison", (x.eq(y), x.ge(y), torch.equal(x, x.clone()), torch.allclose(x, x + 1e-9)))
note("lerp", torch.lerp(x, y, 0.3))
note("dtypes", (x.long(), x.int(), x.double().half().float(), (x > 0).float(), y.to(torch.int64)))
note("promotion", (x.half() * torch.tensor(2.0), ids + 0.5, ids * True, torch.tensor(3) + ids))
# making
note("arange", (torch.arange(5), torch.arange(1, 2, 0.25), torch.linspace(0, 1, 5), torch.eye(2)))
note(
    "full",
    (torch.full((2,), 7), torch.full((2,), 0.5), torch.ones(2, 1), torch.zeros((1, 2)).long()),
)
note(
    "like", (torch.ones_like(ids), y.new_zeros(2), y.new_tensor([1, 2]), torch.empty(2, 3).shape[1])
)
note("from numpy", (torch.from_numpy(np.arange(3)), torch.as_tensor([1.5]), x.numpy().sum().item()))
note("meshgrid", torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"))
# functional
note(
    "activations", (F.relu(x), F.gelu(x), F.silu(x), F.softplus(x), F.leaky_relu(x, 0.1), F.elu(x))
)
note(
    "tanh",
    (torch.tanh(x), torch.sigmoid(x), x.softmax(dim=-1), F.log_softmax(x, dim=1), F.hardtanh(x)),
)
note(
    "pad",
    (F.pad(y, (1, 2)), F.pad(y, (1, 0, 0, 1), value=-1), F.pad(y[None], (1, 1), mode="reflect")),
)
note(
    "losses",
    (
        F.mse_loss(x, y),
        F.l1_loss(x, y, reduction="sum"),
        F.cross_entropy(y, ids),
        F.nll_loss(F.log_softmax(y, 1), ids),
        F.smooth_l1_loss(x, y),
        F.kl_div(x, y.softmax(1)),
        F.binary_cross_entropy_with_logits(x, (y > 0).float()),
        F.huber_loss(x, y),
    ),
)
note("normalize", (F.normalize(y, dim=1), F.cosine_similarity(x, y), F.layer_norm(y, (4,))))
note("conv", F.conv1d(y[None], torch.ones(2, 3, 2), padding=1, bias=torch.tensor([0.5, 1.0])))
note(
    "pool",
    (F.max_pool2d(y[None, None], 2), F.avg_pool1d(y[None], 2), F.adaptive_avg_pool1d(y[None], 2)),
)
note(
    "interpolate",
    F.interpolate(y[None, None], scale_factor=2, mode="bilinear", align_corners=False),
)
note("embedding", F.embedding(ids, y))
note("attention", F.scaled_dot_product_attention(y[None], x[None], x[None], is_causal=True))
note("dropout", (F.dropout(y, 0.5, training=False), nn.Dropout(0.3).eval()(y)))
# gradients
w = torch.tensor([0.5, -1.0, 2.0, 0.1], requires_grad=True)
loss = ((y * w).sum(dim=1) ** 2).mean()
loss.backward()
note("backward", w.grad)
note(
    "leaf",
    (w.is_leaf, w.requires_grad, loss.requires_grad, loss.detach().requires_grad, loss.item()),
)
(g,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
(h,) = torch.autograd.grad(g.sum(), [w])
note("second derivative", (g, h))
with torch.no_grad():
    w -= 0.1 * w.grad
    w.grad.zero_()
note("step by hand", (w, w.grad, w.requires_grad))


@torch.no_grad()
def frozen(t):
    return (t * w).requires_grad


note("no_grad", (frozen(y), torch.is_grad_enabled()))
# modules
net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))
for i, p in enumerate(net.parameters()):
    p.data.copy_(torch.cos(torch.arange(p.numel()).float() + i).view_as(p))
twin = copy.deepcopy(net)
note(
    "modules",
    (net(x), net[0].weight.shape[0], len(list(net.modules())), isinstance(net[0], nn.Linear)),
)
note("same", torch.equal(net(x), twin(x)))
note("names", [n for n, p in net.named_parameters() if p.requires_grad])
for p in net[0].parameters():
    p.requires_grad = False
note("frozen", [p.requires_grad for p in net.parameters()])
note("counts", (sum(p.numel() for p in net.parameters() if p.requires_grad), net.training))
note("half", net.half()[0].bias.dtype == torch.float16)
net.float()
note("vector", torch.nn.utils.parameters_to_vector(net.parameters()))
gru = nn.GRU(4, 3, batch_first=True)
for p in gru.parameters():
    nn.init.constant_(p, 0.1)
note("gru", gru(y[None]))
bn = nn.BatchNorm1d(4)
note("batch norm", (bn(y), bn.running_mean, bn.eval()(y)))
mha = nn.MultiheadAttention(4, 2, batch_first=True)
for p in mha.parameters():
    nn.init.constant_(p, 0.2)
note("attention module", mha(y[None], y[None], y[None]))
opt = torch.optim.Adam(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4)
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(net(y), torch.tensor([0, 1, 0])).backward()
    opt.step()
    sched.step()
note("adam", net(y))
note("rate", opt.param_groups[0]["lr"])
