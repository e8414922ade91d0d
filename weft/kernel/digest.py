"""The digest of a kernel: the key under which its machine code is kept."""

from __future__ import annotations

from weft.kernel.ir import Kernel


def digest(kernel: Kernel) -> str:
    """Returns the kernel_hash of a kernel: the one stored with it, or a new one from its printed
    text."""
    found: str | None = getattr(kernel, "digest", None)
    if found is None:
        from weft.kernel.printer import kernel_hash

        found = kernel_hash(kernel)
    return found
