""".pt2 files that lie: each is refused by one of weft's errors, nothing in them is executed."""

from __future__ import annotations

import copy
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export

from weft.core.errors import FileFormatError, WeftError
from weft.importers import from_torch
from weft.importers.torch_export.sizes import size_of

MODEL, CONFIG = "m/models/model.json", "m/data/weights/model_weights_config.json"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            scale = x[:, :1] * 2
        a, b, c = (self.fc(x) * scale).split(1, 1)
        self.seen.add_(a.sum())
        return {"y": torch.cat([c, b.reshape(x.shape[0], -1)], 1)}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("pt2") / "m.pt2"
    ep = export(Small(), (torch.ones(2, 4),), dynamic_shapes={"x": {0: Dim("n", min=1)}})
    torch.export.save(ep, path)
    with zipfile.ZipFile(path) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def written(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def changed(members: dict[str, bytes], name: str, change: Callable[[Any], Any]) -> dict[str, bytes]:
    value = json.loads(members[name])
    change(value)
    return {**members, name: json.dumps(value).encode()}


def test_as_it_was(members: dict[str, bytes], tmp_path: Path) -> None:
    module = from_torch(written(tmp_path / "m.pt2", members))
    assert module(np.ones((5, 4), "f"))["y"].shape == (5, 2)
    assert module.seen.numpy().any()


def test_the_pickle_in_it_is_not_read(members: dict[str, bytes], tmp_path: Path) -> None:
    bomb = b"cos\nsystem\n(S'touch ran'\ntR."
    sample = "m/data/sample_inputs/model.pt"
    assert sample in members
    from_torch(written(tmp_path / "m.pt2", {**members, sample: bomb}))
    with pytest.raises(FileFormatError, match=r"'fc.weight' is pickled; not read"):
        lying = changed(members, CONFIG, lambda c: c["config"]["fc.weight"].update(use_pickle=True))
        from_torch(written(tmp_path / "m.pt2", lying))
    assert not (tmp_path / "ran").exists()


def _meta(**changes: Any) -> Callable[[Any], None]:
    return lambda c: c["config"]["fc.weight"]["tensor_meta"].update(changes)


@pytest.mark.parametrize(("change", "said"), [
    (_meta(sizes=[{"as_int": 3}, {"as_int": 400}]), "does not lie in its 48 bytes"),
    (_meta(sizes=[{"as_int": 1 << 40}, {"as_int": 4}], strides=[{"as_int": 0}, {"as_int": 1}]),
     "repeats its elements"),
    (_meta(storage_offset={"as_int": 8}), "does not lie in"),
    (_meta(storage_offset={"as_int": -4}), "does not lie in"),
    (_meta(strides=[{"as_int": 1}]), "does not lie in"),
    (_meta(dtype=10), "is complex64"),
    (_meta(dtype=99), "is dtype 99"),
    (_meta(sizes=[{"as_int": 2}, {"as_int": 2}]), "aten.linear.default, fc"),
    (lambda c: c["config"].pop("fc.weight"), "no values for fc.weight"),
    (lambda c: c["config"]["fc.weight"].update(path_name="../../x"), "is missing"),
    (lambda c: c["config"]["fc.weight"].pop("tensor_meta"), "not as torch.export.save writes"),
])  # fmt: skip
def test_weights_that_lie(
    change: Callable[[Any], Any], said: str, members: dict[str, bytes], tmp_path: Path
) -> None:
    path = written(tmp_path / "m.pt2", changed(members, CONFIG, change))
    with pytest.raises(WeftError, match=said):
        from_torch(path)(np.ones((2, 4), "f"))


def _node(i: int, **changes: Any) -> Callable[[Any], None]:
    return lambda m: m["graph_module"]["graph"]["nodes"][i].update(changes)


def _loop(model: Any) -> None:
    nodes = model["graph_module"]["graph"]["nodes"]
    nodes.append(nodes.pop(1))


def _twice(model: Any) -> None:
    nodes = model["graph_module"]["graph"]["nodes"]
    nodes.insert(1, copy.deepcopy(nodes[1]))


def _taken(model: Any) -> None:
    specs = model["graph_module"]["signature"]["input_specs"]
    specs[0]["parameter"]["parameter_name"] = "forward"


@pytest.mark.parametrize(("change", "said"), [
    (_loop, "which nothing before it made"),
    (_twice, "is made twice"),
    (_node(1, target="torch.ops.aten.\x1b[31mred"), "expected printable text"),
    (_node(1, target="torch.ops.os.system.default"), "os.system.default"),
    (_node(1, target=7), "expected printable text"),
    (_node(2, inputs=[]), "missing a required argument"),
    (lambda m: m.update(schema_version={"major": 3}), "schema 3, expected 8"),
    (lambda m: m.pop("graph_module"), "KeyError 'graph_module'"),
    (_taken, "no values for forward"),
    (lambda m: m["graph_module"]["signature"]["output_specs"][0].update(token={}), "not as torch"),
    (lambda m: m["graph_module"]["module_call_graph"][0]["signature"].update(out_spec="[2, {}]"),
     "unknown form"),
])  # fmt: skip
def test_graphs_that_lie(
    change: Callable[[Any], Any], said: str, members: dict[str, bytes], tmp_path: Path
) -> None:
    path = written(tmp_path / "m.pt2", changed(members, MODEL, change))
    with pytest.raises(WeftError, match=said) as found:
        from_torch(path)
    assert len(str(found.value).splitlines()) <= 2


def test_names_that_are_taken(members: dict[str, bytes], tmp_path: Path) -> None:
    """A parameter called as a method, or as another's module."""
    for name in ("forward", "fc.bias.x", "", "a..b", "_plan"):

        def rename(config: Any, name: str = name) -> None:
            config["config"][name] = config["config"].pop("fc.weight")

        def use(model: Any, name: str = name) -> None:
            specs = model["graph_module"]["signature"]["input_specs"]
            specs[0]["parameter"]["parameter_name"] = name

        lying = changed(changed(members, CONFIG, rename), MODEL, use)
        with pytest.raises(FileFormatError, match=r"is taken|and a module as well"):
            from_torch(written(tmp_path / "m.pt2", lying))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{}", "nonsense", "[]", '{"schema_version": 8}', "1"]
)
def test_json_that_is_none(text: str, members: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(FileFormatError):
        from_torch(written(tmp_path / "m.pt2", {**members, MODEL: text.encode()}))


def test_files_that_are_not_whole(members: dict[str, bytes], tmp_path: Path) -> None:
    whole = written(tmp_path / "m.pt2", members).read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        (tmp_path / "cut.pt2").write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"cut.pt2: "):
            from_torch(tmp_path / "cut.pt2")
    flipped = bytearray(whole)
    flipped[whole.index(members["m/data/weights/weight_0"])] ^= 1
    (tmp_path / "cut.pt2").write_bytes(flipped)
    with pytest.raises(FileFormatError, match="CRC"):
        from_torch(tmp_path / "cut.pt2")
    for path in (tmp_path, tmp_path / "none.pt2"):
        with pytest.raises(FileFormatError, match="cannot be read"):
            from_torch(str(path))


