"""The public names of weft: what type checkers see is what there is."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.tensor import functional


def test_the_stub_is_what_weft_exports() -> None:
    stub = ast.parse(Path(weft.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    seen = {
        a.asname for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names if a.asname
    }
    seen |= {t.id for n in stub.body if isinstance(n, ast.Assign) for t in n.targets}  # type: ignore[attr-defined]
    assert seen == set(weft.__all__) and {"compile", "bool", "nn", "Tensor", "exp"} <= seen
    for name in weft.__all__:
        assert getattr(weft, name) is getattr(weft, name)
    assert weft.exp.__name__ == "exp" and callable(weft.compile)


def test_no_function_shows_an_object_of_its_own() -> None:
    for home in (weft, functional):
        names = [n for n in dir(home) if not n.startswith("_")]
        functions = {n: v for n in names if inspect.isfunction(v := getattr(home, n))}
        assert {"max", "where", "softmax"} & functions.keys()
        for name, function in functions.items():
            shown = inspect.signature(function)
            assert "self" not in shown.parameters, name
            assert shown.return_annotation != "Self", name
    assert str(inspect.signature(weft.max)).startswith("(x: 'Operand', /, axis: ")


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(weft, "nothing") and "exp" in dir(weft)


@pytest.mark.parametrize("module", [
    "weft", "weft.tensor", "weft.models", "weft.importers", "weft.compile", "weft.torch",
    "weft.torch.nn", "weft.torch.nn.functional", "weft.torch.nn.modules", "weft.torch.nn.init",
    "weft.torch.optim", "weft.torch.optim.lr_scheduler",
])  # fmt: skip
def test_a_misspelt_name_gets_the_right_one(module: str) -> None:
    found = importlib.import_module(module) if module != "weft.compile" else compile_package()
    name = next(n for n in sorted(dir(found)) if not n.startswith("_") and len(n) > 7)
    with pytest.raises(AttributeError, match=f"did you mean {name}"):
        getattr(found, f"{name[:3]}{name[4:]}")
    with pytest.raises(AttributeError) as plain:
        found.qqqqqq  # noqa: B018
    assert "did you mean" not in str(plain.value) and repr(module) in str(plain.value)


def compile_package() -> Any:
    """The package behind `weft.compile`, which is the function."""
    import sys

    import weft.compile.passes  # noqa: F401

    return sys.modules["weft.compile"]
