"""A name means one thing to each caller: PyTorch's in users' code, weft's in weft's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft
import weft.torch as torch
from weft.core.errors import DTypeError, FileFormatError, ShapeError, TraceError, UsageError
from weft.importers import from_onnx, from_torch

A = np.random.default_rng(0).uniform(-2, 2, (3, 4)).astype(np.float32)


def test_methods_with_two_meanings() -> None:
    mine, plain = torch.tensor(A), weft.tensor(A)
    assert isinstance(mine.max(1), tuple) and not isinstance(plain.max(1), tuple)
    assert mine.std().item() == pytest.approx(theirs.tensor(A).std().item())
    assert plain.std().item() == pytest.approx(A.std())
    assert mine.where(mine > 0, 0.0).tolist() == np.where(A > 0, A, 0).tolist()
    assert (plain > 0).where(plain, 0.0).tolist() == np.where(A > 0, A, 0).tolist()


def test_wefts_formulas_compute_with_tensors_of_weft_torch() -> None:
    mine, plain = torch.tensor(A), weft.tensor(A)
    for formula in (
        weft.functional.layer_norm, weft.functional.softmax, weft.functional.normalize,
        weft.logsumexp, weft.max, weft.var, lambda x: weft.functional.vector_norm(x, 3.0),
    ):  # fmt: skip
        assert formula(mine).tolist() == formula(plain).tolist()


def test_a_tensor_of_weft_stays_one() -> None:
    x = weft.ones((2, 3)).requires_grad_()
    y = torch.exp(x)
    assert type(x) is weft.Tensor and type(y) is torch.Tensor
    assert type(torch.positive(x)) is torch.Tensor and type(x) is weft.Tensor
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("read", [
    lambda m, x, i: x[i], lambda m, x, i: x.index_select(0, i), lambda m, x, i: m.take(x, i),
    lambda m, x, i: x.gather(0, i.view(-1, 1)), lambda m, x, i: m.nn.functional.embedding(i, x),
    lambda m, x, i: x.index_add(0, i, x[:1]), lambda m, x, i: m.nn.functional.one_hot(i, 3),
    lambda m, x, i: m.take_along_dim(x, i.view(-1, 1), 0),
])  # fmt: skip
def test_an_index_out_of_range_is_an_error(read: Any) -> None:
    for bad in (12, -13):
        with pytest.raises(ShapeError, match="out of range"):
            read(torch, torch.tensor(A), torch.tensor([bad]))


def test_integers_have_64_bits_on_the_host_and_32_in_programs() -> None:
    x = torch.arange(3)
    assert x.dtype == torch.long == x.sum().dtype == torch.tensor([1]).dtype
    assert (x * (1 << 40)).sum().item() == 3 << 40
    run = torch.compile(lambda t: (t + 1, t.argmax()))
    a, b = run(x)
    assert (a.tolist(), b.item(), a.dtype) == ([1, 2, 3], 2, torch.int32)


def test_a_compiled_function_means_pytorch() -> None:
    def fn(x: Any) -> Any:
        values, index = x.max(1)
        return values - x.std(dim=1), index, x.sort(dim=0, descending=True)[0]

    got, want = torch.compile(fn)(torch.tensor(A)), fn(theirs.tensor(A))
    for a, b in zip(got, want):
        assert type(a) is torch.Tensor
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_a_compiled_training_step() -> None:
    def losses(m: Any, compiled: bool) -> list[float]:
        net = m.nn.Sequential(m.nn.Linear(4, 8), m.nn.Tanh(), m.nn.Linear(8, 1))
        for i, p in enumerate(net.parameters()):
            p.data.copy_(m.cos(m.arange(p.numel()).float() + i).view_as(p))
        opt = m.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        run = torch.compile(step) if compiled else step
        return [run(m.tensor(A)).item() for _ in range(4)]

    np.testing.assert_allclose(losses(torch, True), losses(theirs, False), rtol=1e-5)
    np.testing.assert_allclose(losses(torch, False), losses(theirs, False), rtol=1e-5)


def test_a_trace_still_needs_no_values() -> None:
    with pytest.raises(TraceError):
        torch.compile(lambda x: x.nonzero())(torch.tensor(A))


def test_checkpoints_hold_more_than_tensors(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    opt = torch.optim.Adam(net.parameters(), lr=0.5)
    saved = {"model": net.state_dict(), "epoch": 3, "best": 0.5, "names": ["a", None, True],
             "shape": (1, 2), "optimizer": opt.state_dict()}  # fmt: skip
    torch.save(saved, tmp_path / "checkpoint.pt")
    found = torch.load(tmp_path / "checkpoint.pt", map_location="cpu", weights_only=True)
    assert found["epoch"] == 3 and found["names"] == ["a", None, True] and found["shape"] == (1, 2)
    assert torch.equal(found["model"]["weight"], net.weight)
    opt.load_state_dict(found["optimizer"])
    with pytest.raises(UsageError, match="state_dict"):
        torch.save({"model": net}, tmp_path / "module.pt")


def test_pickles_are_refused(tmp_path: Path) -> None:
    theirs.save({"x": theirs.ones(2)}, tmp_path / "pickle.pt")
    with pytest.raises(FileFormatError):
        torch.load(tmp_path / "pickle.pt")
    weft.save({"x": weft.ones(2)}, tmp_path / "odd.pt", {"weft.torch.tree": '{"dict": 1}'})
    with pytest.raises(FileFormatError, match="damaged"):
        torch.load(tmp_path / "odd.pt")


def test_flags_of_parameters() -> None:
    net = torch.nn.Linear(3, 2)
    net.weight.requires_grad = False
    assert not net.weight.requires_grad and net.bias.requires_grad
    net.bias.data = torch.tensor([1.0, 2.0])
    assert net.bias.tolist() == [1, 2] and net.bias.is_leaf
    net.bias.data = torch.ones(3)
    assert tuple(net.bias.shape) == (3,)


def test_bytes_have_no_mean() -> None:
    image = weft.ones((1, 1, 2, 2)).cast("uint8")
    with pytest.raises(DTypeError, match="cast"):
        weft.functional.interpolate(image, scale_factor=2, mode="bilinear")
    x = torch.tensor([[[[0, 200], [100, 50]]]], dtype=torch.uint8)
    want = theirs.nn.functional.interpolate(
        theirs.tensor(x.tolist(), dtype=theirs.uint8), scale_factor=2, mode="bilinear"
    )
    made = torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
    assert np.abs(made.numpy().astype(int) - want.numpy()).max() <= 1


def test_modules_inside_modules_are_weft_torchs() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    kinds = {type(m).__module__ for m in layer.modules() if "Attention" not in type(m).__name__}
    assert kinds == {"weft.torch.nn.modules"}
    assert {type(p) for p in layer.parameters()} == {torch.nn.Parameter}
    other = theirs.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layer.load_state_dict(other.state_dict())
    x = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)
    layer.eval(), other.eval()
    np.testing.assert_allclose(
        layer(torch.tensor(x)).detach().numpy(), other(theirs.tensor(x)).detach().numpy(),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("side", ["left", "right"])
def test_sequences_of_different_lengths(side: str) -> None:
    lines = [[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]]
    for first in (True, False):
        made, want = (
            m.nn.utils.rnn.pad_sequence([m.tensor(x) for x in lines], first, -1.0, side)
            for m in (torch, theirs)
        )
        assert made.tolist() == want.tolist()


def test_batches_are_pytorchs() -> None:
    def run(m: Any) -> list[Any]:
        class Squares(m.utils.data.Dataset):  # type: ignore[misc,name-defined]
            def __len__(self) -> int:
                return 5

            def __getitem__(self, i: int) -> Any:
                return {"x": m.tensor([i, i * i]).float(), "y": i, "z": i / 2, "name": str(i)}

        found = []
        for batch in m.utils.data.DataLoader(Squares(), batch_size=2):
            for key, value in batch.items():
                found.append((key, getattr(value, "tolist", lambda v=value: v)()))
                found.append(str(getattr(value, "dtype", "")).replace("torch.", ""))
        pairs = m.utils.data.TensorDataset(m.tensor(A), m.arange(3))
        for x, y in m.utils.data.DataLoader(pairs, batch_size=2, drop_last=True):
            found.append((x.max(1)[1].tolist(), y.tolist(), str(y.dtype).replace("torch.", "")))
        return found

    assert run(torch) == run(theirs)
    parts = torch.utils.data.random_split(
        range(10), [7, 3], generator=torch.Generator().manual_seed(3)
    )
    assert [len(p) for p in parts] == [7, 3]
    loader = torch.utils.data.DataLoader(range(10), batch_size=4, shuffle=True)
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(10))


def test_a_compiled_module_trains() -> None:
    def losses(m: Any) -> list[float]:
        net = m.nn.Sequential(m.nn.Linear(4, 6), m.nn.ReLU(), m.nn.Linear(6, 1))
        for i, p in enumerate(net.parameters()):
            p.data.copy_(m.cos(m.arange(p.numel()).float() + i).view_as(p))
        model = torch.compile(net) if m is torch else net
        opt = m.optim.Adam(model.parameters(), lr=0.1)
        model.train()
        found = []
        for _ in range(3):
            opt.zero_grad()
            loss = m.nn.functional.mse_loss(model(m.tensor(A)), m.ones(3, 1))
            loss.backward()
            opt.step()
            found.append(loss.item())
        return found

    np.testing.assert_allclose(losses(torch), losses(theirs), rtol=1e-4)
    net = torch.nn.Linear(4, 2)
    run = torch.compile(net)
    with torch.no_grad():
        assert torch.allclose(run(torch.tensor(A)), net(torch.tensor(A)), atol=1e-6)
    assert run.weight is net.weight and run.eval() is net


def test_every_layer_has_the_methods_of_weft_torchs_module() -> None:
    base = torch.nn.Module
    for name in dir(torch.nn):
        kind = getattr(torch.nn, name)
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base:
            mine = {n for n in vars(base) if n[0] != "_"} - set(vars(kind))
            assert [n for n in mine if getattr(kind, n) is not getattr(base, n)] == [], name
    layer = torch.nn.Linear(2, 3)
    best = {k: v.clone() for k, v in layer.state_dict(prefix="a.").items()}
    assert {type(v) for v in best.values()} == {torch.Tensor} and list(best) == [
        "a.weight",
        "a.bias",
    ]
    assert layer.load_state_dict({}, strict=False).missing_keys == ["weight", "bias"]


def test_places_in_the_stream_of_random_numbers() -> None:
    torch.manual_seed(5)
    assert torch.initial_seed() == 5
    torch.rand(2)
    state, own = torch.get_rng_state(), torch.Generator().manual_seed(6)
    kept = own.get_state()
    first = [torch.rand(3).tolist(), torch.rand(3, generator=own).tolist()]
    torch.set_rng_state(state), own.set_state(kept)
    assert [torch.rand(3).tolist(), torch.rand(3, generator=own).tolist()] == first
    with pytest.raises(UsageError, match="uint8"):
        torch.set_rng_state(torch.zeros(3))


def test_formats() -> None:
    assert f"{torch.tensor(1.2345):.2f} {torch.tensor(7):>3d} {torch.tensor([1.0])}" == (
        "1.23   7 tensor([1.])"
    )


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (7, 3), (2, 2, 2), (0, 3)])
@pytest.mark.parametrize("wrap", [False, True])
def test_fill_diagonal(shape: tuple[int, ...], wrap: bool) -> None:
    made, want = (m.zeros(*shape).fill_diagonal_(2.0, wrap) for m in (torch, theirs))
    assert made.tolist() == want.tolist()


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hann", "kaiser"])
def test_windows(name: str) -> None:
    for n in (1, 2, 9):
        for periodic in (True, False):
            made, want = (getattr(m, f"{name}_window")(n, periodic) for m in (torch, theirs))
            np.testing.assert_allclose(made.numpy(), want.numpy(), atol=1e-6)
    made, want = (m.hamming_window(8, False, 0.6, 0.3) for m in (torch, theirs))
    np.testing.assert_allclose(made.numpy(), want.numpy(), atol=1e-6)


def test_promotion() -> None:
    kinds = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"]
    for a in kinds:
        for b in kinds:
            pair, other = ([getattr(m, n) for n in (a, b)] for m in (torch, theirs))
            found = str(theirs.promote_types(*other)).removeprefix("torch.")
            assert str(torch.promote_types(*pair)) == found, (a, b)
            assert torch.can_cast(*pair) == theirs.can_cast(*other), (a, b)
    for m in (torch, theirs):
        assert m.result_type(m.ones(2, dtype=m.int32), 1.5) == m.float32


def test_what_is_no_tensor() -> None:
    for make in (torch.tensor, torch.Tensor, torch.FloatTensor, torch.as_tensor):
        with pytest.raises(ShapeError, match="ragged"):
            make([[1.0], [2.0, 3.0]])
        with pytest.raises(DTypeError, match="numbers"):
            make(["a"])
    for weights in ([0.0, 0.0], [1.0, -1.0], [float("nan"), 1.0]):
        with pytest.raises(UsageError, match="multinomial"):
            torch.multinomial(torch.tensor(weights), 1)


def test_a_missing_file_is_an_error_that_scripts_expect(tmp_path: Path) -> None:
    for read in (torch.load, weft.load_tensors, weft.data.mapped, from_onnx, from_torch):
        for name in ("a.safetensors", "a.npy", "a.onnx", "a.pt2"):
            if read is weft.data.mapped and Path(name).suffix not in (".npy", ".safetensors"):
                continue
            with pytest.raises(FileNotFoundError, match="No such file"):
                read(tmp_path / name)


def test_parameters_take_attributes() -> None:
    """As training scripts mark those without decay."""
    layer = torch.nn.Linear(2, 3)
    layer.weight.no_decay, layer.weight.marks = True, [1]
    marked = [n for n, p in layer.named_parameters() if getattr(p, "no_decay", False)]
    assert marked == ["weight"]
    layer.to(torch.float64)
    again = copy.deepcopy(layer)
    assert again.weight.marks == [1] and again.weight.marks is not layer.weight.marks
