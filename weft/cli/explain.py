"""`weft explain`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.backends.base import Device
    from weft.graph.ir import Graph

VIEWS = ("report", "graph", "kernels", "source")


@click.command(epilog="Example:  weft explain MODEL --step decode --show source --kernel matvec")
@click.argument("path", metavar="MODEL", type=click.Path())
@click.option("--device", default="cpu", show_default=True, help="The device to compile for.")
@click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's).")
@click.option("--step", "steps", multiple=True, help="prefill, decode or encode (default: all).")
@click.option("--show", type=click.Choice(VIEWS), default="report", show_default=True,
              help="The report, the traced graph, Kernel IR, or the device's source.")  # fmt: skip
@click.option("--kernel", help="Only kernels whose name contains this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(
    path: str,
    device: str,
    dtype: str | None,
    steps: tuple[str, ...],
    show: str,
    kernel: str | None,
    as_json: bool,
) -> None:
    """Show what the model in the folder MODEL compiles to: each step of the line from graph to the
    text a device runs."""
    import weft

    model = weft.load(path, device=device, dtype=dtype)
    assert model.device is not None
    graphs = model.graphs()
    unknown = set(steps) - set(graphs)
    if unknown:
        raise UsageError(f"no step {sorted(unknown)[0]!r}; this model has {', '.join(graphs)}")
    shown = {
        name: _view(graph, model.device, show, kernel, as_json)
        for name, graph in graphs.items()
        if not steps or name in steps
    }
    if as_json:
        click.echo(json.dumps({"device": model.device.info.id, "show": show, "steps": shown}))
        return
    for view in shown.values():
        click.echo("\n".join(view.values()) if isinstance(view, dict) else view)


def _view(graph: Graph, device: Device, show: str, kernel: str | None, as_json: bool) -> Any:
    """One step's report or graph as text (the report as data for JSON), or kernel name -> text."""
    from weft.compile.passes import compile_graph
    from weft.graph.text import to_text
    from weft.kernel import printer

    if show == "graph":
        return to_text(graph)
    program = compile_graph(graph, device.caps, name=graph.name)
    if show == "report":
        report = program.meta["report"]
        return report.data() if as_json else report.text()
    found = [k for k in program.kernels if kernel is None or kernel in k.name]
    if not found:
        names = ", ".join(k.name for k in program.kernels)
        raise UsageError(f"no kernel named like {kernel!r} in {graph.name}; there are {names}")
    render = printer.text if show == "kernels" else device.source
    return {k.name: render(k) for k in found}
