"""A classifier of sequences: LSTM, dropout, padding by a mask, saved and loaded weights."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, vocab, classes, hidden=16):
        super().__init__()
        self.embedding = nn.Embedding(vocab, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1).float()
        h, (_, _) = self.lstm(self.embedding(ids))
        pooled = (h * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return self.fc(self.drop(pooled))


def fill(model):
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.linspace(0, 9 + i, p.numel())).view(*p.shape) * 0.4)


ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0], [5, 3, 5, 8, 0], [9, 7, 9, 3, 2]])
labels = torch.LongTensor([0, 1, 2, 1])
model = Classifier(10, 3)
fill(model)
model.eval()  # no dropout, so that both libraries see the same
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
history = []
for _ in range(8):
    optimizer.zero_grad()
    logits = model(ids)
    loss = criterion(logits, labels)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    history.append((loss.item(), accuracy.item()))

path = os.path.join(tempfile.mkdtemp(), "weights.pt")
torch.save(model.state_dict(), path)
again = Classifier(10, 3)
missing = again.load_state_dict(torch.load(path))
again.eval()
with torch.no_grad():
    same = torch.allclose(again(ids), model(ids))
    probabilities = F.softmax(again(ids), dim=1)
    confidence, predicted = probabilities.max(dim=1)
results = {
    "history": history,
    "same": same,
    "missing": list(missing.missing_keys),
    "confidence": confidence.tolist(),
    "predicted": predicted.tolist(),
    "sorted": [t.tolist() for t in torch.sort(probabilities, dim=1, descending=True)],
}
