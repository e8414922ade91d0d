"""The child of `confined.Confined`: answers requests, within the limits that each brings.

Run as a script, `python -I -S confined_main.py WORKER FOLDER...`, with the standard library alone:
the folders are where the worker's packages lie. A worker is a file with `handle(request) -> value`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import struct
import sys
from typing import Any

REQUEST = struct.Struct("<QQd")  # bytes of JSON, bytes of memory, seconds
REPLY = struct.Struct("<Q")  # bytes of JSON

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def _address_space() -> int:
    """Bytes of address space that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def _restrict() -> None:
    """No files written, no core dumped."""
    if resource is not None:
        for name, most in (("CORE", 0), ("FSIZE", 0), ("NOFILE", 64)):
            _limit(getattr(resource, f"RLIMIT_{name}"), most)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with contextlib.suppress(OSError, ValueError):  # a system without this limit
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


def _clock(seconds: float) -> None:
    """Ends this process after `seconds` of wall time, in case the parent no longer can."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _answer(worker: Any, data: bytes) -> bytes:
    try:
        answer = {"value": worker.handle(json.loads(data))}
        return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except MemoryError:
        answer = {"memory": True}
    except BaseException as e:  # a panic of a Rust library is not an Exception
        answer = {"error": (str(e).strip() or type(e).__name__).splitlines()[0][:200]}
    return json.dumps(answer).encode()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    path, *folders = sys.argv[1:]
    sys.path += folders
    source = os.fdopen(0, "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the packages goes to stderr, never into the reply
    spec = importlib.util.spec_from_file_location("worker", path)
    assert spec is not None and spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    _restrict()
    base = _address_space()
    sink.write(REPLY.pack(0))  # ready
    sink.flush()
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        size, memory, seconds = REQUEST.unpack(head)
        _clock(seconds + 1)
        if base:
            _limit(resource.RLIMIT_AS, base + memory)
        reply = _answer(worker, source.read(size))
        sink.write(REPLY.pack(len(reply)))
        sink.write(reply)
        sink.flush()
        del reply
        _clock(0)


if __name__ == "__main__":
    main()
