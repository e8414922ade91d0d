"""Optimisers, learning-rate schedules and gradient clipping with PyTorch's formulas and defaults; a
step is part of the compiled Program that computes the gradients."""

from weft.host.boundary import guard_calls, guard_functions, guard_methods
from weft.optim import lr_scheduler, swa_utils
from weft.optim.adam import Adam, AdamW
from weft.optim.adam_kinds import Adamax, NAdam, RAdam
from weft.optim.adaptive import Adadelta, Adagrad, RMSprop
from weft.optim.clip import clip_grad_norm, clip_grad_value, length, shorten, square_sum
from weft.optim.factored import ASGD, Adafactor, Rprop
from weft.optim.finite import all_finite
from weft.optim.lbfgs import LBFGS
from weft.optim.matrix import Lion, Muon
from weft.optim.optimizer import Group, Optimizer, Schedule
from weft.optim.scaler import LossScaler
from weft.optim.schedules import constant, cosine, linear
from weft.optim.sgd import SGD
from weft.optim.swa_utils import (
    SWALR,
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)

__all__ = [
    "ASGD", "LBFGS", "SGD", "SWALR", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
    "AveragedModel", "Group", "Lion", "LossScaler", "Muon", "NAdam", "Optimizer", "RAdam",
    "RMSprop", "Rprop", "Schedule", "all_finite", "clip_grad_norm", "clip_grad_norm_",
    "clip_grad_value", "clip_grad_value_", "constant", "cosine", "get_ema_avg_fn",
    "get_ema_multi_avg_fn", "get_swa_multi_avg_fn",
    "get_swa_avg_fn", "length", "linear", "lr_scheduler", "shorten", "square_sum", "swa_utils",
    "update_bn",
]  # fmt: skip

for _kind in (
    ASGD, SGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Lion, LossScaler, Muon, NAdam,
    RAdam, RMSprop, Rprop,
):  # fmt: skip
    guard_methods(_kind)
_MADE = ["Adafactor", "AveragedModel", "Group", "LBFGS", "Optimizer", "SWALR", "Schedule"]
guard_calls(globals(), _MADE, deep=True)
guard_calls(globals(), ["update_bn"])
guard_functions(globals(), [name for name in __all__ if name[0].islower() and name != "update_bn"])
clip_grad_norm_, clip_grad_value_ = clip_grad_norm, clip_grad_value  # as in torch.nn.utils
