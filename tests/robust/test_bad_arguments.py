"""Public names called with arguments that make no sense raise errors of weft's, in two lines."""

from __future__ import annotations

import pytest
from bad_arguments import names, wrongs

import weft
import weft.torch as torch
from weft.errors import CallError

NAMES = names()
SPACES = sorted({name.rpartition(".")[0] for name in NAMES})


def test_some_names_with_a_bad_call_each() -> None:
    found = [line for name in NAMES[::9] for line in wrongs(name, 1)]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
def test_every_name_with_a_hundred_bad_calls(space: str) -> None:
    mine = [name for name in NAMES if name.rpartition(".")[0] == space]
    found = [line for name in mine for line in wrongs(name, 100)]
    assert not found, "\n".join(found)


def test_a_misspelt_keyword_or_name_is_told_the_right_one() -> None:
    x = torch.ones(2, 3)
    calls = {
        "keepdim": lambda: torch.sum(x, 1, keepdims_=True),
        "dtype": lambda: torch.tensor([1], dtyp=torch.int32),
        "label_smoothing": lambda: torch.nn.functional.cross_entropy(x, x, label_smothing=0.1),
        "bias": lambda: torch.nn.Linear(2, 3, bais=False),
        "weight_decay": lambda: torch.optim.AdamW([x], weigth_decay=0.1),
        "step_size": lambda: torch.optim.lr_scheduler.StepLR(None, stepsize=1),
        "only_inputs": lambda: torch.autograd.grad(x, x, only_input=True),
        "fullgraph": lambda: torch.compile(lambda x: x, fullgrph=True),
        "non_blocking": lambda: x.to(torch.int32, nonblocking=True),
        "shuffle": lambda: torch.utils.data.DataLoader([1], shufle=True),
        "has_aux": lambda: torch.func.grad(lambda x: x, has_au=True),
        "axis": lambda: weft.mean(weft.ones(2), axs=0),
        "elementwise_affine": lambda: weft.nn.LayerNorm(2, elementwise_afine=False),
    }
    for right, call in calls.items():
        with pytest.raises(CallError, match=f"did you mean '{right}'"):
            call()
    for space, wrong, right in (
        (torch, "sofmax", "softmax"),
        (torch.nn, "Linaer", "Linear"),
        (torch.optim, "AdmaW", "AdamW"),
        (torch.nn.functional, "cross_entrpy", "cross_entropy"),
        (torch.distributions, "Normla", "Normal"),
        (weft, "zeors", "zeros"),
    ):
        with pytest.raises(AttributeError, match=f"did you mean '?{right}"):
            getattr(space, wrong)
