"""Scratch memory that Sessions share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from weft.program.device import Buffer, Device

if TYPE_CHECKING:
    from weft.program.session import Session


class Arena:
    """Scratch memory that several Sessions of one device share (they never run at once).

    It grows to the largest request; the Sessions that use it are rebound when it does.
    """

    def __init__(self, device: Device):
        self.device = device
        self._buffers: dict[int, Buffer] = {}
        self._users: weakref.WeakSet[Session] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes of all arena buffers."""
        return sum(b.nbytes for b in self._buffers.values())

    def request(self, ordinal: int, nbytes: int, user: Session) -> Buffer:
        """Arena buffer number `ordinal`, at least `nbytes` long."""
        self._users.add(user)
        have = self._buffers.get(ordinal)
        if have is None or have.nbytes < nbytes:
            self.device.sync()
            have = self._buffers[ordinal] = self.device.alloc(nbytes)
            for other in self._users:
                if other is not user:
                    other._arena_moved(ordinal, have)
        return have
