"""`weft explain`."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import explained, graphs
from weft.cli.explained import Explained, Goal, Step
from weft.cli.hub import model_path, takes_model
from weft.core.errors import DTypeError, LimitError, UsageError
from weft.core.hints import command
from weft.core.text import table

if TYPE_CHECKING:
    from weft.compile.report import Report
    from weft.program.program import Program

VIEWS = ("report", "graph", "kernels", "source")
IMPORTED = (".pt2", ".onnx")  # files that hold a graph of another framework


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
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    help="Write a page that needs nothing "
    "else: launches, memory over time, weights, kernels with their source.",
)
@click.option(
    "--onnx",
    type=click.Path(dir_okay=False),
    help="Write an ONNX model for Netron: the graph, or what is launched (--show kernels).",
)
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
    html: str | None,
    onnx: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what MODEL, a folder, a GGUF file or ORG/NAME, compiles to: each step of the line from
    graph to the text a device runs. MODEL may also be a file that `weft compile` or Program.save
    wrote, a graph as JSON (what --show graph --json prints under steps), a .pt2 file of
    torch.export: its inputs, results, weights and operators, and with --show or --html what it
    compiles to, each open size at its least; or an ONNX file: of that inputs, outputs, and what
    runs where."""
    from weft.backends import registry

    if path.endswith(".onnx") and not (show or kernel or steps or html or onnx):
        from weft.cli.onnx import explain_onnx

        try:
            click.echo(explain_onnx(path, device, as_json))
            return
        except (DTypeError, LimitError):  # the report below lists the parts that it would run in
            if registry.get(device).is_host:
                raise
    bare = Path(path).suffix == ".pt2" and not (show or kernel or steps or html or onnx)
    if bare:
        click.echo(graphs.summary(graphs.imported(path), as_json))
        if as_json or registry.get(device).is_host:
            return
    show = show or ("report" if kernel is None else "kernels")
    if kernel is not None and show not in ("kernels", "source"):
        raise UsageError(f"--kernel picks among kernels, not from --show {show}; leave one out")
    whole = show == "graph" or (onnx is not None and show == "report")
    found = _explained(path, yes, target, whole, device=device, dtype=dtype, act_dtype=act_dtype)
    if bare and found.parts is None:
        return
    unknown = set(steps) - set(found.steps)
    if unknown:
        raise UsageError(f"no step {sorted(unknown)[0]!r}; this has {', '.join(found.steps)}")
    picked = {name: step for name, step in found.steps.items() if not steps or name in steps}
    if onnx is not None:
        from weft.cli import netron
        from weft.host.files import write_bytes

        write_bytes(onnx, netron.model(picked, show in ("kernels", "source")))
        click.echo(f"wrote {onnx}")
        return
    if html is not None:
        from weft.cli.explain_page import page
        from weft.host.files import write_text

        write_text(html, page(Path(path).name, found, picked))
        click.echo(f"wrote {html}")
        return
    shown = {
        n: _view(step, step.goal or found.goal, show, kernel, as_json) for n, step in picked.items()
    }
    if kernel is not None and not any(shown.values()):
        raise UsageError(
            f"no kernel named like {kernel!r}; to list them: {command('explain', path)}"
        )
    about: dict[str, Any] = {"file": found.facts} if found.facts else {}
    about |= {} if found.parts is None else {"parts": found.parts.data()}
    if as_json:
        click.echo(json.dumps({"device": found.goal.name, "show": show, **about, "steps": shown}))
        return
    if found.facts and show == "report":
        click.echo(table(("", ""), list(found.facts.items())) + "\n")
    if found.parts is not None and show == "report":
        click.echo(found.parts.text() + "\n")
    for view in filter(None, shown.values()):
        click.echo("\n".join(view.values()) if isinstance(view, dict) else view)


def _explained(
    path: str, yes: bool, target: str | None, whole: bool, **options: Any
) -> Explained:  # fmt: skip
    """The Explained form of the model or file that `path` names."""
    import weft
    from weft.backends import registry
    from weft.program.bundle import is_bundle

    file = Path(path)
    graph = None
    if file.suffix == ".json" and file.is_file():
        graph = explained.read_graph(file)
    elif file.suffix in IMPORTED:
        graph = graphs.traced(path, {}).graph  # its weights as weft compile takes them
        graph = replace(graph, meta={**graph.meta, "frozen": True})
    if graph is not None:
        device = explained.of_device(registry.get(options["device"]))
        goal = device if target is None else explained.of_target(target)
        return explained.of_graph(graph, goal, whole)
    compiled = is_bundle(file)
    if not compiled and not zipfile.is_zipfile(file):
        return explained.of_model(weft.load(model_path(path, yes), **options), target)
    if target is not None:
        raise UsageError(f"{path} is compiled: --target comes too late; compile the model for it")
    if compiled:
        return explained.of_bundle(file)
    return explained.of_program(file, registry.get(options["device"]))


def _view(step: Step, goal: Goal, show: str, kernel: str | None, as_json: bool) -> Any:
    """One step's report or graph as text (the report as data for JSON), or kernel name -> text."""
    from weft.graph.text import to_text
    from weft.kernel import printer

    if show == "graph":
        from weft.graph import serial

        if step.graph is None:
            raise UsageError("a compiled file holds no graph; --show graph takes the model itself")
        return serial.to_data(step.graph) if as_json else to_text(step.graph)
    program, report = step.make()
    if show == "report":
        return _report(program, report, goal, as_json)
    found = [k for k in program.kernels if kernel is None or kernel in k.name]
    render = printer.text if show == "kernels" else goal.source
    return {k.name: render(k) for k in found}


def _report(program: Program, report: Report | None, goal: Goal, as_json: bool) -> Any:
    """The compilation's report, and what its kernels take of the target."""
    from weft.backends.llvm import resources
    from weft.program.program import Library

    if report is None:
        said = f"{program.name}: {len(program.steps)} steps of {len(program.kernels)} kernels; "
        return {} if as_json else said + "no report was kept with it"
    offered = any(isinstance(step, Library) for step in program.steps)
    library = goal.library() if offered else ""
    if goal.resources is None:
        notes = [report.text(), library and f"library here: {library}", goal.missing]
        more = {"library": library} if library else {}
        return {**report.data(), **more} if as_json else "\n\n".join(filter(None, notes))
    found = goal.resources(program)
    if as_json:
        return {**report.data(), "resources": resources.data(found)}
    return f"{report.text()}\n\n{resources.text(found)}"
