"""ONNX files that lie: each is refused by a named error, and nothing outside is read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FileFormatError, UsageError, WeftError
from weft.importers import from_onnx

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def value(name: str, shape: Any = (2,)) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def model(nodes: list[Any], initializers: Any = (), outputs: Any = ("y",), **options: Any) -> Any:
    graph = helper.make_graph(nodes, "g", [value("x")], [value(o) for o in outputs], initializers)
    options.setdefault("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, ir_version=8, **options)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def weight(dims: Any, data: bytes, kind: int = FLOAT) -> Any:
    return onnx.TensorProto(name="w", dims=dims, data_type=kind, raw_data=data)


def nested(depth: int) -> bytes:
    """Branches inside of branches, written as protobuf: onnx itself refuses to make such a file."""

    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + data

    inner = node("Relu", "x", "y").SerializeToString()
    head = node("If", "c", "y").SerializeToString()
    for _ in range(depth):
        branch = onnx.AttributeProto(name="then_branch", type=5).SerializeToString()
        inner = head + field(5, branch + field(6, field(1, inner)))
    return model([node("Relu", "x", "y")]).SerializeToString() + field(7, field(1, inner))


def bomb(levels: int) -> Any:
    """Functions that call the one before ten times: 10 ** levels nodes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for i in range(levels):
        called = {"domain": "own"} if i else {}
        op = f"f{i - 1}" if i else "Relu"
        names = ["x", *(f"t{j}" for j in range(9)), "y"]
        nodes = [helper.make_node(op, [a], [b], **called) for a, b in itertools.pairwise(names)]
        functions.append(helper.make_function("own", f"f{i}", ["x"], ["y"], nodes, opsets))
    last = helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="own")
    return model([last], functions=functions, opset_imports=opsets)


def own_call() -> Any:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    again = helper.make_node("f", ["x"], ["y"], domain="own")
    function = helper.make_function("own", "f", ["x"], ["y"], [again], opsets)
    return model([again], functions=[function], opset_imports=opsets)


def version(number: int) -> Any:
    return model([node("Relu", "x", "y")], opset_imports=[helper.make_opsetid("", number)])


