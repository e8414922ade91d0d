"""The text in place of a picture in a prompt, by family: placeholder tokens for its vectors, and
marks around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from weft.core.errors import UsageError
from weft.core.records import dataclass


@dataclass(frozen=True)
class Shown:
    """The vectors of a picture: `each` per tile, of `tiles`; `rows` and `columns` of a grid of
    tiles (0: none), or of vectors where pictures have any size."""

    each: int
    tiles: int = 1
    rows: int = 0
    columns: int = 0
    times: tuple[float, ...] = ()  # seconds of a video's groups of frames; (): a picture
    beats: tuple[int, ...] = (0,)  # the groups' rotary positions in time, from the first


@dataclass(frozen=True)
class Marks:
    """A family's placeholder: `token` is the place of one vector, `given` of a whole picture in the
    output of a chat template. `around` begins and ends a picture. `film` is both for a video ("":
    the family reads none); if it is `dated`, each group of frames has its time before it, and
    lies within `apart`."""

    kind: str
    token: str
    given: str
    around: Sequence[str] = field(default=("", ""))
    film: str = ""
    dated: bool = False
    apart: Sequence[str] = field(default=("", ""))


def spread(marks: Marks, text: str, pictures: Sequence[Shown]) -> str:
    """Returns a prompt with the placeholders of all vectors, for one with one placeholder per
    picture. Raises UsageError for another number of them."""
    kinds = [marks.given, *([marks.film] if marks.film else [])]
    parts = re.split(f"({'|'.join(map(re.escape, kinds))})", text)
    places, films = parts[1::2], [bool(shown.times) for shown in pictures]
    for mark, what, wanted in zip(kinds, ("picture", "video"), (False, True)):
        if places.count(mark) != films.count(wanted):
            raise UsageError(
                f"the prompt has {_count(places.count(mark))} for a {what} ({mark}), and "
                f"{films.count(wanted)} were given; expected one for each"
            )
    if [place == marks.film for place in places if marks.film] != films and any(films):
        raise UsageError("the prompt's places for pictures and videos are in another order")
    out = parts[0]
    for shown, after in zip(pictures, parts[2::2]):
        made = _film if shown.times else _SPREAD.get(marks.kind, _plain)
        out += made(marks, shown) + after
    return out


def _film(marks: Marks, shown: Shown) -> str:
    begin, end = marks.apart
    one = marks.film * shown.each
    if not marks.dated:
        return one * shown.tiles
    return "".join(f"<{time:.1f} seconds>{begin}{one}{end}" for time in shown.times)


def _count(n: int) -> str:
    return f"{n} place" + "s" * (n != 1)


def _plain(marks: Marks, shown: Shown) -> str:
    begin, end = marks.around
    return begin + marks.token * (shown.each * shown.tiles) + end


def _gemma(marks: Marks, shown: Shown) -> str:
    begin, end = marks.around
    one = f"\n\n{begin}{marks.token * shown.each}{end}\n\n"
    if shown.tiles == 1:
        return one
    crops = " ".join([one] * (shown.tiles - 1))
    return (
        f"Here is the original image {one} and here are some crops to help you see better {crops}"
    )


def _idefics(marks: Marks, shown: Shown) -> str:
    mark, one = marks.around[0], marks.token * shown.each
    whole = f"{mark}<global-img>{one}{mark}"
    if not shown.rows:
        return whole
    out = ""
    for r in range(shown.rows):
        cells = (f"{mark}<row_{r + 1}_col_{c + 1}>{one}" for c in range(shown.columns))
        out += "".join(cells) + "\n"
    return f"{out}\n{whole}"


def _pixtral(marks: Marks, shown: Shown) -> str:
    broken, end = marks.around
    return broken.join([marks.token * shown.columns] * shown.rows) + end


_SPREAD: Mapping[str, Callable[[Marks, Shown], str]] = {
    "gemma3": _gemma, "idefics3": _idefics, "smolvlm": _idefics, "mistral3": _pixtral,
    "pixtral": _pixtral,
}  # fmt: skip
