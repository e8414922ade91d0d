"""The `weft` command's first steps, and the effect of Ctrl-C while Python imports.

An exception that a signal raises inside an import may become another one: NumPy turns it into an
ImportError, and a half-imported module remains. So nothing is ever raised there. Before a command
runs, Ctrl-C ends the process at once; later it waits for the end of an import. While Python itself
ends, Ctrl-C does nothing: the command has its result.
"""

from __future__ import annotations

import atexit
import os
import signal

TYPE_CHECKING = False  # Slower imports follow once Ctrl-C ends the command quietly.
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130  # exit status
_AGAIN = 0.02  # seconds between two looks at whether an import has ended
_IMPORT = "<frozen importlib._bootstrap"


def main() -> None:
    """Entry point of the `weft` command."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:  # otherwise the caller has chosen to ignore it
        signal.signal(signal.SIGINT, _leave)
    import threading  # noqa: F401 (for `interrupt`, which may come in the midst of its import)

    from weft.cli.main import main as run

    if not ours:
        return run()
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        try:
            signal.signal(signal.SIGINT, interrupt)
            run()
        finally:
            signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:  # just before a command begins, or when it has ended
        _leave()


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler of SIGINT: raises KeyboardInterrupt, once nothing is being imported."""
    if not _importing(frame):
        raise KeyboardInterrupt
    import threading

    again = threading.Timer(_AGAIN, _repeat)
    again.daemon = True
    again.start()


def _importing(frame: FrameType | None) -> bool:
    """True if an import is under way in this frame or those that called it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT):
            return True
        frame = frame.f_back
    return False


def _repeat() -> None:
    """Sends the main thread the signal once more."""
    import threading

    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        import _thread

        _thread.interrupt_main()


def _leave(*_: object) -> NoReturn:
    """Ends the process where there is nothing to tidy up."""
    os._exit(INTERRUPTED)
