"""int64 tensors in compiled functions: arguments, captured tensors, constants and states are int32
there, and a value that int32 cannot hold is an error, never wrapped."""

import numpy as np
import pytest
import torch

import weft
import weft.torch as wt
from weft.errors import DTypeError

AT, WIDE = [2, 0, 2], 1 << 40


def x():
    return np.arange(12, dtype=np.float32).reshape(4, 3)


class Picks(wt.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("at", wt.tensor(AT))

    def forward(self, x):
        return x[self.at] + self.at.to(wt.float32)[:, None]


class Nested(wt.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Picks()

    def forward(self, x):
        return self.inner(x) * 2


def test_captured_index_tensors_compute_what_pytorch_computes():
    at, there, data = wt.tensor(AT), torch.tensor(AT), torch.tensor(x())
    inner = wt.compile(lambda x: x[at])
    cases = {
        "index": (lambda x: x[at], lambda x: x[there]),
        "view": (lambda x: x[at[1:]], lambda x: x[there[1:]]),
        "index_add": (
            lambda x: x.index_add(0, at, wt.ones(3, 3)),
            lambda x: x.index_add(0, there, torch.ones(3, 3)),
        ),
        "gather": (lambda x: x.gather(1, at[:, None]), lambda x: x.gather(1, there[:, None])),
        "compare": (lambda x: x[:3].argmax(1) == at, lambda x: x[:3].argmax(1) == there),
        "add": (lambda x: x[0].long() + at, lambda x: x[0].long() + there),
        "constant": (lambda x: x[wt.tensor(AT)], lambda x: x[torch.tensor(AT)]),
        "array": (lambda x: x[0] + np.array(AT), lambda x: x[0] + torch.tensor(AT)),
        "inside another": (lambda x: inner(x) * 2, lambda x: x[there] * 2),
        "vmap": (wt.vmap(lambda r: r[at]), torch.vmap(lambda r: r[there])),
        "gradient": (
            wt.func.grad(lambda x: (x[at] ** 2).sum()),
            torch.func.grad(lambda x: (x[there] ** 2).sum()),
        ),
    }
    for name, (mine, theirs) in cases.items():
        found = wt.compile(mine)(wt.tensor(x())).numpy()
        np.testing.assert_array_equal(found, theirs(data).numpy(), name)
    mine = wt.vmap(wt.compile(lambda r: r[at]))(wt.tensor(x())).numpy()
    np.testing.assert_array_equal(mine, torch.vmap(lambda r: r[there])(data).numpy())


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"partition": True}])
def test_buffers_of_modules_are_captured(options):
    module, given = Nested(), wt.tensor(x())
    wanted = module(given).numpy()
    compiled = weft.compile(module, device="cpu", **options)
    np.testing.assert_array_equal(compiled(given).numpy(), wanted)
    module.inner.at.copy_(wt.tensor([1, 1, 3]))
    np.testing.assert_array_equal(compiled(given).numpy(), module(given).numpy())


def test_a_saved_function_holds_what_it_captured(tmp_path):
    at, path = wt.tensor(AT), tmp_path / "picks.weft"
    picks = weft.compile(lambda x: x[at])
    picks(x())
    picks.save(path)
    np.testing.assert_array_equal(weft.load(path)(x()), x()[AT])


def test_an_int64_state_becomes_int32():
    steps = wt.tensor(0)

    def step(x):
        steps.add_(1)
        return x * steps

    compiled = weft.compile(step)
    assert [compiled(wt.ones(())).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert steps.item() == 3 and steps.dtype == weft.int32
    steps.copy_(wt.tensor(9))  # int64 again
    assert compiled(wt.ones(())).item() == 10.0


def test_values_beyond_int32_are_refused_by_name():
    wide, fine = wt.tensor([WIDE, 1]), wt.tensor([1, 2])

    def written(x):
        wide.add_(1)
        return x + wide

    refused = {
        "argument": (lambda x: x + 1, wide, "input 'x'"),
        "capture": (lambda x: x + wide, fine, "tensor 't0'"),
        "state": (written, fine, "tensor 't0'"),
        "constant": (lambda x: x + wt.tensor([WIDE, 1]), fine, "constant"),
        "array": (lambda x: x + np.array([-WIDE, 1]), fine, "constant"),
        "number": (lambda x: x + WIDE, fine, str(WIDE)),
        "filled": (lambda x: x + wt.full((2,), WIDE), fine, str(WIDE)),
    }
    for name, (fn, given, what) in refused.items():
        with pytest.raises(DTypeError, match="int32") as caught:
            wt.compile(fn)(given)
        assert what in str(caught.value) and str(caught.value).count("\n") < 2, name
    with pytest.raises(DTypeError, match="int64"):
        wt.tensor([1 << 63])


@pytest.mark.parametrize("dtype", ["uint64", "int16", "uint16", "float64"])
def test_other_dtypes_of_the_host_are_refused_alike(dtype):
    other = weft.tensor([1, 2], dtype=dtype)
    messages = []
    for fn, given in ((lambda x: x + 1, [other]), (lambda: other + 1, [])):
        with pytest.raises(DTypeError, match=f"cannot hold {dtype}; cast first") as caught:
            weft.compile(fn)(*given)
        messages.append(str(caught.value).partition(": cpu")[0])
    assert [m.rpartition(" ")[2] for m in messages] == ["'x'", "'t0'"]
