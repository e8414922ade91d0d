"""Two machines in one: network namespaces, and between them a wire that delays and can be cut.

The wire is a thread that carries Ethernet frames between the far ends of two veth pairs, since the
kernel may lack netem. A cut wire drops frames and says nothing, as a pulled cable does.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_SIOCETHTOOL, _TX_CHECKSUM = 0x8946, 0x17


def why_not() -> str:
    """What this machine lacks for it; "" for nothing."""
    if not hasattr(socket, "AF_PACKET") or shutil.which("ip") is None:
        return "network namespaces need Linux and its ip command"
    if os.geteuid():
        return "network namespaces need root"
    name = f"weft-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Network:
    """Namespaces `names`, with ADDRESSES, and the wire between them. `delay`: seconds one way."""

    def __init__(self, delay: float = 0.0) -> None:
        mark = os.getpid() % 100_000
        self.names = [f"weft{i}-{mark}" for i in range(2)]
        self._ends = [f"wf{i}{mark}" for i in range(2)]  # in this namespace; 15 letters at most
        self.delay, self.cut, self.frames = delay, False, 0
        self._ended = threading.Event()

    def __enter__(self) -> Network:
        try:
            for name, end, address in zip(self.names, self._ends, ADDRESSES):
                _ip("netns", "add", name)
                _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    _ip("-n", name, "link", "set", link, "up")
                _ip("link", "set", end, "up")
                _plain_checksums(name)
            self._sockets = [_raw(end) for end in self._ends]
        except BaseException:
            self._remove()
            raise
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join()
        for each in self._sockets:
            each.close()
        self._remove()

    def shim(self, folder: Path) -> Path:
        """What MPICH starts processes "elsewhere" with, instead of ssh."""
        path = folder / "shim"
        cases = "".join(f"{a}) ns={n};;\n" for a, n in zip(ADDRESSES, self.names))
        path.write_text(
            '#!/bin/sh\nhost=$1; shift\ncase "$host" in\n'
            f'{cases}*) exit 1;;\nesac\nexec ip netns exec "$ns" sh -c "$*"\n'
        )
        path.chmod(0o755)
        return path

    def environment(self, folder: Path) -> dict[str, str]:
        """What makes MPICH use the wire, not the memory that both namespaces share."""
        return {
            "HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": str(self.shim(folder)),
            "HYDRA_IFACE": "eth0", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0",
            "MPIR_CVAR_NOLOCAL": "1",
        }  # fmt: skip

    def processes(self, name: str) -> list[int]:
        """What runs in a namespace."""
        said = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return [int(word) for word in said.stdout.split()]

    def _remove(self) -> None:
        for name, end in zip(self.names, self._ends):
            for pid in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", end], capture_output=True)

    def _carry(self) -> None:
        """Frames from either end to the other, when they are due."""
        due: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        while not self._ended.is_set():
            wait = max(due[0][0] - time.monotonic(), 0.0) if due else 0.05
            ready, _, _ = select.select(self._sockets, [], [], min(wait, 0.05))
            for source in ready:
                frame, about = source.recvfrom(1 << 16)
                if about[2] == socket.PACKET_OUTGOING:  # type: ignore[attr-defined]
                    continue  # our own
                to = 1 - self._sockets.index(source)
                heapq.heappush(due, (time.monotonic() + self.delay, next(order), to, frame))
            while due and due[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(due)
                if not self.cut:
                    self._sockets[to].send(frame)
                    self.frames += 1


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _raw(end: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))  # type: ignore[attr-defined]
    made.bind((end, 0))
    return made


def _plain_checksums(name: str) -> None:
    """Has the kernel compute checksums, which it leaves to hardware that is not there; no frame is
    then larger than the wire's either."""
    code = (
        "import array, fcntl, socket, struct\n"
        f"value = array.array('B', struct.pack('II', {_TX_CHECKSUM}, 0))\n"
        "ask = struct.pack('16sP', b'eth0', value.buffer_info()[0])\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"fcntl.ioctl(s, {_SIOCETHTOOL}, ask)\n"
    )
    subprocess.run(["ip", "netns", "exec", name, "python3", "-c", code], check=True)
