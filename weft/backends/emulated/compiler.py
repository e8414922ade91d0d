"""A child process of build.TargetBuilder: LLVM IR → objects. LLVM's back ends for rare machines end
the process by an assertion when they meet something unknown.

The first request says for which machine; each other is a module of text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm

from weft.backends.llvm.optimise import emitted, optimised

_made: list[llvm.TargetMachine] = []


def handle(request: Mapping[str, Any]) -> str:
    """The relocatable object in base64 ("" of the first request). Raises CompileError."""
    if not _made:
        for option in request["options"]:
            llvm.set_option("", option)
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(request["triple"])
        machine = target.create_target_machine(
            cpu=request["cpu"], features=request["features"], opt=3, reloc="static",
            codemodel="small",
        )  # fmt: skip
        _made.append(machine)
        return ""
    (machine,) = _made
    module = optimised(request["text"], machine, request["name"], level=2, loops=False)
    return base64.b64encode(emitted(module, machine)).decode()