ADD = [node("Add", "x w", "y")]
LIES: dict[str, tuple[Callable[[], Any], str]] = {
    "cycle": (lambda: model([node("Add", "x b", "y"), node("Add", "x y", "b")]), "cycle"),
    "dangling": (lambda: model([node("Add", "x nowhere", "y")]), "nothing gives"),
    "no output": (lambda: model([node("Relu", "x", "z")]), "nothing computes"),
    "twice": (lambda: model([node("Relu", "x", "y"), node("Relu", "x", "y")]), "two values"),
    "input twice": (lambda: model([node("Relu", "x", "x"), node("Relu", "x", "y")]), "two values"),
    "short data": (lambda: model(ADD, [weight([2], b"\0" * 7)]), "bytes of data"),
    "long data": (lambda: model(ADD, [weight([2], b"\0" * 12)]), "bytes of data"),
    "negative size": (lambda: model(ADD, [weight([-2], b"")]), "at least 0"),
    "huge size": (lambda: model(ADD, [weight([1 << 40, 1 << 40], b"")]), "elements"),
    "two weights": (lambda: model(ADD, [weight([2], b"\0" * 8)] * 2), "two initializers"),
    "newest": (lambda: version(10**9), "opset 1000000000"),
    "oldest": (lambda: version(1), "opset 1"),
    "deep": (lambda: nested(40), "deeply|damaged"),
    "bomb": (lambda: bomb(9), "nodes"),
    "own call": (own_call, "calls itself"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(lie: str, tmp_path: Path) -> None:
    make, words = LIES[lie]
    path = tmp_path / "m.onnx"
    made = make()
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    with pytest.raises(FileFormatError, match=words):
        from_onnx(path)


def asks(op: str, shape: list[int], kind: int = FLOAT, **attrs: Any) -> Any:
    """One operator that asks for more than there is; operands but the first are initializers."""
    arrays = {n: np.asarray(v) for n, v in attrs.pop("operands", {}).items()}
    inputs = ["x", *("" if n.startswith("_") else n for n in arrays)]
    kept = [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n[0] != "_"]
    made = helper.make_node(op, inputs, attrs.pop("outputs", ["y"]), **attrs)
    info = [helper.make_tensor_value_info("x", kind, shape)]
    results = [onnx.ValueInfoProto(name=made.output[-1])]
    graph = helper.make_graph([made], "g", info, results, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


GREEDY: dict[str, Any] = {  # found by fuzzing
    "a value that nobody gives": lambda: asks("Relu", [2], outputs=["a", "y"]),
    "a window of 2^31": lambda: asks("MaxPool", [1, 1, 8], kernel_shape=[1 << 31]),
    "a padding of 2^40": lambda: asks(
        "AveragePool", [1, 1, 8], kernel_shape=[2], pads=[0, 1 << 40]
    ),
    "steps of none": lambda: asks("MaxPool", [1, 1, 8], kernel_shape=[2], strides=[0]),
    "2^40 more": lambda: asks("Pad", [2], operands={"p": np.array([0, 1 << 40])}),
    "2^40 mirrored": lambda: asks("Pad", [2], operands={"p": np.array([0, 1 << 40])}, mode="edge"),
    "a size of 2^40": lambda: asks(
        "Resize", [1, 1, 2], operands={"_r": [], "_s": [], "n": np.array([1, 1, 1 << 40])}
    ),
    "cells of 2^40": lambda: asks(
        "RoiAlign", [1, 1, 4, 4], output_height=1 << 40, sampling_ratio=1,
        operands={"r": np.zeros((1, 4), np.float32), "b": np.zeros(1, np.int64)},
    ),
    "a neighbourhood of 2^31": lambda: asks("LRN", [1, 4, 2], size=(1 << 31) - 1),
    "2^40 scanned": lambda: asks(
        "Scan", [2], num_scan_inputs=1 << 40, body=helper.make_graph([], "b", [], [])
    ),
    "frames of 2^40": lambda: asks(
        "STFT", [1, 8, 1], operands={"s": np.array(1), "_w": [], "n": np.array(1 << 40)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", GREEDY)
def test_files_that_ask_for_too_much(what: str) -> None:
    """Named errors, of one or two lines, before memory or time is spent."""
    made = GREEDY[what]()
    shape = [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim]
    with pytest.raises(WeftError) as caught:
        from_onnx(made)(np.ones(shape, np.float32))
    assert len(str(caught.value).splitlines()) <= 2 and len(str(caught.value)) < 1000


def test_counts_of_words_that_lie() -> None:
    kind = onnx.TensorProto.INT32
    made = asks(
        "TfIdfVectorizer", [4], kind=kind, mode="TF", min_gram_length=1, max_gram_length=1 << 31,
        max_skip_count=1 << 40, ngram_counts=[-(1 << 63), 2], ngram_indexes=[0, 1],
        pool_int64s=[1, 2],
    )  # fmt: skip
    with pytest.raises(WeftError, match="begin at"):
        from_onnx(made)(np.ones(4, np.int32))


def test_names_in_errors_are_one_line() -> None:
    for name in ("a\nb", "n" * 100_000):
        with pytest.raises(UsageError) as caught:
            from_onnx(model([node(name, "x", "y")]))
        assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 1000


def test_unknown_operators_are_named_all_at_once() -> None:
    made = model([node("Relu", "x", "a"), node("Frobnicate", "a", "b"), node("Blur", "b", "y")])
    with pytest.raises(UsageError, match=r"Frobnicate.*Blur"):
        from_onnx(made)


def test_damaged_files_never_crash(tmp_path: Path) -> None:
    """Every cut, and many changed bytes, give a model or a named error."""
    w = helper.make_tensor("w", FLOAT, [2], [1.0, 2.0])
    whole = model([node("Add", "x w", "a"), node("Relu", "a", "y")], [w]).SerializeToString()
    path = tmp_path / "m.onnx"
    rng = np.random.default_rng(0)
    damaged = [whole[:n] for n in range(0, len(whole), 7)]
    for _ in range(150):
        bytes_ = bytearray(whole)
        bytes_[rng.integers(len(whole))] = rng.integers(256)
        damaged.append(bytes(bytes_))
    for data in damaged:
        path.write_bytes(data)
        try:
            from_onnx(path)
        except WeftError as error:
            assert len(str(error).splitlines()) <= 2


# -- data in other files --------------------------------------------------------------------------


def outside(folder: Path, location: str, **facts: Any) -> Path:
    """A model whose weight lies at `location`."""
    tensor = onnx.TensorProto(name="w", dims=[2], data_type=FLOAT, data_location=1)
    for key, text in {"location": location, **facts}.items():
        tensor.external_data.add(key=key, value=str(text))
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(model(ADD, [tensor]).SerializeToString())
    return folder / "m.onnx"


def test_external_data_are_read(tmp_path: Path) -> None:
    data = np.array([0, 3, 4], np.float32)
    path = outside(tmp_path / "m", "w.bin", offset=4, length=8)
    (path.parent / "w.bin").write_bytes(data.tobytes())
    assert from_onnx(path)(np.ones(2, np.float32)).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"offset": 8}, "which has 12"),
        ({"offset": -4}, "offset"),
        ({"offset": 1 << 62}, "which has 12|offset"),
        ({"length": 4}, "it takes 8"),
        ({"checksum": "", "__class__": "x"}, "keys"),
    ],
)
def test_external_sizes_are_checked(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    path = outside(tmp_path / "m", "w.bin", **facts)
    (path.parent / "w.bin").write_bytes(bytes(12))
    with pytest.raises(FileFormatError, match=words):
        from_onnx(path)


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "/etc/hostname", "", "a\\b", "C:x"]
)
def test_external_data_stay_in_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    with pytest.raises(FileFormatError, match="external data"):
        from_onnx(outside(tmp_path / "m", location))


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_that_lead_away_are_refused(tmp_path: Path, link: Any) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    path = outside(tmp_path / "m", "w.bin")
    link(tmp_path / "secret", path.parent / "w.bin")
    with pytest.raises(FileFormatError, match="link"):
        from_onnx(path)


def test_a_link_of_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "w.bin").write_bytes(bytes(8))
    path = outside(tmp_path / "m", "sub/w.bin")
    os.symlink(tmp_path / "away", path.parent / "sub")
    with pytest.raises(FileFormatError, match="link"):
        from_onnx(path)


def test_the_cache_of_hugging_face_is_links(tmp_path: Path) -> None:
    """snapshots/REV/name -> ../../blobs/HASH, for the model and for its data."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    made = outside(tmp_path / "new", "w.bin")
    blobs.mkdir()
    made.rename(blobs / "aaa")
    (blobs / "bbb").write_bytes(np.array([3, 4], np.float32).tobytes())
    for name, blob in (("m.onnx", "aaa"), ("w.bin", "bbb")):
        os.symlink(Path("..") / ".." / "blobs" / blob, snapshot / name)
    assert from_onnx(snapshot / "m.onnx")(np.ones(2, np.float32)).tolist() == [4, 5]
    (tmp_path / "secret").write_bytes(bytes(8))
    (snapshot / "w.bin").unlink()
    os.symlink(tmp_path / "secret", snapshot / "w.bin")
    with pytest.raises(FileFormatError, match="link"):
        from_onnx(snapshot / "m.onnx")
