"""Repeated calls (weft/tensor/played.py) give what the first call gave, by the long way."""

import numpy as np
import pytest

import weft
import weft.functional as F
import weft.torch as torch
from weft.tensor import played

A = np.array([[0.0, -0.0, 1.5, np.inf], [-3.0, np.nan, 2.0, 7.0]], np.float32)
CALLS = {
    "sum": lambda x, y: x.sum(0),
    "mean": lambda x, y: x.mean(),
    "max": lambda x, y: x.max(1, keepdims=True),
    "argmax": lambda x, y: x.argmax(),
    "product": lambda x, y: x @ y.T,
    "compare": lambda x, y: (x != y).any(1),
    "where": lambda x, y: (x < y).where(x, 0.5),
    "cast": lambda x, y: y.astype(weft.int8),
    "cat": lambda x, y: weft.cat([x, y], 1),
    "softmax": lambda x, y: x.softmax(-1),
    "gelu": lambda x, y: F.gelu(y),
    "mixed": lambda x, y: x + weft.tensor([1, 2, 3, 4]),
    "pieces": lambda x, y: x.split(1),
    "PyTorch's pair": lambda x, y: tuple(torch.max(torch.tensor(A), 1)),
}
VIEWS = {
    "row": lambda x: x[1],
    "cut": lambda x: x[:, 1:3],
    "new axis": lambda x: x[None, ..., 0],
    "reshape": lambda x: x.reshape(4, 2),
    "transposed": lambda x: x.T,
    "chain": lambda x: x.T.unsqueeze(0),
    "wide": lambda x: x[:1].expand(3, 4),
}


def _known(t):
    parts = t if isinstance(t, tuple) else (t,)
    return [(type(p), p.dtype, p.shape, p.requires_grad, p.numpy().tobytes()) for p in parts]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_results(name, grad):
    played.forget()
    x = weft.tensor(A, requires_grad=grad)
    y = weft.tensor(A[:, ::-1].copy(), requires_grad=grad)
    first, *others = [_known(CALLS[name](x, y)) for _ in range(4)]
    assert any(type(known) is played._Ready for known in played._CALLS.values())
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", VIEWS)
def test_views_write_through_and_tell_their_strides(name):
    played.forget()
    seen = []
    for _ in range(4):
        x = weft.tensor(A)
        v = VIEWS[name](x)
        flat = v.reshape(-1)  # a copy or a view, as the strides say
        flat.add_(1.0) if name != "wide" else None
        x[0, 0] = 9.0
        seen.append((x.numpy().tobytes(), v.numpy().tobytes(), flat.numpy().tobytes()))
    assert len(set(seen)) == 1


def test_gradients():
    def slopes():
        x = weft.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        z = (x @ x.T).softmax(-1)[0].sum() + (x * 2).exp().mean() + x.reshape(4).max()
        z.backward(create_graph=True)
        (again,) = weft.grad(x.grad.sum(), [x])
        return x.grad.numpy().tobytes(), again.numpy().tobytes()

    played.forget()
    assert len({slopes() for _ in range(4)}) == 1
    with weft.no_grad():
        assert not weft.tensor([1.0], requires_grad=True).exp().requires_grad


@pytest.mark.parametrize("name", CALLS)
def test_recorded_derivatives(name):
    """Those of later backward passes are the first one's, for any gradient that comes in."""
    played.forget()
    seen = {}
    for turn in range(6):
        x = weft.tensor(A + 0.5, requires_grad=True)
        y = weft.tensor(A[:, ::-1].copy(), requires_grad=True)
        if not (z := _tensor(CALLS[name], x, y)).requires_grad:
            return
        scale = (1.0, -2.0)[turn % 2]
        z.backward(weft.full(z.shape, scale, dtype=z.dtype), create_graph=turn > 3)
        known = [None if t.grad is None else t.grad.numpy().tobytes() for t in (x, y)]
        assert seen.setdefault(scale, known) == known


def _tensor(call, x, y):
    made = call(x, y)
    return made[0] if isinstance(made, tuple) else made


def test_a_gradient_that_is_an_operand_is_not_taken_for_it():
    played.forget()
    other = weft.tensor([2.0, 3.0])
    for gradient in (other, other, other, weft.tensor([5.0, 7.0]), other):
        x = weft.tensor([1.0, 1.0], requires_grad=True)
        (x * other).backward(gradient)
        assert x.grad.tolist() == (gradient.numpy() * [2.0, 3.0]).tolist()
        (slope,) = weft.grad((x * other).exp().sum(), [x])
        assert slope.tolist() == (np.exp(other.numpy()) * other.numpy()).tolist()


