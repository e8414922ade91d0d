"""Random changes of a Program's document, for program_fuzz."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Kernel
from weft.kernel.printer import kernel_hash
from weft.program import kernel_json

Rng = np.random.Generator

Spot = tuple[Any, Any]  # a list or dict, and where in it

NUMBERS = [0, 1, -1, 2, 3, 7, 16, 64, 255, 4096, 1 << 16, 1 << 30, (1 << 31) - 1, -(1 << 31)]


def nodes(value: Any, name: str = "") -> Iterator[tuple[Spot, list[Any]]]:
    """Every node in a body, and where it stands."""
    if isinstance(value, list):
        for n, inner in enumerate(value):
            if isinstance(inner, list):
                if inner and isinstance(inner[0], str) and inner[0]:
                    yield (value, n), inner
                yield from nodes(inner)


def number(old: int, rng: Rng) -> int:
    """Another number, often one nearby."""
    near = [old + 1, old - 1, old * 2, old // 2, -old, old + 16, old - 16, old + 100]
    return int(rng.choice(near if rng.random() < 0.7 else NUMBERS))


def places(kind: str, names: tuple[str, ...]) -> list[int]:
    """Where in the list of a node these fields stand."""
    every = [f.name for f in fields(kernel_json._NODES[kind])]
    return [every.index(name) + 1 for name in names]


def change_number(body: Any, rng: Rng) -> None:
    spots = []
    for _, node in nodes(body):
        for names in (("value",), ("size",), ("step",), ("stride",), ("rows",), ("cols",), ("dim",),
                      ("slot",), ("attr",), ("barriers",)):  # fmt: skip
            for name in names:
                if name in kernel_json._FIELDS[node[0]]:
                    at = places(node[0], (name,))[0]
                    if type(node[at]) is int:
                        spots.append((node, at))
    if spots:
        node, at = spots[rng.integers(len(spots))]
        node[at] = number(node[at], rng)


def change_operator(body: Any, rng: Rng) -> None:
    found = [node for _, node in nodes(body) if node[0] == "Binary"]
    if found:
        node = found[rng.integers(len(found))]
        arith = ir.COMPARE if node[1] in ir.COMPARE else ir.ARITH
        node[1] = str(rng.choice(arith))


def change_expression(body: Any, rng: Rng) -> None:
    """One expression in the place of another of its type."""
    typed: dict[str, list[tuple[Spot, list[Any]]]] = {}
    for spot, node in nodes(body):
        names = kernel_json._FIELDS[node[0]]
        if "type" in names:
            typed.setdefault(node[names.index("type") + 1], []).append((spot, node))
    kinds = [kind for kind, found in typed.items() if len(found) > 1]
    if kinds:
        kind = "int32" if "int32" in kinds and rng.random() < 0.7 else str(rng.choice(kinds))
        found = typed[kind]
        (owner, at), _ = found[rng.integers(len(found))]
        owner[at] = copy.deepcopy(found[rng.integers(len(found))][1])


def change_lanes(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] in ("Load", "Vec", "Const", "Cast", "Binary")]
    if found:
        node = found[rng.integers(len(found))]
        at = kernel_json._FIELDS[node[0]].index("type") + 1
        dtype = node[at].partition("x")[0]
        node[at] = str(
            rng.choice([dtype, f"{dtype}x2", f"{dtype}x8", f"{dtype}x16", f"{dtype}x32"])
        )


def drop_mask(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] in ("Load", "Store") and n[4] is not None]
    if found:
        found[rng.integers(len(found))][4] = None


def change_source(body: Any, rng: Rng) -> None:
    """Another buffer or array in an access."""
    found = [n for _, n in nodes(body) if n[0] in ("Load", "Store", "TileOp", "Prefetch")]
    names = [n[1] for n in found if n[0] != "TileOp"]
    if found and names:
        node = found[rng.integers(len(found))]
        node[3 if node[0] == "TileOp" else 1] = str(rng.choice(names))


def change_statements(body: Any, rng: Rng) -> None:
    """One statement less, twice, or two in the other order."""
    blocks = [node[1] for _, node in nodes([body]) if node[0] == "Block" and len(node[1]) > 2]
    if not blocks:
        return
    block = blocks[rng.integers(len(blocks))]
    at, kind = int(rng.integers(1, len(block))), rng.integers(3)
    if kind == 0:
        del block[at]
    elif kind == 1:
        block.insert(at, copy.deepcopy(block[at]))
    else:
        other = int(rng.integers(1, len(block)))
        block[at], block[other] = block[other], block[at]


def change_loop(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] == "For"]
    if found:
        node = found[rng.integers(len(found))]
        kind = rng.integers(3)
        if kind == 0:
            node[6] = not node[6]
        else:
            node[1 + int(kind)] = ["Const", number(16, rng), "int32"]


def open_condition(body: Any, rng: Rng) -> None:
    found = [n for _, n in nodes(body) if n[0] == "If"]
    if found:
        found[rng.integers(len(found))][1] = ["Const", bool(rng.integers(2)), "bool"]


BODY = [
    change_number, change_number, change_number, change_number, change_operator, change_operator,
    change_expression, change_expression, change_lanes, drop_mask, change_source,
    change_statements, change_loop, open_condition,
]  # fmt: skip


def change_head(doc: dict[str, Any], rng: Rng) -> None:
    """Sizes, accesses, grids and threads of a kernel; places of steps; buffers; order."""
    head = doc["head"]
    kernel = head["kernels"][rng.integers(len(head["kernels"]))]
    kind = rng.integers(8)
    if kind == 0:
        axis = int(rng.integers(3))
        kernel["grid"][axis] = ["Const", number(3, rng), "int32"]
    elif kind == 1:
        kernel["threads"][int(rng.integers(3))] = number(kernel["threads"][0], rng)
    elif kind == 2:
        buffer = kernel["buffers"][rng.integers(len(kernel["buffers"]))]
        which = int(rng.integers(3))
        buffer[1 + which] = [
            str(rng.choice(["float32", "int32", "uint8", "bfloat16"])), number(buffer[2], rng),
            str(rng.choice(["r", "w", "rw"])),
        ][which]  # fmt: skip
    elif kind == 3 and len(head["steps"]) > 1:
        a, b = rng.integers(len(head["steps"]), size=2)
        head["steps"][a], head["steps"][b] = head["steps"][b], head["steps"][a]
    elif kind == 4:
        buffer = head["buffers"][rng.integers(len(head["buffers"]))]
        what = rng.integers(3)
        if what == 0:
            buffer[1] = str(rng.choice(["input", "output", "state", "weight", "const", "arena"]))
        elif what == 1:
            buffer[4] = number(buffer[4], rng)
        elif buffer[3]:
            buffer[3][0] = number(buffer[3][0], rng)
            buffer[4] = int(np.prod(buffer[3])) * dt.as_dtype(buffer[2]).itemsize
    elif kind == 5:
        step = head["steps"][rng.integers(len(head["steps"]))]
        ref = step[2][rng.integers(len(step[2]))] if step[0] == "dispatch" else step[1]
        ref[int(rng.integers(3))] = number(ref[int(rng.integers(3))], rng)
    elif kind == 6:
        shrink(head, kernel, rng)
    else:
        step = head["steps"][rng.integers(len(head["steps"]))]
        if step[0] == "dispatch":
            step[1] = number(step[1], rng)


def shrink(head: dict[str, Any], kernel: dict[str, Any], rng: Rng) -> None:
    """A buffer of a kernel made smaller, honestly everywhere."""
    which = int(rng.integers(len(kernel["buffers"])))
    _, dtype, size, _ = kernel["buffers"][which]
    smaller = int(rng.integers(max(size, 1)))
    kernel["buffers"][which][2] = smaller
    index = head["kernels"].index(kernel)
    for step in head["steps"]:
        if step[0] == "dispatch" and step[1] == index and which < len(step[2]):
            step[2][which][2] = smaller * dt.as_dtype(dtype).itemsize


def changed(doc: dict[str, Any], rng: Rng) -> dict[str, Any]:
    doc = copy.deepcopy(doc)
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.25:
            change_head(doc, rng)
        else:
            bodies = doc["bodies"]
            BODY[rng.integers(len(BODY))]([bodies[rng.integers(len(bodies))]], rng)
    seal(doc)
    return doc


def seal(doc: dict[str, Any]) -> None:
    """Writes the digest that each kernel has now, where it is one at all."""
    for head, body in zip(doc["head"]["kernels"], doc["bodies"]):
        try:
            lazy = kernel_json.read_kernel(
                head, functools.partial(json.dumps, body), len(doc["head"]["scalars"]), trusted=True
            )
            whole = Kernel(**{f.name: getattr(lazy, f.name) for f in fields(Kernel)})
            head["digest"] = kernel_hash(whole)
        except Exception:
            continue  # no kernel any more: the loader will say so