def test_a_bomb_is_not_unpacked(members: dict[str, bytes], tmp_path: Path) -> None:
    bomb = {**members, MODEL: b" " * (1 << 24)}
    with pytest.raises(FileFormatError, match="is compressed or has"):
        from_torch(written(tmp_path / "m.pt2", bomb, zipfile.ZIP_DEFLATED))


def test_no_model_and_two(members: dict[str, bytes], tmp_path: Path) -> None:
    for found in ({"x": b""}, {**members, "m/models/other.json": b"{}"}):
        with pytest.raises(FileFormatError, match=r"holds [02] models, expected one"):
            from_torch(written(tmp_path / "m.pt2", found))


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    for key, inner in items:
        found += _places(inner, (*at, key))
    return found


@pytest.mark.parametrize("name", [MODEL, CONFIG])
def test_random_changes(name: str, members: dict[str, bytes], tmp_path: Path) -> None:
    """Whatever one value of the JSON becomes: it works, or one of weft's errors says why."""
    rng = random.Random(7)
    model = json.loads(members[name])
    places = [p for p in _places(model) if "metadata" not in p and "hint" not in p]
    strange = [None, -1, 1 << 70, 2.5, "x", "", [], {}, True, {"as_int": 3}, [[[]]], "\x00"]
    for place in rng.sample(places, min(150, len(places))):
        broken = copy.deepcopy(model)
        owner = broken
        for key in place[:-1]:
            owner = owner[key]
        if rng.random() < 0.3:
            del owner[place[-1]]
        else:
            owner[place[-1]] = rng.choice(strange)
        path = written(tmp_path / "m.pt2", {**members, name: json.dumps(broken).encode()})
        try:
            from_torch(path)(np.ones((2, 4), "f"))
        except WeftError as error:
            assert str(error), place


@pytest.mark.parametrize("text", [
    "__import__('os').system('x')", "Symbol('a').x", "(" * 5000, "9" * 9000,
    "Pow(Integer(9), " * 50,
    "Pow(Integer(2), Integer(99999999))", "FloorDiv(Integer(1), Integer(0))", "",
])  # fmt: skip
def test_sizes_are_data(text: str) -> None:
    size = size_of(text)
    if not isinstance(size, int | str):
        assert size.of({}) is None
