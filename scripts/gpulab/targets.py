"""The goals that issue 4 sets for an H100, each held against what was measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulab.cases import Case, decoder, model_cases, ops, trainee

WEFT, OWN, EAGER, COMPILED, TRITON = (
    "weft", "weft, own kernels", "PyTorch", "torch.compile", "Triton"
)  # fmt: skip
HOST = "weft, CPU"
SAME = 0.98  # two figures this near are equal: "at or ahead"

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One goal: what it is, the figure (None: not measured), what it has to be at least."""

    part: str
    what: str
    value: float | None
    goal: float
    note: str = ""

    @property
    def outcome(self) -> str:
        if self.value is None:
            return "not measured"
        return "met" if self.value >= self.goal else "missed"


def figure(data: Data, case: str, who: str, key: str = "median_ms") -> float | None:
    """A number of a contender in a case, or None."""
    found = data.get("cases", {}).get(case, {}).get("results", {}).get(who, {})
    value = found.get(key)
    return float(value) if isinstance(value, int | float) else None


def ratio(data: Data, case: str, other: str, who: str = WEFT) -> float | None:
    """The speed of weft relative to the other's."""
    mine, theirs = figure(data, case, who), figure(data, case, other)
    return theirs / mine if mine and theirs else None


def copy_gbs(data: Data) -> float | None:
    """The measured copy bandwidth: the better of weft's copy and PyTorch's."""
    machine = data.get("machine", {})
    found = [machine.get("roofline", {}).get("copy_gbs"), machine.get("torch_copy", {}).get("gbs")]
    return max((f for f in found if f), default=None)


def verdicts(data: Data, quick: bool = False) -> list[Verdict]:
    """Every goal, in the issue's order."""
    found: list[Verdict] = []
    cases = ops(quick)
    found += [_matmul(data, c) for c in cases if c.op == "matmul"]
    found += [_host(data, c) for c in cases if c.op == "matmul"]
    for case in cases:
        if case.part == "rows":
            found += _row(data, case)
    for case in cases:
        if case.op == "attention" and case.dtype == "bf16":
            speed = ratio(data, case.name, EAGER)
            found.append(Verdict("attention", f"{case.name}: speed over SDPA", speed, 0.6))
    return [*found, *_model(data, quick), *_train(data, quick)]


def _matmul(data: Data, c: Case) -> Verdict:
    by = data.get("cases", {}).get(c.name, {}).get("results", {}).get(WEFT, {}).get("by", "")
    own = ratio(data, c.name, EAGER, OWN)
    note = f"by {by}" if by else ""
    note += f"; own kernels {own:.2f}" if own else ""
    return Verdict(
        "matmul", f"{c.name}: speed over PyTorch", ratio(data, c.name, EAGER), 0.95, note
    )


def _host(data: Data, c: Case) -> Verdict:
    gpu, host = figure(data, c.name, WEFT), figure(data, c.name, HOST)
    moved = data.get("moved", {}).get(c.name, {})
    note = ""
    if gpu and host and "upload_ms" in moved:
        whole = gpu + moved["upload_ms"] + moved["download_ms"]
        note = f"{host / whole:.2f} with operands moved there and the result back"
    value = host / gpu if gpu and host else None
    return Verdict("cpu", f"{c.name}: GPU over CPU, transfers apart", value, 1.0, note)


def _row(data: Data, c: Case) -> list[Verdict]:
    rate, copy = figure(data, c.name, WEFT, "gbs"), copy_gbs(data)
    share = rate / copy if rate and copy else None
    return [
        Verdict("rows", f"{c.name}: share of copy bandwidth", share, 0.9),
        Verdict("rows", f"{c.name}: speed over PyTorch eager", ratio(data, c.name, EAGER), 1.0),
        Verdict("rows", f"{c.name}: speed over torch.compile", ratio(data, c.name, COMPILED), SAME),
    ]


def _model(data: Data, quick: bool) -> list[Verdict]:
    prefill, decode = model_cases(quick)
    work, copy = data.get("machine", {}).get("work", {}), copy_gbs(data)
    d = decoder(quick)
    whole = figure(data, decode.name, WEFT)
    share = rate = None
    if whole and copy and work:
        nbytes = work["weight_bytes"] + d.gen / 2 * work["cache_bytes"]
        share = nbytes * d.gen / (whole / 1e3) / 1e9 / copy
    spent, best = figure(data, prefill.name, WEFT), _matmul_rate(data)
    if spent and best and work:
        rate = work["flops_per_token"] * d.prompt / (spent / 1e3) / 1e9 / best
    over: Callable[[str], float | None] = lambda who: ratio(data, decode.name, who)  # noqa: E731
    name = decode.name
    return [
        Verdict("model", f"{name}: bytes read over copy bandwidth", share, 0.75),
        Verdict("model", f"{name}: speed over transformers", over(EAGER), 1.0),
        Verdict("model", f"{name}: over torch.compile, static cache", over(COMPILED), 1.0),
        Verdict("model", f"{prefill.name}: FLOPs over the bf16 matmul rate", rate, 0.5),
    ]


def _matmul_rate(data: Data) -> float | None:
    """The best measured rate of a large bf16 product, GFLOP/s."""
    rates = [
        c["work"] / ms / 1e6
        for name, c in data.get("cases", {}).items()
        if c["op"] == "matmul" and c["dtype"] == "bf16"
        for who in (WEFT, EAGER, COMPILED)
        if (ms := figure(data, name, who))
    ]
    return max(rates, default=None)


def _train(data: Data, quick: bool) -> list[Verdict]:
    t = trainee(quick)
    name = f"{t.name}_train_bf16"
    soak = data.get("soak", {})
    growth, note = None, soak.get("error", "")
    if soak.get("samples"):
        note = f"{soak['steps']} of {t.soak} steps; {_growth(soak)}"
        whole = soak["steps"] >= t.soak and len(soak["samples"]) > 2
        growth = float(_steady(soak)) if whole else None
    return [
        Verdict("train", f"{name}: speed over torch.compile", ratio(data, name, COMPILED), 1.0),
        Verdict("train", f"{name}: memory steady over {t.soak} steps", growth, 1.0, note),
    ]


def _ends(soak: Data, key: str) -> tuple[float, float] | None:
    """The second sample (what is made once is there by then) and the last."""
    values = [s[key] for s in soak["samples"] if s.get(key) is not None]
    return (values[1], values[-1]) if len(values) > 2 else None


def _steady(soak: Data) -> bool:
    """True if memory of the device and of the process grows by at most 1% and 16 MiB."""
    pairs = [_ends(soak, key) for key in ("device_mib", "process_mib")]
    return all(p[1] <= p[0] * 1.01 + 16 for p in pairs if p is not None)


def _growth(soak: Data) -> str:
    said = []
    for key, what in (("device_mib", "device"), ("process_mib", "process")):
        pair = _ends(soak, key)
        if pair is not None:
            said.append(f"{what} {pair[0]:.0f} to {pair[1]:.0f} MiB")
    return ", ".join(said)
