"""`weft explain`."""

from __future__ import annotations

import click

from weft.core.errors import UsageError

VIEWS = ("report", "graph", "kernels", "source")


@click.command(epilog="Example:  weft explain MODEL --step decode --show source --kernel matvec")
@click.argument("path", metavar="MODEL", type=click.Path())
@click.option("--device", default="cpu", show_default=True, help="The device to compile for.")
@click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's).")
@click.option("--step", "steps", multiple=True, help="prefill, decode or encode (default: all).")
@click.option("--show", type=click.Choice(VIEWS), default="report", show_default=True,
              help="The report, the traced graph, Kernel IR, or the device's source.")  # fmt: skip
@click.option("--kernel", help="Only kernels whose name contains this.")
def explain(
    path: str, device: str, dtype: str | None, steps: tuple[str, ...], show: str, kernel: str | None
) -> None:
    """Show what the model in the folder MODEL compiles to: each step of the line from graph to the
    text a device runs."""
    import weft
    from weft.compile.passes import compile_graph
    from weft.graph.text import to_text
    from weft.kernel import printer

    model = weft.load(path, device=device, dtype=dtype)
    graphs = model.graphs()
    unknown = set(steps) - set(graphs)
    if unknown:
        raise UsageError(f"no step {sorted(unknown)[0]!r}; this model has {', '.join(graphs)}")
    for name, graph in graphs.items():
        if steps and name not in steps:
            continue
        if show == "graph":
            click.echo(to_text(graph))
            continue
        assert model.device is not None
        program = compile_graph(graph, model.device.caps, name=graph.name)
        if show == "report":
            click.echo(program.meta["report"].text())
            continue
        found = [k for k in program.kernels if kernel is None or kernel in k.name]
        if not found:
            names = ", ".join(k.name for k in program.kernels)
            raise UsageError(f"no kernel named like {kernel!r} in {name}; there are {names}")
        for k in found:
            click.echo(printer.text(k) if show == "kernels" else model.device.source(k))
