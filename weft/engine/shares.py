"""Divides the rows of a step among the prompts that are fed in it.

Owners get equal numbers. Half of an owner's rows go to the prompt of the highest priority, the
shortest of these: it is soon answered beside a long one. The other half goes to the oldest, so
each prompt ends. Rows that one prompt does not need go to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.engine.sequence import SequenceState


def shares(prompts: Sequence[SequenceState], left: int, most: int) -> dict[int, int]:
    """Returns how many of `left` tokens each prompt (given by age) feeds, by number, in a step of
    at most `most` rows for one sequence."""
    owners: dict[bytes, list[SequenceState]] = {}
    for place in prompts:
        if place.rest:
            owners.setdefault(place.owner, []).append(place)
    wanted = {place.number: 0 for place in prompts}
    lists = sorted(owners.values(), key=lambda own: sum(place.rest for place in own))
    for i, own in enumerate(lists):
        got = _of_one(own, left // (len(lists) - i), most)
        left = max(left - sum(got.values()), 0)
        wanted |= got
    return wanted


def _of_one(own: Sequence[SequenceState], rows: int, most: int) -> dict[int, int]:
    """Divides `rows` among prompts of one owner."""
    first = min(own, key=lambda place: place.urgency)
    half = rows if first is own[0] else rows - rows // 2
    got = {place.number: 0 for place in own}
    for place, offered in [(first, half), *((place, rows) for place in (own[0], first, *own[1:]))]:
        had = got[place.number]
        count = place.cut(min(place.rest, had + min(offered, rows), most), most)
        rows = max(rows - (count - had), 0)
        got[place.number] = count
    return got


def kept(prompts: Sequence[SequenceState], ahead: SequenceState | None, left: int) -> int:
    """Returns how many of `left` rows running prompts leave to `ahead`, which waits. It gets half
    if its owner has no running prompt, or if it goes before one of them."""
    if ahead is None:
        return 0
    mine = [place.urgency for place in prompts if place.owner == ahead.owner]
    return 0 if mine and max(mine) <= ahead.urgency else left // 2
