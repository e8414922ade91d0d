"""pointwise: the kernel of a call of "pointwise" is the map of what its body computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.core.caps import Caps
from weft.graph.ir import Node, results
from weft.kernel.ir import Kernel
from weft.templates.group import Group
from weft.templates.map import build_map
from weft.templates.registry import claimed_by, claims, template
from weft.transform.inline import expand


@claims("pointwise", kind="pointwise")
def claim_pointwise(node: Node, caps: Caps) -> bool:
    """Refuses a call with more buffers than a kernel may have; then its body is grouped as other
    work."""
    return len(node.inputs) + len(results(node)) <= caps.max_bindings


@template("pointwise")
def build_pointwise(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group whose anchor is a call of "pointwise". config: as of "map"."""
    assert group.anchor is not None
    outputs = expand(group.anchor, lambda node: claimed_by(node, caps) is not None)
    return build_map(replace(group, kind="map", anchor=None, outputs=tuple(outputs)), caps, config)
