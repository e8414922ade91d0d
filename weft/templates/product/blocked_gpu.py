"""Matrix multiplication in many threads: picks the variant for the target.

- matmul_units: 16-bit operands where subgroups have matrix units. config: rows, columns, bk, down,
  across.
- matmul_shared: blocks in shared memory, where barriers are cheap. config: rows, columns, bk, tm,
  tn.
- matmul_direct: every thread for itself, where they are dear. config: side.

The variant follows from the target and from the operands' dtypes, never from the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.templates.group import Group
from weft.templates.product import blocked_direct, blocked_shared, blocked_units
from weft.templates.product.problem import Problem


def build(group: Group, p: Problem, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a target with many threads per group."""
    return _variant(p, caps).build(group, p, caps, config)


def candidates(p: Problem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring on the target, whichever its variant is."""
    found: list[dict[str, Any]] = _variant(p, caps).candidates(p, caps)
    return found


def _variant(p: Problem, caps: Caps) -> Any:
    if blocked_units.suits(p, caps):
        return blocked_units
    return blocked_shared if caps.cheap_barrier else blocked_direct
