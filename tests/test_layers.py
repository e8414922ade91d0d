"""The layer order of docs/architecture.md: a package imports only from packages above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "weft"

# A package may import from those before it. `program` stands before `templates`, which only
# `compile` needs: running a Program takes no compiler.
ORDER = [
    "core", "kernel", "graph", "program", "ops", "transform", "templates", "compile", "backends",
    "tensor", "nn", "optim", "importers", "ranks", "engine", "models", "serve", "web",
    "conform", "cli",
]  # fmt: skip

# Both sides of the waist that is the Program: neither may know the other.
FORBIDDEN = {
    "backends": {"graph", "ops", "transform", "templates", "compile"},
    "compile": {"backends"},
    "program": {"ops", "transform", "templates", "compile", "graph"},
}


def imports(path: Path) -> set[str]:
    """The weft packages a module imports, at any depth of nesting."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("weft.") and "." in n}
    return {p for p in found if (ROOT / p).is_dir()}


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT)


def test_imports_point_up() -> None:
    wrong = []
    for path in modules():
        package = path.relative_to(ROOT).parts[0]
        allowed = set(ORDER[: ORDER.index(package) + 1]) - FORBIDDEN.get(package, set())
        wrong += [f"{path.relative_to(ROOT)} imports {p}" for p in imports(path) - allowed]
    assert not wrong


def test_every_package_has_its_place() -> None:
    packages = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    assert packages <= set(ORDER)


KINDS = ("cpu", "vulkan", "metal", "dx12", "webgpu", "cuda", "hip", "lavapipe")


WHERE = {("program", "device.py", "cpu")}  # HOST, by which the others know it


@pytest.mark.parametrize(
    "package", ["templates", "compile", "program", "models", "tensor", "optim"]
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
