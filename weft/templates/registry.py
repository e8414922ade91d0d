"""The templates by kind of group, and the composites that each template claims.

A template module registers itself when it is imported:

    @template("map")
    def build_map(group, caps, config): ...

    @claims("softmax", kind="norm")
    def claim_softmax(node, caps): return node.shape[-1] <= 65536

Modules are imported only when their kind or composite is first needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node, results
from weft.templates.group import Group, Template

Claim = Callable[[Node, Caps], bool]  # does the template take this "call" node on these Caps?

MODULES: dict[str, str] = {
    "map": "weft.templates.map",
    "barrier": "weft.templates.map",
    "reduce": "weft.templates.rows.reduce",
    "norm": "weft.templates.rows.norm",
    "quantize": "weft.templates.quantize",
    "scan": "weft.templates.scan.scan",
    "scatter": "weft.templates.scatter",
    "sort": "weft.templates.sort",
    "matmul": "weft.templates.product.blocked",
    "matvec": "weft.templates.product.stream",
    "attention": "weft.templates.attention.choice",
    "attention_grad": "weft.templates.attention.choice",
    "cached_attention": "weft.templates.attention.choice",
    "recurrence": "weft.templates.recurrence",
    "conv": "weft.templates.conv.choice",
    "own": "weft.templates.own",
    "pointwise": "weft.templates.pointwise",
}

# composite name -> kind of the template that may claim it
COMPOSITES: dict[str, str] = {
    "barrier": "barrier",
    "prod": "reduce",
    "skewed": "map",
    "dequantize": "map",
    "first_rows": "map",
    "quantize": "quantize",
    "rescale": "map",
    "scan": "scan",
    "scan_totals": "scan",
    "scan_carries": "scan",
    "scan_joined": "scan",
    "scan_blocks": "scan",
    "softmax": "norm",
    "log_softmax": "norm",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "cross_entropy": "norm",
    "moments": "norm",
    "rms_scale": "norm",
    "softmax_grad": "norm",
    "log_softmax_grad": "norm",
    "layer_norm_grad": "norm",
    "rms_norm_grad": "norm",
    "cross_entropy_grad": "norm",
    "norm_weight_grads": "norm",
    "attention": "attention",
    "attention_grad": "attention_grad",
    "attention_lse": "attention",
    "attention_dq": "attention_grad",
    "attention_dkv": "attention_grad",
    "cached_attention": "cached_attention",
    "cached_attention_parts": "cached_attention",
    "attention_merge": "cached_attention",
    "recurrence": "recurrence",
    "conv_last": "conv",
    "depthwise_last": "conv",
    "winograd_last": "conv",
    "conv_codes_last": "conv",
    "depthwise_codes_last": "conv",
    "own": "own",
    "pointwise": "pointwise",
}

_TEMPLATES: dict[str, Template] = {}
_CLAIMS: dict[str, Claim] = {}


def template(kind: str) -> Callable[[Template], Template]:
    """Registers the decorated function as the template of `kind`; a second one is a bug."""

    def add(fn: Template) -> Template:
        if kind in _TEMPLATES:
            raise ValueError(f"template {kind!r} is registered twice")
        MODULES.setdefault(kind, fn.__module__)
        _TEMPLATES[kind] = fn
        return fn

    return add


def claims(*names: str, kind: str) -> Callable[[Claim], Claim]:
    """Registers the decorated predicate for the composites `names`, computed by template `kind`.

    A composite listed in COMPOSITES whose module registers no predicate is always claimed.
    """

    def add(fn: Claim) -> Claim:
        for name in names:
            COMPOSITES[name] = kind
            _CLAIMS[name] = fn
        return fn

    return add


def get(kind: str) -> Template:
    """The template of `kind`. Raises CompileError when there is none."""
    if kind not in _TEMPLATES and kind in MODULES:
        importlib.import_module(MODULES[kind])
    if kind not in _TEMPLATES:
        known = ", ".join(sorted(MODULES))
        raise CompileError(f"no template of kind {kind!r}; known kinds: {known}")
    return _TEMPLATES[kind]


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """The configurations that the group's template may be given besides its default, from the
    module's own `candidates(group, caps)`; none where it has no such function."""
    get(group.kind)
    listed = getattr(importlib.import_module(MODULES[group.kind]), "candidates", None)
    return [] if listed is None else list(listed(group, caps))


def tunable() -> list[str]:
    """The kinds of weft's own templates that list candidates (a user's kernel has its `tune`)."""
    ours = ((kind, module) for kind, module in MODULES.items() if kind != "own")
    found = ((kind, importlib.import_module(module)) for kind, module in ours)
    return [kind for kind, module in found if hasattr(module, "candidates")]


def claimed_by(node: Node, caps: Caps) -> str | None:
    """Returns the kind of the template that takes this "call" node whole, or None to inline its
    body. Templates do not take calls with empty operands and non-empty results. There the body
    defines the results, and folding computes them."""
    sizes = [x.size for x in results(node)]
    if any(sizes) and not all((*sizes, *(x.size for x in node.inputs))):
        return None
    name = node.attrs.get("name")
    kind = COMPOSITES.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    get(kind)
    predicate = _CLAIMS.get(name)  # type: ignore[arg-type]
    return kind if predicate is None or predicate(node, caps) else None
