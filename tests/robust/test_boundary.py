"""The public surface walked with arguments that make no sense: only errors of weft's come out."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust_kit import fails, tiny

import weft
from weft import nn, optim
from weft.cli.main import invoke
from weft.errors import CallError, InternalError, OutOfMemoryError, UsageError, WeftError
from weft.host.boundary import guarded

HOSTILE: list[Any] = [
    None, object(), "x", b"\0", -1, 1.5, float("nan"), float("inf"), 2**63, 10**30, True, [], {},
    (1,) * 70, [[1], [1, 2]], (10**6, 10**6), ..., slice(None), lambda: 1, np.array([1j]),
    np.array(["a"]), np.array([object()]),
]  # fmt: skip


def tensors() -> list[Any]:
    return [
        weft.tensor(1.0), weft.zeros((0, 3)), weft.tensor([1, -2], dtype="int8"), weft.ones((2, 3)),
        weft.tensor([True]),
    ]  # fmt: skip


# These call users' functions, or wait for something that is not an argument.
SKIPPED = {"checkpoint", "trace", "compile", "devices", "load"}


def calls(function: Callable[..., Any], *first: Any) -> Iterator[tuple[Any, ...]]:
    """None, one and two arguments beyond the first, and far too many."""
    given = inspect.signature(function).parameters.values()
    places = sum(p.kind is not p.KEYWORD_ONLY for p in given)
    yield first
    yield (*first, *[None] * 9)
    for value in (*HOSTILE, *tensors()):
        yield (*first, value)
    if places - len(first) > 1:
        few = [None, "x", -1, 1.5, 2**63, (1,) * 70, weft.ones((2, 3))]
        yield from ((*first, a, b) for a, b in itertools.product(few, few))


def play(name: str, function: Callable[..., Any], *first: Any) -> list[str]:
    """What came out of a function that was no error of weft's."""
    wrong = []
    for given in calls(function, *first):
        try:
            function(*given)
        except WeftError as error:
            if len(str(error)) > 1500 or not str(error):
                wrong.append(f"{name}: a message of {len(str(error))} characters")
        except Exception as error:
            wrong.append(f"{name}{given!r:.120}: {type(error).__name__}: {error!s:.120}")
    return wrong[:3]


