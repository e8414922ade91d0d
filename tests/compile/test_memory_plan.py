"""Conditions of the schedule, and places in memory, beside plain versions of the same."""

from hypothesis import given, settings, strategies as st

import weft
from weft.compile import arena
from weft.compile.placement import PlacedValue, Task
from weft.compile.precedence import Precedence
from weft.compile.schedule import schedule


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40))
def test_conditions_are_refused_exactly_where_they_close_a_cycle(pairs):
    order, kept = Precedence(), []
    for i in range(12):
        order.add({i - 3} if i >= 3 else set())
    known = {(i - 3, i) for i in range(3, 12)}

    def leads(a, b):
        seen, stack = set(), [a]
        while stack:
            at = stack.pop()
            if at == b:
                return True
            stack += [y for x, y in known if x == at and y not in seen]
            seen.add(at)
        return False

    for a, b in pairs:
        allowed = a == b or not leads(b, a)
        assert order.order([(a, b)]) == allowed
        if allowed and a != b:
            known.add((a, b))
            kept.append((a, b))
    assert {(a, b) for b, after in enumerate(order.after) for a in after} == known


SPANS = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(0, 30), st.integers(0, 9), st.integers(0, 40)),
    max_size=60,
)


@given(SPANS, st.sampled_from([3000, 4096, 1 << 30]))
def test_values_alive_together_never_share_bytes(items, limit):
    spans = [arena.Span(size, start, start + length) for size, start, length, _ in items]
    for span, (*_, other) in zip(spans, items):
        if other < len(spans) and spans[other] is not span:
            span.apart.add(id(spans[other]))
            spans[other].apart.add(id(span))
    sizes = arena._place_in_turn(spans, limit)
    for i, a in enumerate(spans):
        assert a.offset % arena.ALIGN == 0 and a.offset + a.nbytes <= min(limit, sizes[a.buffer])
        for b in spans[:i]:
            together = a.start <= b.end and b.start <= a.end and a.buffer == b.buffer
            apart = a.offset >= b.offset + b.nbytes or b.offset >= a.offset + a.nbytes
            assert not together or apart
            assert id(b) not in a.apart or a.buffer != b.buffer


def test_very_many_values_reuse_memory():
    spans = [arena.Span(1000, i, i + 1) for i in range(arena.MANY + 1)]
    assert sum(arena.place(spans, 1 << 30)) == 2 * 1024


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 15), max_size=3), st.integers(1, 64)), max_size=16)
)
def test_the_schedule_prefers_what_frees_memory(items):
    """The same order as looking at every ready task each time."""
    from weft.compile import schedule as module
    from weft.graph.ir import Node

    tasks: list[Task] = []
    for reads, size in items:
        made = PlacedValue(Node("x", (), {}, (size,), weft.float32))
        after = {r for r in reads if r < len(tasks)}
        tasks.append(Task([tasks[r].writes[0] for r in after], [made], after=after))
    left: dict[int, int] = {}
    for task in tasks:
        for value in module._distinct(task.reads):
            left[id(value)] = left.get(id(value), 0) + 1
    expected, waiting = [], list(range(len(tasks)))
    while waiting:
        ready = [i for i in waiting if not tasks[i].after & set(waiting)]
        best = min(ready, key=lambda i: (module._growth(tasks[i], left), i))
        waiting.remove(best)
        expected.append(tasks[best])
        for value in module._distinct(tasks[best].reads):
            left[id(value)] -= 1
    found = schedule(tasks)
    assert [id(t) for t in found] == [id(t) for t in expected]
