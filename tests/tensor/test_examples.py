"""The examples in the docstrings of public functions and modules run, and each has one."""

from __future__ import annotations

import doctest
import inspect
import math

import numpy as np
import pytest

import weft
from weft import data, func, functional, nn, optim

FUNCTIONS = {f"functional.{name}": getattr(functional, name) for name in functional.__all__} | {
    f"weft.{name}": getattr(weft, name)
    for name in ("erfc", "exp2", "fmax", "fmin", "lerp", "logit", "logsumexp", "nan_to_num")
}
FUNCTIONS |= {
    f"weft.{name}": getattr(weft, name)
    for name in (
        "Spec", "arange", "asarray", "autocast", "cat", "checkpoint", "compile", "einsum",
        "from_dlpack", "full", "grad", "load", "manual_seed", "matmul", "no_grad", "ones",
        "reshape", "stack", "take", "tensor", "trace", "unstack", "value_and_grad", "zeros",
    )
}  # fmt: skip
FUNCTIONS |= {
    f"optim.{name}": getattr(optim, name)
    for name in (
        *("ASGD", "Adafactor", "Adam", "AdamW", "AveragedModel", "LBFGS", "Rprop", "SGD"),
        *("clip_grad_norm", "constant", "cosine", "linear", "update_bn"),
        *("get_ema_avg_fn", "get_swa_avg_fn"),
    )
}
FUNCTIONS |= {f"func.{name}": getattr(func, name) for name in func.__all__}
FUNCTIONS |= {
    f"data.{name}": getattr(data, name)
    for name in data.__all__
    if name not in ("Dataset", "IterableDataset", "Sampler", "mapped")
}
FUNCTIONS |= {f"nn.{name}": value for name in nn.__all__ if callable(value := getattr(nn, name))}
FUNCTIONS |= {
    f"nn.init.{name}": value
    for name, value in vars(nn.init).items()
    if inspect.isfunction(value) and value.__module__ == nn.init.__name__ and name[0] != "_"
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_example_runs(name: str) -> None:
    names = {"F": functional, "weft": weft, "nn": nn, "optim": optim, "data": data}
    names |= {"math": math, "np": np}
    text = FUNCTIONS[name].__doc__ or ""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert test.examples, f"{name} has no example"
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert not failed


def test_functional_shows_its_functions_alone() -> None:
    assert len(functional.__all__) == len(set(functional.__all__))
    public = {name for name in vars(functional) if not name.startswith("_")}
    assert public == set(functional.__all__)
