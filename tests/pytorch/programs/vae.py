"""A variational autoencoder: convolutions, the reparametrised sample, a sum of two losses."""

import torch
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
        )
        self.mu = nn.Linear(8 * 2 * 2, latent)
        self.logvar = nn.Linear(8 * 2 * 2, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 8 * 2 * 2),
            nn.Unflatten(1, (8, 2, 2)),
            nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5 * logvar)
        return mu + eps * std

    def forward(self, x, eps):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.decoder(self.reparameterize(mu, logvar, eps)), mu, logvar


def loss_function(recon, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon.view(-1, 64), x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


model = VAE()
for i, (name, p) in enumerate(model.named_parameters()):
    if p.ndim > 1:
        p.data = (
            torch.cos(torch.arange(p.numel(), dtype=torch.float32) * 0.9 + i).reshape(p.shape) * 0.3
        )
    else:
        p.data.fill_(0.05 if "bias" in name else 1.0)
optimizer = optim.Adam(model.parameters(), lr=1e-2)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
x = (torch.sin(torch.arange(6 * 64).float()).view(6, 1, 8, 8) + 1) / 2
losses, rates = [], []
model.train()
for epoch in range(5):
    eps = torch.cos(torch.arange(24).float() + epoch).view(6, 4)
    optimizer.zero_grad()
    recon, mu, logvar = model(x, eps)
    loss = loss_function(recon, x, mu, logvar)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item() / len(x))
    rates.append(scheduler.get_last_lr()[0])

model.eval()
with torch.no_grad():
    recon, mu, logvar = model(x, torch.zeros(6, 4))
results = {
    "losses": losses,
    "rates": rates,
    "recon": recon.mean(dim=(1, 2, 3)).tolist(),
    "spread": recon.std().item(),
    "stats": [model.encoder[1].running_mean.tolist(), model.encoder[1].running_var.tolist()],
    "batches": model.encoder[1].num_batches_tracked.item(),
    "keys": sorted(model.state_dict().keys()),
    "best": recon.flatten(1).max(1)[0].tolist(),
}
