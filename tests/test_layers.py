"""The layer order of docs/architecture.md: a room imports only from rooms above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "weft"

# A room may import from those before it. `program` stands before `templates`, which only `compile`
# needs: running a Program takes no compiler. models/ has floors of its own; modules that stand
# directly in it are its door, above all of them.
ORDER = [
    "core", "host", "audio", "kernel", "graph", "program", "ops", "transform", "templates",
    "compile", "backends", "tensor", "nn", "func", "optim", "importers", "data", "torch", "ranks",
    "vision",
    "engine", "hub", "models/arch", "models/text", "models/grammar", "models/weights", "models/zoo",
    "quantize", "models/run", "models", "evaluate", "training", "machines", "serve", "web",
    "conform", "bench", "cli",
]  # fmt: skip

# Both sides of the waist that is the Program: neither may know the other.
FORBIDDEN = {
    "backends": {"graph", "ops", "transform", "templates", "compile"},
    "compile": {"backends"},
    "program": {"ops", "transform", "templates", "compile", "graph"},
}


def room(module: str) -> str:
    """The room of a dotted module name below weft: "weft.models.arch.rope" is in models/arch."""
    parts = module.split(".")[1:]
    floor = "/".join(parts[:2])
    return floor if floor in ORDER else parts[0]


def imports(path: Path) -> set[str]:
    """The rooms a module imports from, at any depth of nesting."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
        found |= {room(n) for n in names if n.startswith("weft.") and "." in n}
    return {p for p in found if (ROOT / p).is_dir()}


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT)


def test_imports_point_up() -> None:
    wrong = []
    for path in modules():
        module = path.relative_to(ROOT.parent).with_suffix("")
        own = room(".".join(module.parts).removesuffix(".__init__"))
        allowed = set(ORDER[: ORDER.index(own) + 1]) - FORBIDDEN.get(own, set())
        wrong += [f"{path.relative_to(ROOT)} imports {p}" for p in imports(path) - allowed]
    assert not wrong


def test_every_package_has_its_place() -> None:
    packages = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    assert packages == {name for name in ORDER if "/" not in name}
    floors = {
        f"models/{p.name}" for p in (ROOT / "models").iterdir() if (p / "__init__.py").exists()
    }
    assert floors == {name for name in ORDER if "/" in name}


def test_the_table_of_rooms_has_this_order() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Rooms", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^\| `([\w/]+)` \|", table, re.M) == ORDER


KINDS = ("cpu", "vulkan", "metal", "dx12", "webgpu", "cuda", "hip", "lavapipe")


WHERE = {("program", "device.py", "cpu")}  # HOST, by which the others know it


@pytest.mark.parametrize(
    "package",
    [
        "templates",
        "compile",
        "program",
        "hub",
        "models",
        "quantize",
        "evaluate",
        "training",
        "machines",
        "tensor",
        "optim",
    ],
)
def test_only_backends_know_device_kinds(package: str) -> None:
    """Code (docstrings and comments aside) names no kind of device outside the backends."""
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = node.value in KINDS and id(node) not in docs
                named = named and (package, path.name, node.value) not in WHERE
                assert not named, f"{path.name}:{node.lineno} names the device kind {node.value!r}"


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by it: the second would stop every run of the whole suite."""
    names = [p.name for p in Path(__file__).parent.rglob("*.py") if p.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_no_test_imports_a_conftest() -> None:
    """Each folder has one; the arguments of pytest decide which of them has the name."""
    line = re.compile(r"^(from|import) conftest\b", re.M)
    sources = [p for p in Path(__file__).parent.rglob("*.py") if p != Path(__file__)]
    wrong = [p.name for p in sources if line.search(p.read_text(encoding="utf-8"))]
    assert not wrong, "move what they share to a module of its own"
