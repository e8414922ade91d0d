"""Locks and sections that stay usable in the child of a fork.

A forked child has one thread and a copy of all memory at that moment, so a lock that another thread
held stays locked forever. `lock_of` makes a lock that the child renews, or that reports what was
interrupted. A fork never interrupts a `ForkLock`.
"""

from __future__ import annotations

import _imp
import importlib
import os
import threading
import time
import weakref
from typing import Any

from weft.core.errors import DeviceError


class _Torn:
    """Takes a lock's place if its data was being changed by a thread that the child lacks."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __enter__(self) -> None:
        raise DeviceError(self.why)

    def __exit__(self, *_: object) -> None: ...

    def acquire(self, *_: object, **__: object) -> bool:
        raise DeviceError(self.why)

    def release(self) -> None: ...


class _LockHolder(weakref.ref[Any]):
    """An object that has a lock as its attribute `name`."""

    __slots__ = ("name", "torn")
    name: str
    torn: str


_held: set[_LockHolder] = set()


def lock_of(owner: object, name: str = "_lock", torn: str = "") -> Any:
    """A new threading.RLock, to be kept as `owner`'s attribute `name`.

    If another thread holds it when the process is forked, the child finds a fresh one. Where what
    it guards may then be half changed, say so by `torn`: the child's attempts to take it raise
    DeviceError with that text.
    """
    held = _LockHolder(owner, _held.discard)
    held.name, held.torn = name, torn
    _held.add(held)
    return threading.RLock()


def _renew_locks() -> None:
    for held in list(_held):
        owner = held()
        if owner is None:
            continue
        lock = getattr(owner, held.name)
        if isinstance(lock, _Torn):
            continue
        if lock.acquire(blocking=False):
            lock.release()  # free, or held by this thread
        else:
            setattr(owner, held.name, _Torn(held.torn) if held.torn else threading.RLock())


_sections: list[ForkLock] = []


class ForkLock:
    """Code of several threads that a fork waits for: a library's locks inside are then free. Do
    not enter one twice."""

    def __init__(self) -> None:
        self._state = threading.Condition(threading.Lock())
        self._inside: set[int] = set()
        self._forking = False
        _sections.append(self)

    def __enter__(self) -> None:
        with self._state:
            self._state.wait_for(lambda: not self._forking)
            self._inside.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._state:
            self._inside.discard(threading.get_ident())
            self._state.notify_all()

    def close(self) -> None:
        """Waits until no other thread is inside, and lets none in."""
        with self._state:
            self._forking = True
            me = threading.get_ident()
            self._state.wait_for(lambda: not self._inside - {me})

    def open(self) -> None:
        """Lets threads in again."""
        with self._state:
            self._forking = False
            self._state.notify_all()

    def renew(self) -> None:
        """Resets the section in a forked child, where only this thread may be inside."""
        self._state = threading.Condition(threading.Lock())
        self._inside &= {threading.get_ident()}
        self._forking = False


_PATIENCE = 10.0  # seconds that a fork waits for other threads' imports


def _settle_imports() -> None:
    """Waits until no other thread imports a module, and lets none begin: in the child that module
    would stay locked. Python itself sees to the lock of all imports, not to those of modules."""
    locks = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    end = time.monotonic() + _PATIENCE
    while True:
        _imp.acquire_lock()
        held = (ref() for ref in list(locks.values()))
        owners = {getattr(lock, "owner", None) for lock in held}
        if not owners - {None, threading.get_ident()} or time.monotonic() > end:
            return
        _imp.release_lock()
        time.sleep(0.001)


def _before() -> None:
    while True:
        known = len(_sections)
        for section in _sections[:known]:
            section.close()
        _settle_imports()
        if len(_sections) == known:  # otherwise a module that was being imported added one
            return
        _imp.release_lock()


def _in_parent() -> None:
    _imp.release_lock()
    for section in _sections:
        section.open()


def _in_child() -> None:
    _imp.release_lock()
    for section in _sections:
        section.renew()
    _renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
