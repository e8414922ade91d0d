"""Optimisers, learning-rate schedules and gradient clipping with PyTorch's formulas and defaults; a
step is part of the compiled Program that computes the gradients."""

from weft.host.boundary import guard_functions, guard_methods
from weft.optim import lr_scheduler
from weft.optim.adam import Adam, AdamW
from weft.optim.adam_kinds import Adamax, NAdam, RAdam
from weft.optim.adaptive import Adadelta, Adagrad, RMSprop
from weft.optim.clip import clip_grad_norm, clip_grad_value, length, shorten, square_sum
from weft.optim.finite import all_finite
from weft.optim.matrix import Lion, Muon
from weft.optim.optimizer import Group, Optimizer, Schedule
from weft.optim.scaler import LossScaler
from weft.optim.schedules import constant, cosine, linear
from weft.optim.sgd import SGD

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Group", "Lion", "LossScaler", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Schedule", "all_finite", "clip_grad_norm",
    "clip_grad_norm_", "clip_grad_value", "clip_grad_value_", "constant", "cosine", "length",
    "linear", "lr_scheduler", "shorten", "square_sum",
]  # fmt: skip

for _kind in (
    SGD, Adadelta, Adagrad, Adam, AdamW, Adamax, Lion, LossScaler, Muon, NAdam, RAdam, RMSprop,
):  # fmt: skip
    guard_methods(_kind)
guard_functions(globals(), [name for name in __all__ if name[0].islower()])
clip_grad_norm_, clip_grad_value_ = clip_grad_norm, clip_grad_value  # as in torch.nn.utils
