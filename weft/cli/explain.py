"""`weft explain`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from weft.cli.hub import model_path, takes_model
from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.backends.llvm.resources import Resources
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.kernel.ir import Kernel
    from weft.program.device import Device
    from weft.program.program import Program

VIEWS = ("report", "graph", "kernels", "source")


@click.command(epilog="Example:  weft explain MODEL --step decode --show source --kernel matvec")
@click.argument("path", metavar="MODEL", type=click.Path())
@click.option("--device", default="cpu", show_default=True, help="The device to compile for.")
@click.option("--target", help="Compile for a GPU architecture, which need not be here: sm_90, "
              "gfx942, ... The report then says what each kernel takes of it.")  # fmt: skip
@click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's).")
@click.option("--act-dtype", help="Of linear inputs: see weft run.")
@click.option("--step", "steps", multiple=True, help="prefill, decode or encode (default: all).")
@click.option("--show", type=click.Choice(VIEWS),
              help="The report (default), the traced graph, Kernel IR (default with --kernel), or "
              "the device's source.")  # fmt: skip
@click.option("--kernel", help="Only kernels whose name contains this.")
@takes_model
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(
    path: str,
    device: str,
    target: str | None,
    dtype: str | None,
    act_dtype: str | None,
    steps: tuple[str, ...],
    show: str | None,
    kernel: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what MODEL, a folder, a GGUF file or ORG/NAME, compiles to: each step of the line from
    graph to the text a device runs."""
    import weft

    show = show or ("report" if kernel is None else "kernels")
    if kernel is not None and show not in ("kernels", "source"):
        raise UsageError(f"--kernel picks among kernels, not from --show {show}; leave one out")
    model = weft.load(model_path(path, yes), device=device, dtype=dtype, act_dtype=act_dtype)
    assert model.device is not None
    goal = _of_device(model.device) if target is None else _of_target(target)
    graphs = model.graphs()
    unknown = set(steps) - set(graphs)
    if unknown:
        raise UsageError(f"no step {sorted(unknown)[0]!r}; this model has {', '.join(graphs)}")
    shown = {
        name: _view(graph, goal, show, kernel, as_json)
        for name, graph in graphs.items()
        if not steps or name in steps
    }
    if kernel is not None and not any(shown.values()):
        raise UsageError(f"no kernel named like {kernel!r}; weft explain {path} lists them")
    if as_json:
        click.echo(json.dumps({"device": goal.name, "show": show, "steps": shown}))
        return
    for view in filter(None, shown.values()):
        click.echo("\n".join(view.values()) if isinstance(view, dict) else view)


@dataclass(frozen=True)
class _Goal:
    """What programs are compiled for. `resources` says what kernels take of it, where that is
    known without running them; `missing` why it is not. `library` names the vendor's library that
    is there, or says why there is none."""

    name: str
    caps: Caps
    source: Callable[[Kernel], str]
    resources: Callable[[Program], Mapping[str, Resources]] | None = None
    missing: str = ""
    library: Callable[[], str] = str


def _of_device(device: Device) -> _Goal:
    return _Goal(device.info.id, device.caps, device.source, library=device.library)


def _of_target(name: str) -> _Goal:
    from weft.backends.llvm import gpu_target, offline, ptxas

    target = gpu_target(name)
    missing = ""
    if target.code == "ptx" and ptxas.find() is None:
        missing = "registers and spills are not known: " + ptxas.MISSING
    return _Goal(
        name,
        target.caps,
        lambda kernel: offline.source(kernel, target),
        None if missing else lambda program: offline.resources(program.kernels, target),
        missing,
    )


def _view(graph: Graph, goal: _Goal, show: str, kernel: str | None, as_json: bool) -> Any:
    """One step's report or graph as text (the report as data for JSON), or kernel name -> text."""
    from weft.compile.passes import compile_graph
    from weft.graph.text import to_text
    from weft.kernel import printer
    from weft.models.runner import model_caps

    if show == "graph":
        return to_text(graph)
    program = compile_graph(graph, model_caps(goal.caps), name=graph.name)
    if show == "report":
        return _report(program, goal, as_json)
    found = [k for k in program.kernels if kernel is None or kernel in k.name]
    render = printer.text if show == "kernels" else goal.source
    return {k.name: render(k) for k in found}


def _report(program: Program, goal: _Goal, as_json: bool) -> Any:
    """The compilation's report, and what its kernels take of the target."""
    from weft.backends.llvm import resources
    from weft.program.program import Library

    report = program.meta["report"]
    offered = any(isinstance(step, Library) for step in program.steps)
    library = goal.library() if offered else ""
    if goal.resources is None:
        notes = [report.text(), library and f"library here: {library}", goal.missing]
        more = {"library": library} if library else {}
        return report.data() | more if as_json else "\n\n".join(filter(None, notes))
    found = goal.resources(program)
    if as_json:
        return report.data() | {"resources": resources.data(found)}
    return f"{report.text()}\n\n{resources.text(found)}"
