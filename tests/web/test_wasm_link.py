"""Our linker of WebAssembly: constants find their place, and what it does not know it refuses."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess

import llvmlite.binding as llvm
import pytest
from page_kit import need

from weft.backends.llvm import wasm_link
from weft.backends.llvm.optimise import LLVM
from weft.backends.llvm.wasm import TRIPLE
from weft.core.errors import CompileError

TABLES = """
@squares = private constant [5 x i32] [i32 0, i32 1, i32 4, i32 9, i32 16]
@third = private constant ptr getelementptr (i8, ptr @squares, i32 12)
@names = private constant [2 x i8] c"ab"
define i32 @square(i32 %n) {
  %at = getelementptr [5 x i32], ptr @squares, i32 0, i32 %n
  %v = load i32, ptr %at
  ret i32 %v
}
define i32 @nine() {
  %p = load volatile ptr, ptr @third
  %v = load i32, ptr %p
  %s = call i32 @square(i32 %v)
  %letter = load volatile i8, ptr getelementptr (i8, ptr @names, i32 1)
  %w = zext i8 %letter to i32
  %r = shl i32 %w, 8
  %sum = or i32 %r, %v
  ret i32 %sum
}
"""
PLAY = """
const [code, base] = [Buffer.from(process.argv[1], "base64"), Number(process.argv[2])];
const env = { __linear_memory: new WebAssembly.Memory({ initial: 2, maximum: 9 }),
  __stack_pointer: new WebAssembly.Global({ value: "i32", mutable: true }, 65536) };
const { exports } = (await WebAssembly.instantiate(code, { env })).instance;
const used = new Uint8Array(env.__linear_memory.buffer).findIndex((b) => b);
console.log(JSON.stringify([[0, 1, 2, 3, 4].map(exports.square), exports.nine(), used >= base]));
"""


def compiled(text: str) -> bytes:
    with LLVM:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
            cpu="generic", features="", opt=0, reloc="static", codemodel="default"
        )
        module = llvm.parse_assembly(f'target triple = "{TRIPLE}"\n{text}')
        module.data_layout = str(machine.target_data)
        return bytes(machine.emit_object(module))


@pytest.mark.parametrize("base", [1024, 70_000])
def test_constants_lie_where_they_are_put(base: int) -> None:
    need()
    code, size, _ = wasm_link.link(compiled(TABLES), ["nine", "square"], base)
    assert size >= 26
    given = [base64.b64encode(code).decode(), str(base)]
    node = [str(shutil.which("node")), "--input-type=module", "-e", PLAY, *given]
    out = subprocess.run(node, capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == [[0, 1, 4, 9, 16], ord("b") << 8 | 9, True]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@x = external global i32\ndefine ptr @f() { ret ptr @x }", "lacks the data 'x'"),
        ("define void @f(ptr %p) { call void %p()\n ret void }", "relocation of type"),
        ("define ptr @f() { ret ptr @f }", "relocation of type"),
        ("define void @g() { ret void }", "not as expected: KeyError"),
    ],
    ids=["data of others", "a call by address", "a function's address", "no such function"],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        wasm_link.link(compiled(text), ["f"], 1024)


def test_other_objects_are_refused() -> None:
    with pytest.raises(CompileError, match="no WebAssembly object"):
        wasm_link.link(b"\x7fELF" + bytes(60), [], 1024)
