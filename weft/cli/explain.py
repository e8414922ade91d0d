"""`weft explain`: one function per kind of input makes an Explained, which a View shows."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import explained, functions, graphs, options
from weft.cli.explained import Explained, ExplainedStep, Goal
from weft.cli.loading import Loading, loads
from weft.core.errors import DTypeError, LimitError, UsageError
from weft.core.hints import command
from weft.core.text import table

if TYPE_CHECKING:
    from weft.compile.report import CompileReport
    from weft.program.program import Program

VIEWS = ("report", "graph", "kernels", "source")


@click.command(epilog="Example:  weft explain MODEL --step decode --show source --kernel matvec")
@click.argument("path", metavar="MODEL", type=click.Path())
@loads("device", "dtype", "act_dtype")
@click.option("--target", help="Compile for this GPU architecture instead (sm_90, gfx942, ...), "
              "also without such a GPU. The report then has the resources that each kernel uses."
              )  # fmt: skip
@click.option(
    "--step",
    "steps",
    multiple=True,
    help="Show only this step: prefill, decode or encode. May be repeated.",
)
@click.option("--show", type=click.Choice(VIEWS),
              help="What to show: the report (default), the traced graph, Kernel IR (default with "
              "--kernel), or the source code for the device.")  # fmt: skip
@click.option("--kernel", help="Show only kernels whose name contains this.")
@click.option("--html", type=click.Path(dir_okay=False),
              help="Write a self-contained HTML page: launches, memory over time, weights, "
              "kernels with their source.")  # fmt: skip
@click.option("--onnx", type=click.Path(dir_okay=False),
              help="Write an ONNX file to view in Netron: the graph, or with --show kernels the "
              "launches.")  # fmt: skip
@options.as_json
def explain(path: str, target: str | None, loading: Loading, **given: Any) -> None:
    """Show what MODEL compiles to, from the graph to the source code of its kernels. MODEL is a
    folder, a GGUF file, ORG/NAME, a file that `weft compile` or Program.save wrote, or a graph as
    JSON (printed by --show graph --json under steps).

    For a .pt2 file of torch.export it shows inputs, results, weights and operators, or with --show
    or --html the Program for the smallest allowed sizes. For an ONNX file it shows inputs, outputs,
    and the device of each operator."""
    view = ExplainOptions(**given)
    found = _kind(Path(path))(path, loading, target, view)
    if found is not None:
        view.write(path, found)


@dataclass(frozen=True)
class ExplainOptions:
    """The options that choose what is shown, and as what."""

    steps: tuple[str, ...]
    show: str | None
    kernel: str | None
    html: str | None
    onnx: str | None
    as_json: bool

    def __post_init__(self) -> None:
        if self.kernel is not None and self.topic not in ("kernels", "source"):
            raise UsageError(
                f"--kernel picks among kernels, not from --show {self.topic}; leave one out"
            )

    @property
    def bare(self) -> bool:
        """True if nothing was chosen: a file of another framework then shows what is in it."""
        return not (self.show or self.kernel or self.steps or self.html or self.onnx)

    @property
    def topic(self) -> str:
        """The one of VIEWS that is shown."""
        return self.show or ("report" if self.kernel is None else "kernels")

    @property
    def whole(self) -> bool:
        """True if the graph itself is shown, which is not divided between devices then."""
        return self.topic == "graph" or (self.onnx is not None and self.topic == "report")

    def write(self, path: str, found: Explained) -> None:
        """Writes the steps that were chosen, to a file or as text."""
        unknown = sorted({*self.steps} - {*found.steps})
        if unknown:
            raise UsageError(f"no step {unknown[0]!r}; this has {', '.join(found.steps)}")
        steps = {n: step for n, step in found.steps.items() if not self.steps or n in self.steps}
        if self.onnx is not None:
            from weft.cli import netron
            from weft.host.files import write_bytes

            write_bytes(self.onnx, netron.model(steps, self.topic in ("kernels", "source")))
            click.echo(f"wrote {self.onnx}")
        elif self.html is not None:
            from weft.cli.explain_page import page
            from weft.host.files import write_text

            write_text(self.html, page(Path(path).name, found, steps))
            click.echo(f"wrote {self.html}")
        else:
            self._print(path, found, steps)

    def _print(self, path: str, found: Explained, steps: Mapping[str, ExplainedStep]) -> None:
        shown = {n: _view(step, step.goal or found.goal, self) for n, step in steps.items()}
        if self.kernel is not None and not any(shown.values()):
            raise UsageError(
                f"no kernel named like {self.kernel!r}; to list them: {command('explain', path)}"
            )
        if self.as_json:
            about: dict[str, Any] = {"file": found.facts} if found.facts else {}
            about |= {} if found.parts is None else {"parts": found.parts.data()}
            made = {"device": found.goal.name, "show": self.topic, **about, "steps": shown}
            return click.echo(json.dumps(made))
        if found.facts and self.topic == "report":
            click.echo(table(("", ""), list(found.facts.items())) + "\n")
        if found.parts is not None and self.topic == "report":
            click.echo(found.parts.text() + "\n")
        for view in filter(None, shown.values()):
            click.echo("\n".join(view.values()) if isinstance(view, dict) else view)


# -- kinds of input: each function returns None if it has printed all that was asked for -----------


def _kind(file: Path) -> Callable[[str, Loading, str | None, ExplainOptions], Explained | None]:
    """Returns the function that explains this kind of file or model."""
    from weft.program.bundle import is_bundle

    if file.suffix in (".onnx", ".pt2"):
        return _onnx if file.suffix == ".onnx" else _torch
    if file.suffix == ".json" and file.is_file():
        return _json
    if is_bundle(file):
        return _bundle
    return _program if zipfile.is_zipfile(file) else _model


def _onnx(
    path: str, loading: Loading, target: str | None, view: ExplainOptions
) -> Explained | None:
    """An ONNX file. Without a view it runs once with random inputs, open sizes 1."""
    if view.bare:
        try:
            done = functions.played(path, (), (), loading.device)
        except (DTypeError, LimitError):  # the report lists the parts that it would run in
            if _on_host(loading):
                raise
        else:
            found, report = functions.facts(done), done.function.report()
            text = f"{functions.shown(found)}\n\n{report}"
            click.echo(json.dumps(found | {"report": report}) if view.as_json else text)
            return None
    return _imported(path, loading, target, view)


def _torch(
    path: str, loading: Loading, target: str | None, view: ExplainOptions
) -> Explained | None:
    """A file of torch.export. Without a view its content is listed, and the parts that another
    device than the CPU would run it in."""
    if not view.bare:
        return _imported(path, loading, target, view)
    click.echo(graphs.summary(graphs.imported(path), view.as_json))
    if view.as_json or _on_host(loading):
        return None
    found = _imported(path, loading, target, view)
    return None if found.parts is None else found


def _imported(path: str, loading: Loading, target: str | None, view: ExplainOptions) -> Explained:
    graph = graphs.traced(path, {}).graph  # its weights as weft compile takes them
    graph = replace(graph, meta={**graph.meta, "frozen": True})
    return explained.of_graph(graph, _goal(loading, target), view.whole)


def _json(path: str, loading: Loading, target: str | None, view: ExplainOptions) -> Explained:
    graph = explained.read_graph(Path(path))
    return explained.of_graph(graph, _goal(loading, target), view.whole)


def _bundle(path: str, loading: Loading, target: str | None, view: ExplainOptions) -> Explained:
    _refuse(path, target)
    return explained.of_bundle(Path(path))


def _program(path: str, loading: Loading, target: str | None, view: ExplainOptions) -> Explained:
    from weft.backends import registry

    _refuse(path, target)
    return explained.of_program(Path(path), registry.get(loading.device))


def _model(path: str, loading: Loading, target: str | None, view: ExplainOptions) -> Explained:
    return explained.of_model(loading.load(path), target)


def _refuse(path: str, target: str | None) -> None:
    if target is not None:
        raise UsageError(
            f"{path} is compiled already, so --target does not apply; explain "
            "the model itself for another target"
        )


def _goal(loading: Loading, target: str | None) -> Goal:
    from weft.backends import registry

    here = registry.get(loading.device)
    return explained.of_device(here) if target is None else explained.of_target(target)


def _on_host(loading: Loading) -> bool:
    from weft.backends import registry

    return registry.get(loading.device).is_host


# -- views -----------------------------------------------------------------------------------------


def _view(step: ExplainedStep, goal: Goal, view: ExplainOptions) -> Any:
    """One step's report or graph as text (the report as data for JSON), or kernel name -> text."""
    from weft.graph.text import to_text
    from weft.kernel import printer

    if view.topic == "graph":
        from weft.graph import serial

        if step.graph is None:
            raise UsageError("a compiled file holds no graph; --show graph takes the model itself")
        return serial.to_data(step.graph) if view.as_json else to_text(step.graph)
    program, report = step.make()
    if view.topic == "report":
        return _report(program, report, goal, view.as_json)
    found = [k for k in program.kernels if view.kernel is None or view.kernel in k.name]
    render = printer.text if view.topic == "kernels" else goal.source
    return {k.name: render(k) for k in found}


def _report(program: Program, report: CompileReport | None, goal: Goal, as_json: bool) -> Any:
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
