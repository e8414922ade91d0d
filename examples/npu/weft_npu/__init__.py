"""A simulated NPU: weft's kernel interpreter computes, a model of a small chip counts."""

from weft_npu.cost import Cost
from weft_npu.device import NpuDevice, Record
from weft_npu.machine import Machine
from weft_npu.report import draw, table

__all__ = ["Cost", "Machine", "NpuDevice", "Record", "draw", "table"]
