"""From a traced graph to a Program: grouping, template selection, memory planning, report.

The names load when they are first used: a Program that comes from the disk needs no compiler.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.compile.passes import (
        compile_graph as compile_graph,
        simplify_graph as simplify_graph,
    )
    from weft.compile.report import CompileReport as CompileReport

__all__ = ["CompileReport", "compile_graph", "simplify_graph"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from weft.core.missing import missing

        raise missing(__name__, name)
    from weft.compile import passes, report

    return getattr(report if name == "CompileReport" else passes, name)