FUNCTIONS = sorted(
    name
    for name in weft.__all__
    if name not in SKIPPED and callable(getattr(weft, name))
    and not isinstance(getattr(weft, name), type | weft.DType)
)  # fmt: skip
FUNCTIONAL = sorted(
    name
    for name, value in vars(weft.functional).items()
    if not name.startswith("_") and inspect.isfunction(value) and "weft.tensor" in value.__module__
)
LINALG = sorted(n for n in weft.linalg.__all__ if inspect.isfunction(getattr(weft.linalg, n)))
METHODS = sorted(
    name
    for name in dir(weft.Tensor)
    if not name.startswith("_") and inspect.isfunction(getattr(weft.Tensor, name))
    and name not in ("register_hook",)
)  # fmt: skip
OPERATORS = ["__add__", "__matmul__", "__floordiv__", "__mod__", "__pow__", "__getitem__", "__lt__"]
LAYERS = sorted(
    n for n in nn.__all__ if isinstance(getattr(nn, n), type) and n not in ("Module", "Mismatch")
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    assert not play(name, getattr(weft, name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name: str) -> None:
    assert not play(name, getattr(weft.functional, name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LINALG)
def test_linalg(name: str) -> None:
    assert not play(name, getattr(weft.linalg, name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*METHODS, *OPERATORS])
def test_methods(name: str) -> None:
    wrong = []
    for x in tensors()[:5]:
        wrong += play(name, getattr(weft.Tensor, name), x)
    assert not wrong


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    assert not play(name, getattr(nn, name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "clip_grad_norm", "cosine", "linear"])
def test_optimisers(name: str) -> None:
    assert not play(name, getattr(optim, name))
    assert not play(name, getattr(optim, name), [nn.Parameter(weft.ones(2))])


def test_models(tmp_path: Path) -> None:
    model = weft.load(tiny(tmp_path), device="cpu")
    for name in ("generate", "logits", "embed", "chat_ids", "encode"):
        assert not play(name, getattr(model, name))
    for value in (None, 5, b"\xff\xfe", 1.5, [], object()):
        with pytest.raises(WeftError):
            weft.load(value)


def test_what_cannot_be_copied_says_why(tmp_path: Path) -> None:
    model = weft.load(tiny(tmp_path), device="cpu")
    for carry in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(CallError, match=r"call weft\.load there"):
            carry(model)
        with pytest.raises(CallError, match="compile it there"):
            carry(weft.compile(lambda x: x))


def test_numpy_functions_take_tensors() -> None:
    x = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.sum(x) == 10.0 and np.mean(x, axis=0).tolist() == [2.0, 3.0]
    np.testing.assert_array_equal(np.stack([x, x])[1], x.numpy())


def test_users_errors_stay_theirs() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("mine")

    def fails_itself(x: Any) -> Any:
        raise ZeroDivisionError("mine")

    x = np.ones(3, np.float32)
    with pytest.raises(KeyError, match="mine"):
        nn.Sequential(Odd())(weft.tensor(x))
    for call in (weft.compile(fails_itself), weft.value_and_grad(fails_itself)):
        with pytest.raises(ZeroDivisionError, match="mine"):
            call(weft.tensor(x, requires_grad=True))


def test_a_message_names_the_call_and_keeps_the_cause() -> None:
    def odd(a: Any, b: Any = 1) -> None:
        raise ValueError("not so\nand more")

    with pytest.raises(
        UsageError, match=r"^odd\(float32\[2\], b=7\): not so; see help\(odd\)$"
    ) as e:
        guarded(odd)(weft.ones(2), b=7)
    assert isinstance(e.value.__cause__, ValueError) and "\n" not in str(e.value)
    with pytest.raises(CallError, match="missing 1 required"):
        guarded(odd)()
    with pytest.raises(OutOfMemoryError, match="zeros"):
        weft.zeros((10**6, 10**6))


@pytest.mark.parametrize(
    ("fault", "given", "internal"),
    [
        (lambda x: {}["missing"], (1.5,), True),
        (lambda x: {}[x], ("missing",), False),
        (lambda x: {}[x.dtype, 2], (weft.ones(2),), False),
        (lambda x: {}[x.ndim], (weft.ones(2),), False),
        (lambda x: None.name, (1.5,), True),
        (lambda x: x.name, (1.5,), False),
        (lambda x: [].name, (1.5,), True),
        (lambda x: x[0].name, ([1],), False),
        (lambda x: {}.get(0)[0], (weft.ones(2),), True),
        (lambda x: x[0], (None,), False),
        (eval("lambda x: (lambda: 0)(x)", {"__name__": "weft.tensor"}), (1.5,), True),
        (lambda x: x(1), (lambda: 0,), False),
        (lambda x: x, (1, 2), False),
        (lambda x: int("x"), (1.5,), False),
        (lambda x: [][7], (1.5,), False),
        (lambda x: undefined, (1.5,), True),  # noqa: F821
    ],
)
def test_faults_of_weft_are_not_blamed_on_the_caller(fault, given, internal) -> None:
    with pytest.raises(InternalError if internal else UsageError) as caught:
        guarded(fault, "fault")(*given)
    message = str(caught.value)
    assert ("please report" if internal else "see help(fault)") in message and "\n" not in message
    assert isinstance(caught.value, UsageError) is not internal


# -- the command line


def test_what_nobody_foresaw_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise LookupError("nobody thought of this\nsecond line")

    monkeypatch.setattr("weft.backends.registry.devices", broken)
    assert invoke(["devices"]) == 1
    said = capsys.readouterr().err
    assert (
        said.startswith("weft: LookupError: nobody thought of this\n") and "Traceback" not in said
    )
    monkeypatch.setenv("WEFT_TRACEBACK", "1")
    with pytest.raises(LookupError):
        invoke(["devices"])


def test_the_command_can_be_interrupted_while_it_starts(tmp_path: Path) -> None:
    """An interrupt during its imports ends it without a word."""
    slow = tmp_path / "click.py"
    slow.write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)\n"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from weft.cli.start import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode in (-2, 130) and not done.stderr


def test_layers_that_the_config_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny(tmp_path, num_hidden_layers=3)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    said = fails(capsys, "run", str(folder), "a", "--device", "cpu")
    assert "layers.2." in said and "number of layers" in said


def test_explain_of_no_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tiny(tmp_path))
    for options in (["--kernel", "nosuch"], ["--kernel", "matvec", "--show", "report"]):
        assert invoke(["explain", folder, *options]) == 2
        assert "kernel" in capsys.readouterr().err
    assert invoke(["explain", folder, "--kernel", "matvec", "--step", "decode"]) == 0
    assert "matvec" in capsys.readouterr().out
