"""The lines of an input file: what is a request, and what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from weft.serve.batches.types import BatchError, RequestHead, RequestLine
from weft.serve.mistakes import mistake_in
from weft.serve.wire import MAX_BODY, too_much

MAX_REQUESTS = 50_000
MAX_ERRORS = 100  # faults that are said of one file


@dataclass(frozen=True)
class Line:
    """A request's place in its file, in bytes, and its id."""

    begin: int
    length: int
    custom_id: str


@dataclass
class InputLines:
    """The requests of a file, and its faults."""

    lines: list[Line] = field(default_factory=list)
    errors: list[BatchError] = field(default_factory=list)


def lines_of(path: Path, endpoint: str, without: Container[str] = ()) -> InputLines:
    """Reads an input file: a request in JSON per line, empty lines left out. The requests whose
    `custom_id` is in `without` are checked but not among the lines."""
    found, seen, begin, number = InputLines(), set[str](), 0, 0
    with path.open("rb") as file:
        while text := file.readline(MAX_BODY + 1):
            number += 1
            if len(text) > MAX_BODY:
                _fault(found, "line_too_long", f"a line holds at most {MAX_BODY} bytes", number)
                return found
            if text.strip():
                line = _line(found, text, endpoint, number, seen)
                if len(seen) > MAX_REQUESTS:
                    _fault(found, "too_many_requests", f"a file holds at most {MAX_REQUESTS} "
                           "requests; split it", number)  # fmt: skip
                    return found
                if line is not None and line.custom_id not in without:
                    found.lines.append(Line(begin, len(text), line.custom_id))
            if len(found.errors) >= MAX_ERRORS:
                return found
            begin += len(text)
    if not seen and not found.errors:
        found.errors.append(BatchError(code="empty_file", message="the file holds no request"))
    return found


def request_of(path: Path, line: Line) -> bytes:
    """The body of a request."""
    with path.open("rb") as file:
        file.seek(line.begin)
        return bytes(msgspec.json.decode(file.read(line.length), type=RequestLine).body)


def _line(
    found: InputLines, text: bytes, endpoint: str, number: int, seen: set[str]
) -> RequestLine | None:
    """A request, or None after its fault was noted."""
    if why := too_much(text):
        _fault(found, "invalid_request", why, number)
        return None
    line = None
    try:
        line = msgspec.json.decode(text, type=RequestLine)
        head = msgspec.json.decode(line.body, type=RequestHead)
    except msgspec.ValidationError as e:
        at = (RequestLine, "") if line is None else (RequestHead, "body")
        field, said = mistake_in(e, *at)
        _fault(found, "invalid_request", said[:500], number, field or None)
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        _fault(found, "invalid_json_line", str(e)[:500] or "nested too deeply", number)
        return None
    if line.url != endpoint:
        _fault(found, "mismatched_url", f"the url is {line.url[:100]!r}; expected the "
                      f"batch's endpoint, {endpoint}", number, "url")  # fmt: skip
    elif head.stream:
        _fault(found, "invalid_request", "a batch has no streams; leave stream out", number,
                      "body.stream")  # fmt: skip
    elif line.custom_id in seen:
        _fault(found, "duplicate_custom_id", f"{line.custom_id[:100]!r} names an earlier "
                      "request too", number, "custom_id")  # fmt: skip
    else:
        seen.add(line.custom_id)
        return line
    return None


def _fault(found: InputLines, code: str, message: str, line: int, param: str | None = None) -> None:
    found.errors.append(BatchError(code=code, message=message, line=line, param=param))
