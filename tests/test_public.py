"""The public names of weft: what type checkers see is what there is."""

from __future__ import annotations

import ast
from pathlib import Path

import weft


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


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(weft, "nothing") and "exp" in dir(weft)
