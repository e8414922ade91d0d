"""`weft run-onnx`, and what `weft explain` says of an ONNX file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.core import text
from weft.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from weft.importers.onnx.model import OnnxModel


@click.command("run-onnx", epilog="Example:  weft run-onnx yolo.onnx --input images=photo.npy")
@click.argument("path", metavar="FILE", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy",
              help="An input; those without one get random numbers.")  # fmt: skip
@click.option("--size", "sizes", multiple=True, metavar="NAME=N",
              help="A size that the file leaves open (1 otherwise), by its name.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--output", type=click.Path(file_okay=False), help="A folder for NAME.npy of results."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_onnx(
    path: str, inputs: Sequence[str], sizes: Sequence[str], device: str, output: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run an ONNX model once, and show its inputs, its outputs and what ran where."""
    model, given, results = played(path, inputs, sizes, device)
    if output is not None:
        _save(Path(output), model, results)
    facts = _facts(model, given, results)
    click.echo(json.dumps(facts) if as_json else shown(facts))


def played(
    path: str, inputs: Sequence[str], sizes: Sequence[str], device: str
) -> tuple[OnnxModel, dict[str, np.ndarray], list[np.ndarray]]:
    """A model, what it was called with, and its results."""
    import numpy as np

    from weft.importers import from_onnx
    from weft.importers.onnx.inputs import random_input

    model = from_onnx(path, device)
    known = {p.name for p in model.inputs}
    files = dict(_pair(entry, "--input") for entry in inputs)
    open_ = {str(d) for p in model.inputs for d in p.shape or () if isinstance(d, str)}
    wanted = {name: _count(n) for name, n in (_pair(entry, "--size") for entry in sizes)}
    _known(files, known, "input")
    _known(wanted, open_, "open size")
    rng = np.random.default_rng(0)
    given = {
        p.name: _array(files[p.name]) if p.name in files else random_input(p, wanted, rng)
        for p in model.inputs
    }
    made = model(**given) if all(n.isidentifier() for n in given) else model(*given.values())
    return model, given, [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]


def _known(given: Any, names: set[str], what: str) -> None:
    wrong = sorted(set(given) - names)
    if wrong:
        raise UsageError(
            f"no {what} {wrong[0]!r}; this model has {', '.join(sorted(names)) or 'none'}"
        )


def _pair(entry: str, option: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} {entry}: expected NAME=VALUE")
    return name, value


def _count(value: str) -> int:
    if not value.isdigit():
        raise UsageError(f"--size: {value!r} is not a size")
    return int(value)


def _array(path: str) -> np.ndarray:
    import numpy as np

    try:
        made: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: not an array of NumPy's: {str(error)[:80]}") from None
    return made


def _save(folder: Path, model: OnnxModel, results: Sequence[np.ndarray]) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for i, (port, array) in enumerate(zip(model.outputs, results)):
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in port.name).lstrip(".")
        np.save(folder / f"{plain or i}.npy", array, allow_pickle=False)


def _facts(
    model: OnnxModel, given: dict[str, np.ndarray], results: Sequence[np.ndarray]
) -> dict[str, Any]:
    def facts(port: Any, array: np.ndarray) -> dict[str, Any]:
        return {"declared": port.text(), "dtype": array.dtype.name, "shape": list(array.shape)}

    return {
        "inputs": [facts(p, given[p.name]) for p in model.inputs],
        "outputs": [
            facts(p, x) | ({"min": float(x.min()), "max": float(x.max())} if x.size else {})
            for p, x in zip(model.outputs, results)
        ],
        "weights": {
            "count": len(model.weights),
            "elements": sum(w.size for w in model.weights.values()),
        },
        "where": [{"what": what, "how": how} for what, how in model.where()],
    }


def shown(facts: dict[str, Any]) -> str:
    """The facts of a run as tables."""
    parts = []
    for kind in ("inputs", "outputs"):
        rows = [
            [f["declared"], f["shape"], f"{f['min']:.4g} to {f['max']:.4g}" if "min" in f else ""]
            for f in facts[kind]
        ]
        parts.append(text.table([kind, "shape", "values" if kind == "outputs" else ""], rows))
    weights = facts["weights"]
    parts.append(f"{weights['count']} weights of {text.count(weights['elements'])} elements")
    parts.append(text.table(["what", "how"], [[w["what"], w["how"]] for w in facts["where"]]))
    return "\n\n".join(parts)


def explain_onnx(path: str, device: str, as_json: bool) -> str:
    """What `weft explain` prints of an ONNX file: run once with random inputs, open sizes 1."""
    model, given, results = played(path, (), (), device)
    facts = _facts(model, given, results)
    if as_json:
        return json.dumps(facts | {"report": model.report()})
    return f"{shown(facts)}\n\n{model.report()}"
