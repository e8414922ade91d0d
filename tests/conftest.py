"""What holds for every test, however the run was started."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from weft.core import notices
from weft.host.files import default_directory

ROOT = Path(__file__).resolve().parents[1]

# The same examples every time: a change fails by its own doing. --hypothesis-profile=default
# draws anew. No deadline: no test fails because the machine is busy.
hypothesis.settings.register_profile("same", derandomize=True, print_blob=True, deadline=None)
hypothesis.settings.load_profile("same")

# The user's own cache stays as it is; what the tests make again and again has a folder beside it.
if (_home := default_directory()) is not None:
    os.environ.setdefault("WEFT_CACHE", str(_home.with_name(f"{_home.name}-tests")))

os.environ.setdefault("WEFT_VERIFY", "graphs")  # every pass of the compiler gives a verified graph

# LLVM's passes are half of a run without kept kernels. Folders and files whose subject is the code
# itself have all of them, and with `WEFT_LLVM= sh scripts/test` every folder has.
os.environ.setdefault("WEFT_LLVM", "quick")
OPTIMISED = {"backends", "conform", "golden", "kernel", "test_attention", "test_product"}
SLOWLY_OPTIMISED = {"ops", "templates"}  # with -m slow

# Folders with tests of kernels on several threads.
THREADED = {"backends", "conform", "kernel", "program", "robust", "templates"}


# A test survives no power cut: what it writes need not be on the disk itself.
os.fsync = lambda handle: None

# A shell has its background jobs ignore SIGINT, and what they start inherits that: the tests that
# interrupt would wait for ever. A handler of Python's is not inherited, so children begin afresh.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # of what collecting makes, nothing is garbage


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes no items of slow rows, only to put them aside, in the default suite. Rows that are
    asked for by name are there."""
    config = metafunc.config
    if config.option.markexpr == "not slow" and not any("::" in arg for arg in config.args):
        slow = metafunc.definition.get_closest_marker("slow") is not None
        metafunc.parametrize = functools.partial(_quick_rows, metafunc.parametrize, slow)


def _quick_rows(
    parametrize: Any, slow: bool, names: Any, rows: Any, ids: Any = None, **options: Any
) -> None:
    """The rows that are not slow, or the first of all."""
    rows = list(rows)
    late = (slow or any(m.name == "slow" for m in getattr(row, "marks", ())) for row in rows)
    quick = [i for i, later in enumerate(late) if not later] or [0] * bool(rows)
    if ids is not None and not callable(ids):
        given = list(ids)
        ids = [given[i] for i in quick]
    parametrize(names, [rows[i] for i in quick], ids=ids, **options)


def pytest_collection_finish() -> None:
    """14,000 tests and PyTorch are a million objects that every collection would walk through."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # a compile makes a million objects, none of them garbage
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Weights of models that were in temporary folders go; kernels serve the next run."""
    if not hasattr(session.config, "workerinput"):
        from weft.models.weights.kept_tensors import PACKED

        PACKED.prune()


@pytest.fixture(scope="module", autouse=True)
def clean_checkout() -> Iterator[None]:
    """Tests write into folders of their own: nothing but caches is new beside the sources."""
    before = set(os.listdir(ROOT))
    yield
    new = {name for name in set(os.listdir(ROOT)) - before if not name.startswith(".")}
    assert not new, f"a test left {sorted(new)} in the checkout"


@pytest.fixture(scope="module", autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels are compiled as users' are where tests are about them. Workers of the default suite
    fill the cores already, where a second thread of each would mostly wait for the first."""
    config, names = request.config, {request.path.parent.name, request.path.stem}
    default = config.option.markexpr == "not slow"
    with pytest.MonkeyPatch.context() as patch:
        if names & (OPTIMISED if default else OPTIMISED | SLOWLY_OPTIMISED):
            patch.delenv("WEFT_LLVM", raising=False)
        if hasattr(config, "workerinput") and default and not names & THREADED:
            patch.setenv("WEFT_NUM_THREADS", os.environ.get("WEFT_NUM_THREADS", "1"))
        yield


@pytest.fixture
def small_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures this machine's memory walks through 8 MB, not through half a gigabyte."""
    monkeypatch.setattr("weft.bench.roofline._floats", lambda caps, wanted: 1 << 20)


@pytest.fixture(autouse=True)
def notices_again() -> None:
    """What a process says once is said in each test, whichever ran before in the same worker."""
    notices.say.cache_clear()
