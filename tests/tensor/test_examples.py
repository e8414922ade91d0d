"""The examples in the docstrings of public functions run, and each public function has one."""

from __future__ import annotations

import doctest
import math

import pytest

import weft
from weft import functional, nn

FUNCTIONS = {f"functional.{name}": getattr(functional, name) for name in functional.__all__} | {
    f"weft.{name}": getattr(weft, name)
    for name in ("erfc", "exp2", "fmax", "fmin", "lerp", "logit", "logsumexp", "nan_to_num")
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_example_runs(name: str) -> None:
    names = {"F": functional, "weft": weft, "nn": nn, "math": math}
    text = FUNCTIONS[name].__doc__ or ""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert test.examples, f"{name} has no example"
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert not failed


def test_functional_shows_its_functions_alone() -> None:
    assert len(functional.__all__) == len(set(functional.__all__))
    public = {name for name in vars(functional) if not name.startswith("_")}
    assert public == set(functional.__all__)
