"""Lines of the user's own code, for messages: where a value was made, where an error arose."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@functools.lru_cache(maxsize=4096)
def _ours(file: str) -> bool:
    """True for a file of weft, and for that of `with`, which stands between weft and the user."""
    return file.startswith(_PACKAGE) or file == contextlib.__file__


def user_line() -> str:
    """ "file:line" of the innermost frame outside the weft package ("" when there is none)."""
    frame = sys._getframe(1)
    while frame is not None and _ours(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(error: BaseException) -> str:
    """ "file:line" of the innermost frame outside the weft package that `error` went through."""
    found, at = "", error.__traceback__
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if not _ours(name):
            found = f"{name}:{at.tb_lineno}"
        at = at.tb_next
    return found
