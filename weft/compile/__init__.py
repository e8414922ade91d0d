"""From a traced graph to a Program: grouping, template selection, memory planning, report."""

from weft.compile.passes import compile_graph, simplify_graph
from weft.compile.report import Report

__all__ = ["Report", "compile_graph", "simplify_graph"]
