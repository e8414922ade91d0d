"""What training scripts do around their models, one result each."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

x = torch.linspace(-2, 2, 24).reshape(6, 4).sin()
labels = torch.tensor([0, 1, 2, 0, 1, 2])
results = {}


def net():
    made = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
    state = made.state_dict()
    values = {k: (torch.arange(v.numel()) * 0.7).cos().reshape(v.shape) for k, v in state.items()}
    made.load_state_dict(values)
    return made


def note(name, *tensors):
    results[name] = [[tuple(t.shape), t.detach().tolist()] for t in tensors]


model = net()
groups = [
    {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
]
opt = torch.optim.AdamW(groups, lr=1e-2)
average = copy.deepcopy(model).requires_grad_(False)
for _ in range(3):
    opt.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), labels).backward()
    opt.step()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters()):
            kept.lerp_(new, 0.1)
note("groups without decay", *model.parameters())
note("moving average", *average.parameters())
results["learning rates"] = [opt.param_groups[0]["lr"], opt.defaults["lr"], len(opt.param_groups)]
state = opt.state_dict()
results["state"] = [sorted(state["state"]), sorted(state["state"][0])]
results["second group's rate"] = state["param_groups"][1]["lr"]
note("state of a parameter", opt.state[model[0].weight]["exp_avg"])
for group in opt.param_groups:
    group["lr"] *= 0.5
results["halved"] = opt.state_dict()["param_groups"][0]["lr"]

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for i in range(4):
    (F.cross_entropy(model(x), labels, label_smoothing=0.1) / 2).backward()
    if i % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        opt.step()
        opt.zero_grad()
note("accumulated gradients", *model.parameters())

opt = torch.optim.SGD(net().parameters(), lr=0.1)
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=3)
fall = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
schedule = torch.optim.lr_scheduler.SequentialLR(opt, [warm, fall], [3])
rates = []
for _ in range(8):
    opt.step()
    schedule.step()
    rates.append(schedule.get_last_lr()[0])
results["warm-up and cosine"] = rates

model = net()
for p in model[0].parameters():
    p.requires_grad = False
opt = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
F.cross_entropy(model(x), labels).backward()
opt.step()
note("frozen layer", *model.parameters())
results["frozen layer has no gradient"] = model[0].weight.grad is None

soft, order = F.one_hot(labels, 3).float(), torch.tensor([1, 0, 3, 2, 5, 4])
mixed = F.cross_entropy(net()(0.3 * x + 0.7 * x[order]), 0.3 * soft + 0.7 * soft[order])
note("mixup", mixed)
near = F.normalize(x, dim=-1)
scores = near @ near.t() / 0.1
scores.fill_diagonal_(-1e9)
note("contrastive", F.cross_entropy(scores, order))
best = net()(x).topk(2, 1, True, True)[1].t()
right = best.eq(labels.view(1, -1).expand_as(best))
note("top-2 accuracy", right.reshape(-1).float().sum(0, keepdim=True))
counts = torch.bincount(labels * 3 + net()(x).argmax(-1), minlength=9).reshape(3, 3)
note("confusion", counts)
layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
with torch.no_grad():
    layer.weight = torch.ones(2, 4)
    layer.bias.zero_()
note("weight norm", layer(x), layer.parametrizations.weight.original0)
