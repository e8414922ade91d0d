"""Residual blocks, a GAN's two steps, and a loop of training with evaluation and early stopping."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(
            in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(planes),
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": BasicBlock(1, 4), "b": BasicBlock(4, 8, stride=2)})
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        x = torch.flatten(self.pool(x), 1)
        return F.log_softmax(self.fc(x) * self.scale, dim=1)


def start(module, k=0.3):
    for i, (name, p) in enumerate(module.named_parameters()):
        if "bias" in name:
            nn.init.zeros_(p)
        if p.dim() > 1:
            with torch.no_grad():
                p.copy_((torch.arange(p.numel()).float() * 1.3 + i).sin().reshape(p.size()) * k)


device = "cuda" if torch.cuda.is_available() else "cpu"
x = (torch.arange(4 * 36).float() * 0.31).cos().view(4, 1, 6, 6).to(device)
y = torch.tensor([0, 1, 2, 1], device=device)
model = Net().to(device)
start(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
scheduler = OneCycleLR(optimizer, max_lr=0.05, steps_per_epoch=2, epochs=3)
seen = []
handle = model.layers["a"].register_forward_hook(lambda m, a, out: seen.append(tuple(out.shape)))
losses, momenta, correct = [], [], 0
for epoch in range(3):
    model.train()
    for batch in range(2):
        optimizer.zero_grad()
        output = model(x[batch * 2 : batch * 2 + 2])
        loss = F.nll_loss(output, y[batch * 2 : batch * 2 + 2])
        loss.backward()
        optimizer.step()
        momenta.append(optimizer.param_groups[0]["momentum"])
        if epoch * 2 + batch < 5:
            scheduler.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        pred = model(x).argmax(dim=1, keepdim=True)
        correct += pred.eq(y.view_as(pred)).sum().item()
handle.remove()

netG = nn.Sequential(nn.Linear(3, 8), nn.ReLU(True), nn.Linear(8, 4), nn.Tanh())
netD = nn.Sequential(
    nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1), nn.Sigmoid()
)
start(netG, 0.5), start(netD, 0.5)
criterion = nn.BCELoss()
optG = torch.optim.Adam(netG.parameters(), lr=0.02, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=0.02, betas=(0.5, 0.999))
plateau = ReduceLROnPlateau(optD, mode="min", factor=0.5, patience=0)
real = x.view(4, -1)[:, :4]
gan = []
for i in range(4):
    noise = (torch.arange(12).float() + i).cos().view(4, 3)
    label = torch.full((4,), 1.0)
    netD.zero_grad()
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    fake = netG(noise)
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    optD.step()
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optG.step()
    plateau.step(errG.item())
    gan.append([errD_real.item() + errD_fake.item(), errG.item(), optD.param_groups[0]["lr"]])

best = min(range(len(losses)), key=losses.__getitem__)
results = {
    "losses": losses,
    "momenta": momenta,
    "correct": correct,
    "rate": scheduler.get_last_lr(),
    "seen": seen[:2],
    "gan": gan,
    "best": best,
    "children": [type(m).__name__ for m in model.layers["b"].children()],
    "buffers": [n for n, _ in model.named_buffers()],
    "shapes": {k: tuple(v.shape) for k, v in model.state_dict().items() if "conv" in k},
}
