"""Writes docs/coverage.md: PyTorch's table of operators, its samples run by weft.torch too.

python scripts/torch_coverage.py          # a few minutes
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "pytorch")]

import operators  # noqa: E402
import uncovered  # noqa: E402

TEXT = """# Coverage of PyTorch

`import weft.torch as torch` gives PyTorch's names. Its test is the table by which PyTorch tests its
own operators (`op_db` of torch {version}). PyTorch and weft.torch run every sample on the CPU, in
{dtypes}. Results must have the
same dtype, shape and numbers; those of float32 also the same gradients.
`python scripts/torch_coverage.py` wrote this page. `sh scripts/test -m slow tests/pytorch` repeats
the comparison; the default suite takes a few samples of each name.

- Names: **{covered} of {names}** have a counterpart.
- Samples of these: **{passed:,} of {total:,}** agree ({share:.2f} %). weft.torch refuses
  {refused:,} with a named error, and gives another result for {wrong:,}.
- {foreign:,} samples are left out: they hold what weft has nowhere (complex numbers, sparse
  tensors), or PyTorch refuses them.

Among equal elements (`sort`, `topk`, `mode`) any index counts. float16 and bfloat16 agree with
PyTorch's result in that dtype or with its float32 result rounded once, gradients with PyTorch's in
float32 or in float64. Resized bytes may differ by 2, since PyTorch weighs them by fixed-point
numbers. Random results are compared by shape and dtype. PyTorch's gradient of
`as_strided_scatter` is not compared: it is that of the elements that are overwritten. Nor is that
of `linalg.pinv` with `hermitian`, whose samples are not symmetric.

## Samples that do not agree

| name | samples | refused | other | reason |
| --- | --- | --- | --- | --- |
{partly}

## Names without a counterpart

| names | reason |
| --- | --- |
{missing}

## Names covered

Each name with the number of its samples that agree.

{whole}
"""


def main() -> None:
    found: dict[str, operators.Outcome] = {}
    missing: list[str] = []
    for name, entries in operators.operators().items():
        if any(map(operators.counterpart, entries)):
            found[name] = operators.whole(name)
        else:
            missing.append(name)
    (ROOT / "docs" / "coverage.md").write_text(page(found, missing), encoding="utf-8")


def page(found: dict[str, operators.Outcome], missing: list[str]) -> str:
    every = operators.Outcome()
    for each in found.values():
        every.add(each)
    partly = [
        f"| `{name}` | {x.total:,} | {len(x.refused)} | {len(x.wrong)} | {_why(name, x)} |"
        for name, x in found.items()
        if x.refused or x.wrong
    ]
    grouped: dict[str, list[str]] = {}
    for name in missing:
        grouped.setdefault(uncovered.reason(name), []).append(f"`{name}`")
    return TEXT.format(
        version=operators.torch.__version__.partition("+")[0],
        dtypes=", ".join(operators.DTYPES[d] for d in operators.TESTED),
        covered=len(found), names=len(found) + len(missing), passed=every.passed,
        total=every.total, share=100 * every.passed / every.total, refused=len(every.refused),
        wrong=len(every.wrong), foreign=every.foreign,
        partly="\n".join(partly) or "| none | | | | |",
        missing="\n".join(f"| {', '.join(n)} | {why} |" for why, n in sorted(grouped.items())),
        whole=", ".join(f"`{name}` {x.passed:,}" for name, x in found.items()) + ".",
    )  # fmt: skip


def _why(name: str, found: operators.Outcome) -> str:
    known = uncovered.PARTLY.get(name)
    if known:
        return str(known)
    first = str(found.wrong or found.refused)[0].partition(": ")[2]
    return first.replace("|", "/")[:90]


if __name__ == "__main__":
    main()
