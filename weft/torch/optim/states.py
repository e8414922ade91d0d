"""The state of an optimiser in PyTorch's form: parameters by their number, groups with options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.errors import ModelError, ShapeError
from weft.tensor.autograd import no_grad
from weft.torch.creation import tensor

# PyTorch's options that change no number here, as its optimisers expect them.
_FASTER = {"foreach": None, "capturable": False, "differentiable": False, "fused": None}
_IGNORED = {*_FASTER, "decoupled_weight_decay", "initial_lr", "max_lr", "min_lr", "param_names",
            "base_momentum", "max_momentum", "weight_decay"}  # fmt: skip
_UNCOUNTED = ("SGD", "Muon", "Lion")  # PyTorch keeps no number of steps for these


def short(rate: float) -> float:
    """A float32 number by its shortest decimals: 0.1, not 0.10000000149011612."""
    return float(str(np.float32(rate)))


def state_dict(opt: Any) -> dict[str, Any]:
    """Copies of the state by parameter number, and the groups' options."""
    kind, steps = type(opt).__name__, int(opt.count.item())
    state: dict[int, dict[str, Any]] = {}
    groups, at = [], 0
    for group in opt.groups:
        options = {"lr": short(group.rate(opt.count.cpu()).item()), **group._options}
        if kind in ("Adam", "AdamW"):
            options["decoupled_weight_decay"] = kind == "AdamW"
        numbers = list(range(at, at + len(group.params)))
        groups.append({**_FASTER, **options, "params": numbers})
        for number, (name, _) in zip(numbers, group.params):
            held = _state(opt, group, name, steps) if steps else {}
            if held:
                state[number] = held
        at += len(group.params)
    return {"state": state, "param_groups": groups}


def _state(opt: Any, group: Any, name: str, steps: int) -> dict[str, Any]:
    """The state of one parameter under PyTorch's names."""
    kind = type(opt).__name__
    found = {} if kind in _UNCOUNTED else {"step": tensor(float(steps))}
    for slot, t in opt.state[name].items():
        if slot == "momentum_lost":  # 1 - the product, which float32 holds better near 1
            found["mu_product"] = tensor(1.0 - t.item())
        else:
            found[slot] = tensor(np.array(t.numpy()))
    if kind == "ASGD":
        lr, decay, power = group.rate(opt.count.cpu()).item(), group["lambd"], group["alpha"]
        found["eta"] = tensor(lr / (1 + decay * lr * steps) ** power)
        found["mu"] = tensor(1 / max(1.0, steps - group["t0"]))
    return found


def load_state_dict(opt: Any, given: Mapping[str, Any]) -> None:
    """Takes what `state_dict` gave, here or in PyTorch. Raises ModelError, which changes nothing,
    for groups, state or step counts that do not fit."""
    groups, states = given["param_groups"], given.get("state", {})
    sizes = [len(g["params"]) for g in groups], [len(g.params) for g in opt.groups]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"optimiser state: groups of {sizes[0]} parameters, expected {sizes[1]}; give the "
            "optimiser the same groups"
        )
    chosen = [_options(group, saved) for group, saved in zip(opt.groups, groups)]
    numbers = [n for g in groups for n in g["params"]]
    names = [name for group in opt.groups for name, _ in group.params]
    held = {name: states.get(n, states.get(str(n), {})) for n, name in zip(numbers, names)}
    steps = _steps(opt, held)
    arrays = {name: _arrays(opt, name, saved) for name, saved in held.items()}
    with no_grad():
        for group, options in zip(opt.groups, chosen):
            for option, value in options.items():
                if option == "lr":
                    group.lr = value
                else:
                    group[option] = value
        for name, slots in arrays.items():
            for slot, array in slots.items():
                t = opt.state[name][slot]
                t.assign(tensor(array.astype(t.dtype.numpy)).to(t.device))
        opt.count.assign(tensor(np.array(steps, np.int32)).to(opt.count.device))


def _options(group: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved options that the group has, in the kinds it has them in."""
    found: dict[str, Any] = {}
    for name, value in saved.items():
        if name == "lr":
            found[name] = float(value)
        elif name in group._options:
            found[name] = tuple(value) if isinstance(value, list) else value
        elif name not in _IGNORED and name != "params":
            known = ", ".join(group._options)
            raise ModelError(f"optimiser state: unknown option {name!r}; known: lr, {known}")
    return found


def _steps(opt: Any, held: Mapping[str, Mapping[str, Any]]) -> int:
    """The number of steps done, which all parameters share here."""
    counted = {int(float(saved["step"])) for saved in held.values() if "step" in saved}
    if len(counted) > 1:
        raise ModelError(
            f"optimiser state: parameters took {', '.join(map(str, sorted(counted)))} steps; weft "
            "counts those of all parameters together"
        )
    return next(iter(counted), 1 if any(held.values()) else 0)


def _arrays(opt: Any, name: str, saved: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A parameter's state tensors; zeros where nothing was saved."""
    mine, found = opt.state[name], {}
    extra = {"step", "mu_product", "eta", "mu", *mine}
    if unknown := [k for k, v in saved.items() if k not in extra and v is not None]:
        raise ModelError(
            f"optimiser state: parameter {name} has {', '.join(map(str, unknown))}; "
            f"{type(opt).__name__} keeps {', '.join(mine) or 'nothing'}"
        )
    for slot, t in mine.items():
        value = saved.get(slot)
        if slot == "momentum_lost" and "mu_product" in saved:
            value = 1.0 - float(saved["mu_product"])
        array = np.zeros(t.shape) if value is None else np.asarray(_host(value))
        if array.shape != t.shape:
            raise ShapeError(
                f"optimiser state: {slot} of parameter {name} is {list(array.shape)}, expected "
                f"{list(t.shape)}"
            )
        found[slot] = array
    return found


def _host(value: Any) -> Any:
    """A tensor of either library in host memory."""
    return value.detach().cpu() if hasattr(value, "detach") else value
