"""Instruction sets that others implement: machines run by an emulator, as devices."""

from weft.backends.emulated.device import EmulatedDevice, info

__all__ = ["EmulatedDevice", "info"]
