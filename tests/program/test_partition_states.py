"""States of Programs that are cut between a device and the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from partition_kit import X, counts, no_halves, same, session_of

import weft
from weft import Tensor
from weft.core.errors import CompileError, DeviceError


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_state_is_updated_in_place_on_its_side(dtype: str) -> None:
    total = weft.zeros((4, 8), dtype)

    def step(x: Tensor) -> Tensor:
        total.assign(total + x.cast(dtype))
        return x.cast("float16").cast("float32") + total.cast("float32")

    compiled = weft.compile(step, no_halves(), partition=True)
    for i in (1, 2, 3):
        same(compiled(np.ones((4, 8), np.float32)), weft.full((4, 8), 1.0 + i, "float32"))
        assert (total.to("cpu").numpy() == i).all()
    assert total.device == ("cpu" if dtype == "float16" else "interp:0")


def test_a_state_read_late_keeps_its_old_value_until_then() -> None:
    old = weft.full((4, 8), 5.0, "float32")

    def step(x: Tensor) -> Tensor:
        before = old * 1
        old.assign(x * 3)  # computed in the first part, assigned in the last
        return x.cast("float16").cast("float32") * before

    early = weft.full((4, 8), 5.0, "float32")

    def swapped(x: Tensor) -> Tensor:
        rounded = x.cast("float16").cast("float32")
        result = rounded - early
        early.assign(x * 3)
        return result

    compiled = weft.compile(swapped, no_halves(), partition=True)
    ones = np.ones((4, 8), np.float32)
    assert [compiled(ones).to("cpu").numpy()[0, 0] for _ in range(3)] == [-4, -2, -2]
    compiled = weft.compile(step, no_halves(), partition=True)
    assert [compiled(ones).to("cpu").numpy()[0, 0] for _ in range(3)] == [5, 3, 3]


def test_states_that_swap_across_parts() -> None:
    a, b = weft.full((8,), 1.0, "float32"), weft.full((8,), 2.0, "float32")

    def step(x: Tensor) -> Tensor:
        y = a * x
        z = y.cast("float16").cast("float32") + b
        old = a + 0
        a.assign(b)
        b.assign(old)
        return z

    compiled = weft.compile(step, no_halves(), partition=True)
    x = np.full(8, 10, np.float32)
    assert [compiled(x).to("cpu").numpy()[0] for _ in range(3)] == [12, 21, 12]


def test_a_state_on_both_sides_is_refused() -> None:
    s = weft.ones((8,))
    s.name = "cache"

    def step(x: Tensor) -> Tensor:
        y = s.cast("float16") + 1
        s.assign(s + x)
        return y

    compiled = weft.compile(step, no_halves(), partition=True)
    with pytest.raises(
        CompileError, match=r"state 'cache'.*both sides.*add.*cast float16"
    ) as error:
        compiled(np.ones(8, np.float32))
    assert __file__ in str(error.value)


def test_a_state_of_another_function_is_not_copied_behind_its_back() -> None:
    device = no_halves()
    s = weft.ones((8,))
    weft.compile(lambda x: s.assign(s + x), device)(np.ones(8, np.float32))
    read = weft.compile(lambda x: s.cast("float16") + x.cast("float16"), device, partition=True)
    with pytest.raises(DeviceError, match="move it with"):
        read(np.ones(8, np.float32))


@pytest.mark.parametrize("rule", ["SGD", "AdamW"])
def test_a_training_step_across_the_cut(rule: str) -> None:
    """Losses and weights as on the CPU, which runs the step whole."""
    from weft import nn, optim

    def trained(device: Any) -> tuple[list[float], Any, Any]:
        rng = np.random.default_rng(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
        made = {k: rng.standard_normal(v.shape) * 0.3 for k, v in model.state_dict().items()}
        model.load_state_dict({k: v.astype(np.float32) for k, v in made.items()})
        optimiser = getattr(optim, rule)(model.parameters(), lr=0.05)

        def step(x: Tensor) -> Tensor:
            hidden = model[0](x).relu().cast("float16").cast("float32")
            loss = (model[1](hidden) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss

        compiled = weft.compile(step, device, partition=True)
        losses = [float(compiled(X).to("cpu").item()) for _ in range(4)]
        return losses, model, compiled

    want, on_cpu, _ = trained("cpu")
    got, cut, compiled = trained(no_halves())
    assert want[-1] < want[0] / 1.5
    np.testing.assert_allclose(got, want, rtol=2e-3)
    for a, b in zip(cut.parameters(), on_cpu.parameters()):
        same(a, b, 3e-3)
    assert counts(compiled)[0] > 1 and counts(compiled)[1] == 4 * len(
        session_of(compiled).parted.meta["report"].transfers
    )