def test_what_shapes_do_not_tell_is_not_replayed():
    x, y = weft.tensor([1.0, 2.0]), weft.tensor([5.0, 0.0])
    assert [x.maximum(x).tolist() for _ in range(3)][2] == [1.0, 2.0]
    assert x.maximum(y).tolist() == [5.0, 2.0]  # one operand twice, then two
    masks = [x[x > limit].tolist() for limit in (0, 0, 0, 1, 9)]
    assert masks == [[1.0, 2.0]] * 3 + [[2.0], []]
    at = [x.take(weft.tensor([i])).tolist() for i in (0, 0, 0, 1)]
    assert at == [[1.0]] * 3 + [[2.0]]
    weft.manual_seed(0)
    assert len({F.dropout(weft.ones(64), 0.5).numpy().tobytes() for _ in range(5)}) == 5
    assert len({torch.bernoulli(torch.ones(64) / 2).numpy().tobytes() for _ in range(5)}) == 5
    signs = [np.signbit(x.clip(zero, None).numpy()).any() for zero in (0.0, 0.0, 0.0)]
    assert not any(signs) and (x * True).dtype == (x * 1).dtype
    m = weft.ones((2, 2))
    assert [(m @ m).dtype.name for _ in range(3)][2] == "float32"
    with weft.autocast("bfloat16"):
        assert (m @ m).dtype.name == "bfloat16"
    for _ in range(3):
        with pytest.raises(weft.errors.ShapeError):
            x.reshape(3)
    (total,) = [weft.compile(lambda t: t.sum() + x.sum())(y) for _ in range(1)]
    x.add_(1.0)
    assert float(total) == 8.0 and float(x.sum()) == 5.0


def test_nothing_large_is_kept():
    played.forget()
    big = weft.zeros(played._LARGE + 1)
    assert [int(big.argmax()) for _ in range(3)] == [0] * 3
    wide = weft.zeros(40000)
    assert [wide.argsort().shape for _ in range(3)][2] == (40000,)
    kept = [k.plan.slots for k in played._CALLS.values() if type(k) is played._Ready]
    assert all(x.nbytes <= 1 << 16 for slots in kept for x in slots if x is not None)
    assert False in played._CALLS.values()


def test_long_arguments_are_not_kept():
    """A list of indices is a key of its own at each call: all of them would stay."""
    x = weft.tensor(np.arange(5000, dtype=np.float32))
    played.forget()
    for shift in range(3):
        at = [(i + shift) % 5000 for i in range(5000)]
        assert x[at].tolist() == at
    assert not any(len(key) > 1000 for key in played._CALLS)
    endless = []
    endless.append(endless)
    with pytest.raises(weft.errors.WeftError):
        x.reshape(endless)


INDEXED = {
    "take": lambda t, x, at: x.take(at, 0) if t is weft else t.embedding(at, x),
    "along": lambda t, x, at: (
        x.take_along_axis(at.reshape(-1, 1), 1) if t is weft else x.gather(1, at.reshape(-1, 1))
    ),
    "key": lambda t, x, at: x[at],
    "add": lambda t, x, at: (
        x.index_add(0, at, x) if t is weft else t.nn.functional.cross_entropy(x, at)
    ),
    "divide": lambda t, x, at: at // (at + 1),
}


@pytest.mark.parametrize("space", [weft, torch])
@pytest.mark.parametrize("name", INDEXED)
def test_indices_are_looked_at_in_each_call(name, space):
    """Those from the front are recorded; others take the long way, and errors stay errors."""
    x = space.tensor(np.arange(9, dtype=np.float32).reshape(3, 3))

    def seen(at):
        try:
            return INDEXED[name](space, x, space.tensor(np.array(at))).numpy().tobytes()
        except weft.errors.WeftError as error:
            return f"{type(error).__name__}: {error}"

    cases = [[0, 1, 2], [2, 0, 1], [0, -1, 2], [1, 7, 0], [0, -9, 1], [1, 1, 0]]
    played.forget()
    first = [seen(at) for at in cases if played.forget() is None]
    assert [seen(at) for _ in range(4) for at in cases] == first * 4


CELLS = {
    "lstm": (4, lambda x, h, *weights: F.lstm_cell(x, (h, h), *weights)),
    "gru": (3, lambda x, h, *weights: F.gru_cell(x, h, *weights)),
    "rnn": (1, lambda x, h, *weights: F.rnn_cell(x, h, *weights)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_a_step_of_a_recurrent_cell_is_one_recorded_call(name, grad):
    gates, cell = CELLS[name]
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (3, 2), (2 * gates, 5), (2 * gates, 2), (2 * gates,), (2 * gates,)]
    given = [weft.tensor(rng.standard_normal(s), dtype="float32") for s in shapes]
    if grad:
        given = [t.requires_grad_() for t in given]
    found = []
    played.forget()
    for _ in range(4):
        made = cell(*given)
        parts = made if isinstance(made, tuple) else (made,)
        if grad:
            sum((p * p).sum() for p in parts).backward()
        seen = [*parts, *(t.grad for t in given if grad)]
        found.append([t.numpy().tobytes() for t in seen])
        for t in given:
            t.grad = None
    assert all(each == found[0] for each in found)
    kept = [v for key, v in played._CALLS.items() if key[0].__name__ == f"{name}_cell"]
    assert [type(v) for v in kept] == [played._Ready]
