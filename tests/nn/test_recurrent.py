"""LSTM, GRU and RNN against PyTorch: results, states and gradients, by module, function, compiled,
torch.export and ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import nn
from weft.errors import ShapeError, UsageError
from weft.tensor import functional as F
from weft.tensor.core import Tensor

KINDS = {
    "lstm": ("LSTM", {}),
    "lstm_two": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm_projected": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "lstm_plain": ("LSTM", {"num_layers": 2, "bias": False}),
    "gru": ("GRU", {}),
    "gru_two": ("GRU", {"num_layers": 2, "bidirectional": True, "bias": False}),
    "rnn": ("RNN", {"batch_first": True}),
    "rnn_relu": ("RNN", {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}),
}


def pair(kind: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """PyTorch's module, and weft's with its weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(4, 5, **options)
    ours = getattr(nn, kind)(4, 5, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def flat(made: Any) -> list[Any]:
    return [x for part in made for x in flat(part)] if isinstance(made, tuple) else [made]


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def near(got: Any, want: Any, rtol: float = 2e-5, atol: float = 3e-6) -> None:
    for g, w in zip(flat(got), flat(want), strict=True):
        assert g.shape == tuple(w.shape)
        np.testing.assert_allclose(g.numpy(), w.detach().numpy(), rtol=rtol, atol=atol)


def first(kind: str, options: dict[str, Any], batch: int) -> Any:
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    h = rows(count, batch, options.get("proj_size", 5), seed=3)
    return (h, rows(count, batch, 5, seed=4)) if kind == "LSTM" else h


def mapped(fn: Any, states: Any) -> Any:
    return tuple(map(fn, states)) if isinstance(states, tuple) else fn(states)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", KINDS)
def test_results_states_and_gradients(name: str) -> None:
    kind, options = KINDS[name]
    theirs, ours = pair(kind, options)
    x = rows(3, 3, 4)
    states = first(kind, options, 3)
    for given in (None, states):
        a, b = torch.from_numpy(x.copy()).requires_grad_(), Tensor(x.copy()).requires_grad_()
        want = theirs(a, None if given is None else mapped(torch.from_numpy, given))
        got = ours(b, None if given is None else mapped(Tensor, given))
        near(got, want)
    sum(p.square().sum() for p in flat(want)).backward()
    sum(p.square().sum() for p in flat(got)).backward()
    near(b.grad, a.grad, 1e-4, 1e-5)
    for (key, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert q.name == key
        near(q.grad, p.grad, 1e-4, 2e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", ["lstm", "lstm_projected", "gru", "rnn"])
def test_gradients_of_gradients(name: str) -> None:
    """The weights of all steps have one product for their gradient, which is differentiable too."""
    theirs, ours = pair(*KINDS[name])
    a, b = torch.from_numpy(rows(3, 2, 4)).requires_grad_(), Tensor(rows(3, 2, 4)).requires_grad_()
    ws, vs = list(theirs.parameters()), list(ours.parameters())
    want = torch.autograd.grad(theirs(a)[0].square().sum(), [a, *ws], create_graph=True)
    got = weft.grad(ours(b)[0].square().sum(), [b, *vs], create_graph=True)
    want = torch.autograd.grad(sum(g.square().sum() for g in want), [a, *ws])
    got = weft.grad(sum(g.square().sum() for g in got), [b, *vs])
    for g, w in zip(got, want, strict=True):
        near(g, w, 1e-3, 1e-4)


def test_autocast_runs_the_products_of_steps_in_a_narrow_dtype() -> None:
    _, ours = pair("LSTM", {})
    x = Tensor(rows(3, 2, 4))
    with weft.autocast("bfloat16"):
        made = ours(x)[0]
        made.square().sum().backward()
    near(made, torch.tensor(ours(x)[0].numpy()), 0.05, 0.02)
    assert all(p.grad is not None and p.grad.dtype.name == "float32" for p in ours.parameters())


@pytest.mark.parametrize("name", ["lstm", "gru_two", "rnn_relu"])
def test_one_sequence_without_a_batch_and_no_steps(name: str) -> None:
    kind, options = KINDS[name]
    theirs, ours = pair(kind, options)
    near(ours(Tensor(rows(3, 4))), theirs(torch.from_numpy(rows(3, 4))))
    out, *_ = flat(ours(weft.zeros((0, 2, 4))))
    assert out.shape[0] == 0


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", ["lstm_two", "lstm_projected", "gru_two", "rnn"])
def test_lengths_are_packed_sequences(name: str) -> None:
    """Results, states and gradients, with first states; what lies beyond a length is NaN here."""
    kind, options = KINDS[name]
    theirs, ours = pair(kind, options)
    x, lengths = rows(3, 4, 4), [2, 4, 1]
    states, batch = first(kind, options, 3), options.get("batch_first", False)
    a, b = torch.from_numpy(x.copy()), x.copy()
    for row, n in zip(b, lengths):
        row[n:] = np.nan
    a = (a if batch else a.transpose(0, 1)).contiguous().requires_grad_()
    pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
    packed = pack(a, torch.tensor(lengths), batch_first=batch, enforce_sorted=False)
    out, last = theirs(packed, mapped(torch.from_numpy, states))
    want = (pad(out, batch_first=batch)[0], last)
    given = Tensor(b if batch else b.swapaxes(0, 1).copy()).requires_grad_()
    for ends in (lengths, Tensor(np.array(lengths))):
        got = ours(given, mapped(Tensor, states), lengths=ends)
        near(got, want)
    sum(p.square().sum() for p in flat(want)).backward()
    sum(p.square().sum() for p in flat(got)).backward()
    near(given.grad, a.grad, 1e-4, 1e-5)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        near(q.grad, p.grad, 1e-4, 2e-5)


def test_lengths_are_data_of_one_program() -> None:
    theirs, ours = pair("GRU", {})
    run = weft.compile(lambda x, lengths: ours(x, lengths=lengths)[1], "cpu")
    x = rows(4, 2, 4)
    for lengths in ([4, 1], [2, 3]):
        pack = torch.nn.utils.rnn.pack_padded_sequence
        packed = pack(torch.from_numpy(x), torch.tensor(lengths), enforce_sorted=False)
        near(run(Tensor(x), Tensor(np.array(lengths, np.int32))), theirs(packed)[1])
    assert len(run.programs()) == 1


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_compiled_forward_and_backward_are_one_program(kind: str) -> None:
    theirs, ours = pair(kind, {})
    x = rows(3, 2, 4)
    parameters = list(ours.parameters())

    def step(x: Tensor) -> tuple[Tensor, ...]:
        loss = ours(x)[0].square().sum()
        return (loss, *weft.grad(loss, parameters))

    run = weft.compile(step, "cpu")
    _, *grads = run(Tensor(x))
    assert len(run.programs()) == 1
    theirs(torch.from_numpy(x))[0].square().sum().backward()
    for got, want in zip(grads, theirs.parameters(), strict=True):
        near(got, want.grad, 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype: str) -> None:
    theirs, ours = pair("LSTM", {})
    x = rows(3, 2, 4)
    want = theirs(torch.from_numpy(x))[0].detach().numpy()
    weights = [p.cast(dtype) for p in ours.parameters()]
    made = F.lstm(Tensor(x).cast(dtype), None, weights)[0]
    assert made.dtype.name == dtype
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    np.testing.assert_allclose(made.cast("float32").numpy(), want, rtol=0, atol=4 * step)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind: str, bias: bool) -> None:
    theirs, ours = pair(kind, {"bias": bias})
    x = rows(3, 4)
    near(ours(Tensor(x)), theirs(torch.from_numpy(x)))
    near(ours(Tensor(x[0])), theirs(torch.from_numpy(x[0])))
    h = rows(3, 5, seed=2)
    states = (h, rows(3, 5, seed=3)) if kind == "LSTMCell" else h
    near(
        ours(Tensor(x), mapped(Tensor, states)),
        theirs(torch.from_numpy(x), mapped(torch.from_numpy, states)),
    )


@pytest.mark.parametrize("name", ["lstm_two", "gru", "rnn_relu"])
def test_torch_export(name: str) -> None:
    from weft.importers import from_torch

    kind, options = KINDS[name]
    theirs, _ = pair(kind, options)
    x = torch.from_numpy(rows(3, 3, 4))
    made = from_torch(torch.export.export(theirs.eval(), (x,)))
    near(made(Tensor(x.numpy())), theirs(x))


def test_dropout_between_layers_draws_in_training_alone() -> None:
    layer = nn.GRU(4, 5, num_layers=2, dropout=0.5)
    x = Tensor(rows(3, 2, 4))
    first, second = layer(x)[0].numpy(), layer(x)[0].numpy()
    assert not np.array_equal(first, second)
    layer.eval()
    assert np.array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())


def test_wrong_calls_are_named() -> None:
    layer = nn.LSTM(4, 5)
    with pytest.raises(ShapeError, match="lstm"):
        layer(weft.zeros((3, 2, 6)))
    with pytest.raises(ShapeError, match=r"\[1, 3, 5\]"):
        layer(weft.zeros((3, 2, 4)), (weft.zeros((1, 3, 5)), weft.zeros((1, 2, 5))))
    with pytest.raises(ShapeError, match=r"lengths \[4, 1\]; expected 0..3"):
        layer(weft.zeros((3, 2, 4)), lengths=[4, 1])
    with pytest.raises(ShapeError, match="2 sequences"):
        layer(weft.zeros((3, 2, 4)), lengths=[3])
    with pytest.raises(ShapeError, match="3 weights"):
        F.gru(weft.zeros((3, 2, 4)), None, [weft.zeros((1,))] * 3)
    with pytest.raises(UsageError, match="nonlinearity"):
        nn.RNN(4, 5, nonlinearity="gelu")(weft.zeros((3, 2, 4)))
    with pytest.raises(UsageError, match="proj_size"):
        nn.LSTM(4, 5, proj_size=5)
    with pytest.raises(UsageError, match="probability"):
        nn.GRU(4, 5, dropout=2.0)


@pytest.mark.parametrize("key", [6, np.array([0, 6], np.uint32)])
def test_dropout_takes_a_plain_key(key: object) -> None:
    """As functional.dropout does; each layer drops others."""
    net = weft.nn.RNN(3, 8, 3)
    x, h = weft.ones((4, 1, 3)), weft.zeros((3, 1, 8))
    weights = list(net.parameters())

    def out(key: object) -> list:
        made, _ = weft.functional.rnn(
            x, h, weights, num_layers=3, dropout=0.5, training=True, key=key
        )
        return made.tolist()

    assert out(key) == out(key) != out(7)


def test_a_step_of_a_compiled_lstm_is_two_kernels() -> None:
    """A product with the weight, which is turned once for all steps, and one kernel for the memory
    and the output."""
    net, x = weft.nn.LSTM(8, 16), weft.tensor(np.ones((12, 4, 8), np.float32))
    compiled = weft.compile(lambda x: net(x)[0])
    compiled(x)
    labels = [step.label for step in compiled.programs()[0].steps]
    assert sum("matvec" in label for label in labels) == 12
    assert sum("tanh" in label for label in labels) == 12
