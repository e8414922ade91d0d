"""The chip, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.caps import Caps

_HUGE = 1 << 40


@dataclass(frozen=True)
class Machine:
    """One core of four engines that work at the same time, each on what it is given:

    - the array: `rows` x `cols` cells, each with a sum of its own (output stationary), which a
      cycle gives `operand_bytes` of either operand: one product of bf16, two of int8, half a
      product of f32;
    - the vector unit: registers of `lanes` times 32 bits, one operation a cycle on whatever fills
      one, `slow` cycles for a division or a root, a cycle a lane to gather or scatter;
    - the scalar unit: addresses, loops and all else without lanes, one operation a cycle;
    - the DMA: `dma_bytes` a cycle between memory and the scratchpad, in whole, aligned groups of
      `channel` bytes; `latency` cycles before a first byte arrives.

    `scratchpad` bytes hold a kernel's own arrays and, in what is left, a window for each of its
    buffers. There are no threads and no barriers.
    """

    rows: int = 16
    cols: int = 16
    operand_bytes: int = 2
    lanes: int = 16
    slow: int = 8
    scratchpad: int = 512 << 10
    channel: int = 64
    dma_bytes: int = 32
    latency: int = 100

    @property
    def array_peak(self) -> int:
        """Operations (a product and its sum are two) on bf16 in a cycle."""
        return 2 * self.rows * self.cols

    @property
    def vector_peak(self) -> int:
        """Operations on f32 in a cycle."""
        return 2 * self.lanes

    def caps(self) -> Caps:
        """What templates are told. Half of the scratchpad is for the large arrays of a kernel."""
        return Caps(
            "npu",
            max_threads=1,
            lanes=self.lanes,
            shared_bytes=0,
            cheap_barrier=False,
            max_bindings=64,
            max_binding_bytes=_HUGE,
            max_buffer_bytes=_HUGE,
            max_groups=(1 << 31) - 1,
            scratch_bytes=self.scratchpad // 2,
            features=frozenset({"mma_bf16", "dot4"}),
        )
