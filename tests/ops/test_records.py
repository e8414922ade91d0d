"""A primitive is what its record says: nothing else in weft knows it by name but its function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft
from weft.ops.primitive import PRIMITIVES

ROOT = Path(weft.__file__).parent
# Who spells the public functions, and other frameworks' operators; and conform/unary.py, accuracy,
# and the maths of users' own kernels.
PUBLIC = ("tensor", "nn", "importers", "torch")
SPELLED = ("conform/unary.py", "kernel/formulas.py")
# Its function, its record, what the record is made of: the kernel's formula, and NumPy's where
# NumPy has none.
ERF = ["kernel/math.py", "ops/functions.py", "ops/special.py", "ops/unary.py"]


def naming(word: str) -> list[str]:
    """The files that name something, but for the public surface."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        public = path.parent == ROOT or name.split("/")[0] in PUBLIC or name in SPELLED
        if not public and re.search(rf"\b{word}\b", path.read_text(encoding="utf-8")):
            found.append(name)
    return found


def test_a_new_elementwise_primitive_touches_three_files() -> None:
    assert naming("erf") == ERF
    assert naming("isnan")[:4] and "ops/unary.py" in naming(
        "isnan"
    )  # the search finds what is there


@pytest.mark.parametrize("name", [p.name for p in PRIMITIVES.values() if p.kind == "elementwise"])
def test_an_elementwise_record_is_whole(name: str) -> None:
    p = PRIMITIVES[name]
    assert p.numpy is not None and p.lower is not None and p.cost >= 1
    assert p.ranges or name in ("cast", "where")  # which take another dtype, and a condition
    assert all(low < high for low, high in p.ranges)
