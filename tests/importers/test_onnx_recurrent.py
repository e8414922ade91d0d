"""LSTM, GRU and RNN of ONNX at extremes against ONNX Runtime: signed zeros, very large and small
numbers as inputs, weights and first states, every activation, clips, lengths and directions.

NaN is PyTorch's business (tests/nn): ONNX Runtime's approximations take it for a large number, and
round a sigmoid that is 0 to 1.5e-8, which counts where it multiplies 1e30.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_kit import peer, run, single
from rows import by_turns, covering

NUMBERS = [-1e30, -88.8, -1.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, 20.5, 1e30]
HIDDEN, COUNT = 2, len(NUMBERS)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
ACTIVATIONS: dict[str, dict[str, list[float]]] = {
    "Relu": {}, "Softsign": {}, "Affine": {"activation_alpha": [0.5], "activation_beta": [0.25]},
    "LeakyRelu": {"activation_alpha": [0.1]}, "ThresholdedRelu": {"activation_alpha": [0.7]},
    "ScaledTanh": {"activation_alpha": [1.5], "activation_beta": [0.5]},
    "HardSigmoid": {"activation_alpha": [0.3], "activation_beta": [0.4]},
    "Elu": {"activation_alpha": [0.8]},
}  # fmt: skip


def model(kind: str, seed: int = 0, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """A layer, and its operands: each number alone fills a sequence of three steps."""
    rng = np.random.default_rng(seed)
    ways = 2 if options.get("direction") == "bidirectional" else 1
    rows = GATES[kind] * HIDDEN

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal((ways, *shape)).astype(np.float32)

    most = options.pop("most", 1e30)
    numbers = np.array(NUMBERS, np.float32).clip(-most, most)
    x = np.repeat(numbers, 3).reshape(COUNT, 3, 1).transpose(1, 0, 2)
    scale, first = options.pop("scale", 1.0), options.pop("first", None)
    lengths, peep = options.pop("lengths", None), options.pop("peep", False)
    given: list[tuple[str, Any]] = [
        ("X", x.copy()), ("W", drawn(rows, 1) * np.float32(scale)), ("R", drawn(rows, HIDDEN)),
        ("B", drawn(2 * rows)), ("L", lengths),
        ("H", None if first is None else first(drawn(COUNT, HIDDEN))),
    ]  # fmt: skip
    if kind == "LSTM":
        given.append(("C", None if first is None else drawn(COUNT, HIDDEN)))
        given.append(("P", drawn(3 * HIDDEN) if peep else None))
    arrays = {name: value for name, value in given if value is not None}
    names = [name if value is not None else "" for name, value in given]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    made = single(kind, arrays, names=names, outputs=outputs, hidden_size=HIDDEN, **options)
    return made, list(arrays.values())


def check(kind: str, **options: Any) -> None:
    made, operands = model(kind, **options)
    wanted = peer(made, *operands)
    for device in (None, "cpu"):
        for got, want in zip(run(made, *operands, device=device), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


LENGTHS = np.arange(COUNT, dtype=np.int32) % 4
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse": {"direction": "reverse"},
    "both": {"direction": "bidirectional"},
    "clip": {"clip": 1.5, "direction": "bidirectional"},
    "tight": {"clip": 0.5, "first": lambda x: x * 100},
    "large weights": {"scale": 1e30},
    "small weights": {"scale": 1e-30},
    "first": {"first": lambda x: x},
    "zeros": {"first": lambda x: x * 0.0},
    "lengths": {"lengths": LENGTHS, "direction": "bidirectional"},
    "lengths and first": {"lengths": LENGTHS, "first": lambda x: x},
    "lengths, reverse": {"lengths": LENGTHS, "first": lambda x: x, "direction": "reverse"},
}


@pytest.mark.parametrize("name, kind", by_turns(OPTIONS, GATES))
def test_layers(kind: str, name: str) -> None:
    check(kind, **OPTIONS[name])


@pytest.mark.parametrize("clip", [0.0, 2.0])
def test_options_of_one_kind(clip: float) -> None:
    more = {"clip": clip} if clip else {}
    check("LSTM", input_forget=1, **more)
    check("LSTM", peep=True, first=lambda x: x, **more)
    for late in (0, 1):
        check("GRU", linear_before_reset=late, first=lambda x: x, **more)


@pytest.mark.parametrize(("kind", "name"), covering(GATES, ACTIVATIONS))
def test_activations(kind: str, name: str) -> None:
    for place in range(len(DEFAULT[kind])):
        names = [*DEFAULT[kind]]
        names[place] = name
        check(kind, activations=names, clip=2.0, **ACTIVATIONS[name])
        # A gate without bounds overflows by itself; ONNX Runtime has the largest float for that.
        most = 1e4 if kind == "GRU" and not place else 1e30
        check(kind, activations=names, most=most, **ACTIVATIONS[name])
