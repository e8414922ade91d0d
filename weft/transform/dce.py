"""Dead code: what no output and no state assignment needs."""

from __future__ import annotations

from weft.graph.ir import Graph, toposort


def dce(graph: Graph) -> Graph:
    """The graph without unused weights and states, and without assignments that change nothing.

    Inputs and scalars stay even when unused: they are the call signature.
    """
    assigns = tuple((state, new) for state, new in graph.assigns if state is not new)
    live = {id(n) for n in toposort((*graph.outputs, *(new for _, new in assigns)))}
    live |= {id(state) for state, _ in assigns}
    inputs = tuple(
        x for x in graph.inputs if id(x) in live or x.attrs["role"] in ("input", "scalar")
    )
    return Graph(inputs, graph.outputs, assigns, graph.name, graph.meta)
