"""Functions in files, as the commands run them: an ONNX model, a program of torch.export, what
`weft compile` or Compiled.save made of one. Arrays in, arrays out, by name."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core import text
from weft.core.errors import ShapeError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from weft.importers.ports import Port
    from weft.program.device import Device

GRAPHS = (".onnx", ".pt2")  # files of other frameworks
MOST = 1 << 28  # elements of an input that are made up


@dataclass(frozen=True)
class Input:
    """`said` is how the file declares it. A size is a number, the name of one that is open, or
    what gives it from the sizes by name."""

    name: str
    said: str
    dtype: np.dtype
    shape: tuple[int | str | Callable[[Mapping[str, int]], int | None] | None, ...]


@dataclass(frozen=True)
class FileFunction:
    """`call` takes arrays by name and gives the results by name; `least` are the sizes that open
    ones have by default. `weights` are how many there are and their elements; `where` says what ran
    where, as (what, how), `report` how it was compiled, once it was called."""

    inputs: Sequence[Input]
    outputs: Sequence[str]
    call: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
    least: Mapping[str, int]
    weights: tuple[int, int]
    where: Callable[[], list[tuple[str, str]]]
    report: Callable[[], str]
    metadata: Mapping[str, str] = field(default_factory=dict)  # what the file says of itself


@dataclass(frozen=True)
class Played:
    """A Function, what it was called with, its results, and the seconds of the first call and of
    the one after it (None: there was one)."""

    function: FileFunction
    given: Mapping[str, np.ndarray]
    results: Mapping[str, np.ndarray]
    first: float
    again: float | None = None


def is_function(path: str) -> bool:
    """True if `path` is a file of a function, not of a model that writes."""
    file = Path(path)
    if file.suffix in GRAPHS:
        return True
    from weft.program import bundle

    return bundle.is_bundle(file) and bundle.head_of(file).get("kind") == "function"


def of_file(path: str, device: str) -> FileFunction:
    """The function in the file at `path`, on the device."""
    from weft.backends import registry

    if path.endswith(".onnx"):
        return _of_onnx(path, registry.get(device))
    if path.endswith(".pt2"):
        return _of_torch(path, registry.get(device))
    return _of_stored(path, device)


def _of_onnx(path: str, device: Device) -> FileFunction:
    import numpy as np

    from weft.importers import from_onnx
    from weft.importers.onnx.inputs import declared

    model = from_onnx(path, None if device.is_host else device)

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = model(*(given[p.name] for p in model.inputs))
        made = made if isinstance(made, tuple) else (made,)
        return {p.name: np.asarray(x) for p, x in zip(model.outputs, made)}

    elements = sum(w.size for w in model.weights.values())
    said, weights = [p.text() for p in model.outputs], (len(model.weights), elements)
    inputs = [_input(p, declared(p)) for p in model.inputs]
    return FileFunction(inputs, said, call, {}, weights, model.where, model.report, model.metadata)


def _input(port: Port, dtype: np.dtype | None) -> Input:
    import numpy as np

    from weft.importers.ports import DerivedSize

    shape = tuple(s.of if isinstance(s, DerivedSize) else s for s in port.shape or ())
    return Input(port.name, port.text(), np.dtype(np.float32) if dtype is None else dtype, shape)


def _of_torch(path: str, device: Device) -> FileFunction:
    import numpy as np

    from weft.core.dtypes import DType
    from weft.core.trees import flatten, paths
    from weft.importers import from_torch
    from weft.tensor.compiled import Compiled
    from weft.tensor.core import Tensor

    module = from_torch(path)
    ports = [p for p in module.plan.inputs if not p.constant]
    inputs = [_input(p, p.dtype.numpy if isinstance(p.dtype, DType) else None) for p in ports]
    compiled = Compiled(module, device, frozen=True)

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = compiled(**module.arguments(given))
        leaves, tree = flatten(made, lambda x: isinstance(x, Tensor), path)
        names = [p.strip("_") or "out" for p in paths(tree)]
        return {n: np.asarray(x) for n, x in zip(names, leaves)}

    tensors = list(module.parameters())
    where = [("all nodes", f"compiled for {device.info.id}")]
    least = {name: max(low, 2) for name, (low, _) in module.plan.bounds.items()}
    return FileFunction(
        inputs, [], call, least, (len(tensors), sum(p.size for p in tensors)), lambda: where,
        compiled.report,
    )  # fmt: skip


def _of_stored(path: str, device: str) -> FileFunction:
    import weft

    stored: Any = weft.load(path, device=device)
    inputs = [Input(b.name, _said(b), b.dtype.numpy, b.shape) for b in stored.inputs]
    names = [b.name for b in stored.outputs]

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = stored(**given)
        return dict(zip(names, made if isinstance(made, tuple) else (made,)))

    weights = [b for b in stored.program.buffers if b.role == "weight"]
    where = [("all nodes", f"compiled before, on {stored.device.info.id}")]
    return FileFunction(
        inputs, [_said(b) for b in stored.outputs], call, {},
        (len(weights), sum(math.prod(b.shape) for b in weights)), lambda: where, str,
    )  # fmt: skip


def _said(spec: Any) -> str:
    return f"{spec.name}: {spec.dtype.name}[{', '.join(map(str, spec.shape))}]"


# -- playing --------------------------------------------------------------------------------------


def played(
    path: str, inputs: Sequence[str], sizes: Sequence[str], device: str, again: bool = False
) -> Played:
    """The function in a file, called once: `inputs` are NAME=FILE.npy, others get random numbers;
    `sizes` are NAME=N for open ones. Raises UsageError for names that it does not have."""
    import numpy as np

    function = of_file(path, device)
    files = dict(map(_pair, inputs))
    wanted = sizes_of(sizes)
    _known(files, {i.name for i in function.inputs}, "input")
    open_ = {d for i in function.inputs for d in i.shape if isinstance(d, str)}
    _known(wanted, open_, "open size")
    rng = np.random.default_rng(0)
    given = {
        i.name: _array(files[i.name]) if i.name in files
        else made_up(i, {**function.least, **wanted}, rng)
        for i in function.inputs
    }  # fmt: skip
    start = time.perf_counter()
    results = function.call(given)
    first = time.perf_counter() - start
    if not again:
        return Played(function, given, results, first)
    start = time.perf_counter()
    function.call(given)
    return Played(function, given, results, first, time.perf_counter() - start)


def made_up(wanted: Input, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    """Numbers for an input: 0 and 1 where it has integers, sizes that are open and not among
    `sizes` 1. Raises ShapeError for more than anybody wants made up."""
    import numpy as np

    shape: list[int] = []
    for size in wanted.shape:
        known = sizes.get(size) if isinstance(size, str) else size
        found = known(sizes) if callable(known) else known
        shape.append(1 if found is None else found)
    if math.prod(shape) > MOST:
        raise ShapeError(
            f"input {wanted.said}: {shape} is more than weft fills at random; pass --input "
            "NAME=FILE.npy"
        )
    if wanted.dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(wanted.dtype)
    made = rng.random(shape)
    return made < 0.5 if wanted.dtype == np.bool_ else made.astype(wanted.dtype)


def _known(given: Any, names: set[str], what: str) -> None:
    wrong = sorted(set(given) - names)
    if wrong:
        raise UsageError(
            f"no {what} {wrong[0]!r}; this model has {', '.join(sorted(names)) or 'none'}"
        )


def _pair(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name:
        raise UsageError(f"--input {entry}: expected NAME=FILE.npy")
    return name, value


def sizes_of(entries: Sequence[str]) -> dict[str, int]:
    """NAME=N as sizes by name. Raises UsageError."""
    found = {}
    for entry in entries:
        name, _, count = entry.partition("=")
        if not name or not count.isdecimal() or not int(count):
            raise UsageError(f"--size {entry}: expected NAME=N, such as batch=8")
        found[name] = int(count)
    return found


def _array(path: str) -> np.ndarray:
    import numpy as np

    try:
        made: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: not an array of NumPy's: {str(error)[:80]}") from None
    return made


# -- showing --------------------------------------------------------------------------------------


def save(folder: Path, results: Mapping[str, np.ndarray]) -> None:
    """Each result as NAME.npy, letters and digits of the name kept, two alike numbered."""
    import io

    import numpy as np

    from weft.host.files import write_bytes

    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for i, (name, array) in enumerate(results.items()):
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".")[:100]
        plain = plain if plain and plain not in taken else f"{plain}{i}"
        taken.add(plain)
        data = io.BytesIO()
        np.save(data, array, allow_pickle=False)
        write_bytes(folder / f"{plain}.npy", data.getvalue())


def facts(run: Played) -> dict[str, Any]:
    """Inputs, outputs and what ran where, as JSON values."""
    function, results = run.function, run.results
    said = function.outputs or [f"{n}: {x.dtype.name}{list(x.shape)}" for n, x in results.items()]
    return {
        "inputs": [_facts(i.said, run.given[i.name]) for i in function.inputs],
        "outputs": [
            _facts(s, x) | ({"min": float(x.min()), "max": float(x.max())} if x.size else {})
            for s, x in zip(said, results.values())
        ],
        "weights": dict(zip(("count", "elements"), function.weights)),
        "where": [{"what": what, "how": how} for what, how in function.where()],
        "first_s": round(run.first, 4),
        **({} if run.again is None else {"again_s": round(run.again, 4)}),
    }


def _facts(said: str, array: np.ndarray) -> dict[str, Any]:
    return {"declared": said, "dtype": array.dtype.name, "shape": list(array.shape)}


def shown(found: Mapping[str, Any]) -> str:
    """The facts of a run as tables."""
    parts = []
    for kind in ("inputs", "outputs"):
        rows = [
            [f["declared"], f["shape"], f"{f['min']:.4g} to {f['max']:.4g}" if "min" in f else ""]
            for f in found[kind]
        ]
        parts.append(text.table([kind, "shape", "values" if kind == "outputs" else ""], rows))
    weights = found["weights"]
    parts.append(
        f"{text.counted(weights['count'], 'weight')} of {text.count(weights['elements'])} elements"
    )
    parts.append(text.table(["what", "how"], [[w["what"], w["how"]] for w in found["where"]]))
    return "\n\n".join(parts)


def run(
    path: str, inputs: Sequence[str], sizes: Sequence[str], device: str, output: str | None,
    as_json: bool, again: bool = False,
) -> str:  # fmt: skip
    """Plays the function in a file; what a command prints of that."""
    done = played(path, inputs, sizes, device, again)
    if output is not None:
        save(Path(output), done.results)
    found = facts(done)
    return json.dumps(found) if as_json else shown(found)
