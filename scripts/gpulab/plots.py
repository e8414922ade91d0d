"""Pictures of a results.json: speed of products by size, ratios by case, shares of bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from gpulab import targets
from gpulab.cases import every
from gpulab.targets import COMPILED, EAGER, HOST, OWN, TRITON, WEFT

Data = Mapping[str, Any]
COLOURS = {
    WEFT: "#2a6fbb", OWN: "#7fb2e5", EAGER: "#d9822b", COMPILED: "#a05195", TRITON: "#5aa469",
    HOST: "#8a8a8a",
}  # fmt: skip


def draw(folder: Path, data: Data) -> list[Path]:
    """The pictures that the results allow."""
    made = []
    for name, picture in (("products", _products), ("ratios", _ratios), ("bandwidth", _bandwidth)):
        figure = picture(data)
        if figure is not None:
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=120)
            made.append(path)
    if (folder / "sizes.png").exists():
        made.append(folder / "sizes.png")
    return made


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(data: Data) -> str:
    return str(data.get("machine", {}).get("weft", {}).get("name", data.get("run", "")))


def _products(data: Data) -> Figure | None:
    """GFLOP/s of square products by size, a panel per dtype."""
    found = [
        (name, c) for name, c in data.get("cases", {}).items()
        if c["op"] == "matmul" and any(targets.figure(data, name, who) for who in COLOURS)
    ]  # fmt: skip
    if not found:
        return None
    dtypes = list(dict.fromkeys(c["dtype"] for _, c in found))
    figure = _figure(5.2 * len(dtypes), 4.4)
    for axes, dtype in zip(figure.subplots(1, len(dtypes), squeeze=False)[0], dtypes):
        sizes = sorted({c["shape"][0] for _, c in found if c["dtype"] == dtype})
        for who, colour in COLOURS.items():
            points = [
                (c["shape"][0], rate)
                for name, c in found
                if c["dtype"] == dtype and (rate := _rate(data, name, who)) is not None
            ]
            if points:
                axes.plot(*zip(*sorted(points)), "o-", color=colour, label=who, ms=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set(title=f"products, {dtype}", xlabel="size n of n x n", ylabel="GFLOP/s")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"{_title(data)} (operands on the device; higher is faster)", fontsize=10)
    return figure


def _rate(data: Data, case: str, who: str) -> float | None:
    milliseconds = targets.figure(data, case, who)
    return data["cases"][case]["work"] / milliseconds / 1e6 if milliseconds else None


def _ratios(data: Data) -> Figure | None:
    """Times relative to weft's, a bar per contender and case."""
    cases = [n for n in every(bool(data.get("quick"))) if targets.figure(data, n, WEFT)]
    others = [
        who for who in (OWN, EAGER, COMPILED, TRITON)
        if any(targets.ratio(data, n, who) for n in cases)
    ]  # fmt: skip
    if not cases or not others:
        return None
    figure = _figure(8.5, 1.3 + 0.17 * (len(others) + 1) * len(cases))
    axes = figure.subplots()
    height = 0.84 / len(others)
    for i, name in enumerate(reversed(cases)):
        for k, who in enumerate(others):
            ratio = targets.ratio(data, name, who)
            if ratio is None:
                continue
            at = i + 0.42 - (k + 0.5) * height
            axes.barh(at, min(ratio, 4.0), height * 0.9, color=COLOURS[who])
            axes.text(min(ratio, 4.0) + 0.03, at, f"{ratio:.2f}", va="center", fontsize=6)
    axes.set_yticks(range(len(cases)), list(reversed(cases)), fontsize=8)
    axes.set_ylim(-0.6, len(cases) - 0.4)
    axes.axvline(1.0, color=COLOURS[WEFT], linewidth=1)
    axes.set_xlim(0, 4.4)
    axes.set_xlabel("time relative to weft's (right of the line: slower than weft; cut at 4)")
    axes.set_title(_title(data), fontsize=10)
    handles = [Patch(color=COLOURS[who]) for who in others]
    figure.legend(
        handles, others, fontsize=8, loc="outside lower center", ncols=len(others), frameon=False
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _bandwidth(data: Data) -> Figure | None:
    """Row operations' bytes per second over the measured copy bandwidth."""
    copy = targets.copy_gbs(data)
    cases = [n for n, c in data.get("cases", {}).items() if c.get("unit") == "gbs"]
    there = [
        who for who in (WEFT, EAGER, COMPILED, TRITON)
        if any(targets.figure(data, n, who) for n in cases)
    ]  # fmt: skip
    if not copy or not there:
        return None
    figure = _figure(max(6.0, 1.1 * len(cases)), 4.2)
    axes = figure.subplots()
    width = 0.84 / len(there)
    axes.axhline(0.9, color="#444444", linewidth=0.8, linestyle="--", label="goal, 0.9")
    for k, who in enumerate(there):
        shares = [(_rate(data, n, who) or 0.0) / copy for n in cases]
        places = [i - 0.42 + (k + 0.5) * width for i in range(len(cases))]
        axes.bar(places, shares, width * 0.9, color=COLOURS[who], label=who)
    axes.set_xticks(range(len(cases)), cases, rotation=25, ha="right", fontsize=8)
    axes.set_ylabel(f"share of the copy bandwidth, {copy:,.0f} GB/s")
    axes.set_title(_title(data), fontsize=10)
    axes.legend(fontsize=8)
    return figure
