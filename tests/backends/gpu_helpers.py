"""What takes the place of a GPU's simpler intrinsics in the emulator: see gpu_emulator."""

from __future__ import annotations

import re

HELPERS = """
define internal void @emu_copy(
    ptr %s, i32 %me, i32 %size, ptr addrspace(3) %to, ptr addrspace(1) %from, i32 %count
) noinline {
  %at = getelementptr ptr, ptr %s, i64 5
  %note = load ptr, ptr %at
  call void %note(i32 %me, i32 %size, ptr addrspace(3) %to, ptr addrspace(1) %from, i32 %count)
  ret void
}
define internal i32 @emu_pick(ptr %s, i32 %me, i32 %from, i32 %v) noinline convergent {
  %at = getelementptr ptr, ptr %s, i64 2
  %all = load ptr, ptr %at
  %mine = getelementptr i32, ptr %all, i32 %me
  store i32 %v, ptr %mine
  call void @emu_sync(ptr %s)
  %other = getelementptr i32, ptr %all, i32 %from
  %r = load i32, ptr %other
  call void @emu_sync(ptr %s)
  ret i32 %r
}
"""


def dot(name: str, grow: str) -> str:
    """c + the four products of a's and b's bytes."""
    lines = [f"define internal i32 @{name}(i32 %a, i32 %b, i32 %c) {{"]
    lines += [f"  %{v}8 = bitcast i32 %{v} to <4 x i8>" for v in "ab"]
    lines += [f"  %aw = {grow} <4 x i8> %a8 to <4 x i32>", "  %bw = sext <4 x i8> %b8 to <4 x i32>"]
    lines += ["  %p = mul <4 x i32> %aw, %bw"]
    total = "%c"
    for i in range(4):
        lines.append(f"  %e{i} = extractelement <4 x i32> %p, i32 {i}")
        lines.append(f"  %s{i} = add i32 {total}, %e{i}")
        total = f"%s{i}"
    return "\n".join([*lines, f"  ret i32 {total}", "}"])


def reduced(call: re.Match[str]) -> str:
    """A reduction over 32 threads, by exchanges."""
    out, op, value = call.groups()
    lines = []
    for distance in (16, 8, 4, 2, 1):
        name = f"{out}.{distance}"
        lines.append(f"{name}.from = xor i32 %me, {distance}")
        args = f"ptr %sync, i32 %me, i32 {name}.from, i32 {value}"
        lines.append(f"{name}.other = call i32 @emu_pick({args})")
        if op == "add":
            lines.append(f"{name} = add i32 {value}, {name}.other")
        else:
            sign = {"max": "sgt", "umax": "ugt"}[op]
            lines.append(f"{name}.more = icmp {sign} i32 {value}, {name}.other")
            lines.append(f"{name} = select i1 {name}.more, i32 {value}, i32 {name}.other")
        value = name
    return "\n  ".join([*lines, f"{out} = add i32 {value}, 0"])
