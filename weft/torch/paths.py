"""The files of PyTorch's packages, as scripts import from them: `from torch.nn.modules.conv import
Conv2d` finds the name in the package that has it here."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

# package -> files of PyTorch's package of this name, whose names are the package's own here
FILES = {
    "": "functional random return_types",
    "amp": "autocast_mode grad_scaler",
    "autograd": "anomaly_mode function grad_mode gradcheck variable",
    "cuda": "random",
    "distributions": "bernoulli beta binomial categorical cauchy chi2 constraint_registry "
    "constraints continuous_bernoulli dirichlet distribution exp_family exponential fishersnedecor "
    "gamma geometric gumbel half_cauchy half_normal independent inverse_gamma kl kumaraswamy "
    "laplace log_normal logistic_normal lowrank_multivariate_normal mixture_same_family "
    "multinomial multivariate_normal negative_binomial normal one_hot_categorical pareto poisson "
    "relaxed_bernoulli relaxed_categorical studentT transformed_distribution transforms uniform "
    "von_mises weibull",
    "nn": "parameter",
    "nn.modules": "activation adaptive batchnorm channelshuffle container conv distance dropout "
    "flatten fold instancenorm lazy linear loss module normalization padding pixelshuffle pooling "
    "rnn sparse transformer upsampling utils",
    "nn.parallel": "data_parallel",
    "nn.utils": "clip_grad convert_parameters spectral_norm weight_norm",
    "optim": "adadelta adagrad adam adamax adamw asgd lbfgs nadam optimizer radam "
    "rmsprop rprop sgd swa_utils",
    "utils.data": "dataloader dataset distributed sampler",
}


class _File(types.ModuleType):
    """A module whose names are another's."""

    def __init__(self, name: str, home: types.ModuleType) -> None:
        super().__init__(name, f"The names of {home.__name__}.")
        self.__dict__["_home"] = home

    kind = None  # asked of every value of a namespace, and of no name here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home, name)

    def __dir__(self) -> list[str]:
        return dir(self._home)


def find() -> None:
    """Makes each file's name importable, and an attribute of its package unless that has one."""
    for home, names in FILES.items():
        package = "weft.torch" + (f".{home}" if home else "")
        module = importlib.import_module(package)
        for name in names.split():
            path, known = f"{package}.{name}", vars(module).get(name)
            file = known if isinstance(known, types.ModuleType) else _File(path, module)
            sys.modules.setdefault(path, file)
            if known is None and name not in dir(module):  # a package may find a name late
                setattr(module, name, file)
