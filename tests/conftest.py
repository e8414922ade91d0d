"""What holds for every test, however the run was started."""

from __future__ import annotations

import gc
import os
import signal

import hypothesis
import pytest

# The same examples every time: a change fails by its own doing. --hypothesis-profile=default
# draws anew.
hypothesis.settings.register_profile("same", derandomize=True, print_blob=True)
hypothesis.settings.load_profile("same")

os.environ.setdefault("WEFT_VERIFY", "graphs")  # every pass of the compiler gives a verified graph

# A shell has its background jobs ignore SIGINT, and what they start inherits that: the tests that
# interrupt would wait for ever. A handler of Python's is not inherited, so children begin afresh.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # of what collecting makes, nothing is garbage


def pytest_collection_finish() -> None:
    """14,000 tests and PyTorch are a million objects that every collection would walk through."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def small_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures this machine's memory walks through 8 MB, not through half a gigabyte."""
    monkeypatch.setattr("weft.bench.roofline._floats", lambda caps, wanted: 1 << 20)
