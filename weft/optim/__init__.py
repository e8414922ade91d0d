"""Optimisers, learning-rate schedules and gradient clipping: SGD, Adam and AdamW with PyTorch's
formulas and defaults; a step is part of the compiled Program that computes the gradients."""

from weft.host.boundary import guard_functions, guard_methods
from weft.optim.adam import Adam, AdamW
from weft.optim.clip import clip_grad_norm, length, shorten, square_sum
from weft.optim.finite import all_finite
from weft.optim.optimizer import Group, Optimizer, Schedule
from weft.optim.scaler import LossScaler
from weft.optim.schedules import constant, cosine, linear
from weft.optim.sgd import SGD

__all__ = [
    "SGD", "Adam", "AdamW", "Group", "LossScaler", "Optimizer", "Schedule", "all_finite",
    "clip_grad_norm", "constant", "cosine", "length", "linear", "shorten", "square_sum",
]  # fmt: skip

for _kind in (SGD, Adam, AdamW, LossScaler):
    guard_methods(_kind)
guard_functions(
    globals(),
    (
        "all_finite",
        "clip_grad_norm",
        "constant",
        "cosine",
        "linear",
        "length",
        "shorten",
        "square_sum",
    ),
)
