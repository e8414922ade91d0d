"""Importers and modules are tables over weft.functional: they hold no formula of their own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import torch

import weft
from weft import importers
from weft.importers.aten import TABLE

ROOT = Path(weft.__file__).parent
CURVES = {"exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "tanh", "sinh", "cosh", "erf",
          "erfc", "sigmoid", "rsqrt", "logaddexp", "silu", "gelu", "softmax", "log_softmax",
          "cumprod", "atan"}  # fmt: skip
# (file, function): deviations that norms give beside their result, softmax with a cast or a mask of
# its own, activations of fused operators, scores by stage, integers as floats, drawn noise
ALLOWED = {
    ("aten/arithmetic.py", "ldexp"),
    ("aten/layers.py", "batch_norm_stats"), ("aten/layers.py", "fused_rms_norm"),
    ("aten/layers.py", "native_group_norm"), ("aten/layers.py", "native_layer_norm"),
    ("aten/reductions.py", "cumprod"), ("aten/reductions.py", "log_softmax"),
    ("aten/reductions.py", "log_softmax_widened"), ("aten/reductions.py", "safe_softmax"),
    ("aten/reductions.py", "softmax"), ("aten/reductions.py", "softmax_widened"),
    ("onnx/activations.py", "bias_gelu"), ("onnx/activations.py", "fast_gelu"),
    ("onnx/attention.py", "_softmax"), ("onnx/attention.py", "attend"),
    ("onnx/codes.py", "qlinear_sigmoid"), ("onnx/codes.py", "qlinear_softmax"),
    ("onnx/longs.py", "_shadow"),
    ("onnx/nets.py", "causal_conv_with_state"),
    ("onnx/reductions.py", ""), ("onnx/reductions.py", "cross_entropy"),
    ("onnx/reductions.py", "layer_normalization"),
    ("onnx/sampling.py", "multinomial"),
}  # fmt: skip


def calls(folder: str) -> Iterator[tuple[str, str, str]]:
    """(file, function, curve) of each call of an elementary function."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owner: dict[ast.AST, str] = {}
        for node in ast.walk(tree):
            name = node.name if isinstance(node, ast.FunctionDef) else owner.get(node, "")
            owner |= dict.fromkeys(ast.iter_child_nodes(node), name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                module = isinstance(node.func.value, ast.Name) and node.func.value.id in (
                    "np",
                    "F",
                    "math",
                )
                if node.func.attr in CURVES and not module:
                    yield path.relative_to(ROOT / folder).as_posix(), name, node.func.attr


def test_importers_hold_no_formulas() -> None:
    found = {
        (file, function): curve
        for file, function, curve in calls("importers")
        if file.startswith(("aten/", "onnx/", "torch_export/"))
    }
    assert {k: v for k, v in found.items() if k not in ALLOWED} == {}
    assert ALLOWED - set(found) == set()


def test_modules_hold_no_formulas() -> None:
    """Apart from a distribution's bounds, and attention that gives its weights."""
    found = {(file, function) for file, function, _ in calls("nn")}
    assert found == {("init.py", "trunc_normal_"), ("attention.py", "_weights")}


def test_rows_have_the_names_of_pytorch() -> None:
    """A row that only renames has ATen's parameters, each under its name."""
    for full, entry in TABLE.items():
        if full.startswith("aten.") and hasattr(entry.run, "__signature__"):
            _, name, overload = full.split(".")
            arguments = getattr(getattr(torch.ops.aten, name), overload)._schema.arguments
            ours = inspect.signature(entry.run).parameters
            theirs = [a.name for a in arguments if a.name != "generator"]
            assert set(theirs) <= set(ours), full


def test_importers_show_two_functions() -> None:
    assert dir(importers) == ["from_onnx", "from_torch"]
