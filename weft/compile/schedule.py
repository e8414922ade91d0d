"""The order of a run's tasks. Any order that respects data and overwrites is right. This one
prefers tasks that free memory, so lifetimes stay short and the arena small."""

from __future__ import annotations

from heapq import heappop, heappush

from weft.compile.placement import PlacedValue, Task


def schedule(tasks: list[Task]) -> list[Task]:
    """The tasks in execution order (earlier ones first among equals)."""
    waiting = [len(t.after) for t in tasks]
    users: list[list[int]] = [[] for _ in tasks]
    readers: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        for a in task.after:
            users[a].append(i)
        for value in _distinct(task.reads):
            readers.setdefault(id(value), []).append(i)
    left = {key: len(found) for key, found in readers.items()}
    done = [False] * len(tasks)
    ready: list[tuple[int, int]] = []  # a heap; a task whose growth has sunk stands in it again

    def offer(i: int) -> None:
        heappush(ready, (_growth(tasks[i], left), i))

    for i, n in enumerate(waiting):
        if not n:
            offer(i)
    order: list[Task] = []
    while ready:
        _, best = heappop(ready)
        if done[best]:
            continue
        done[best] = True
        order.append(tasks[best])
        for value in _distinct(tasks[best].reads):
            left[id(value)] -= 1
            if left[id(value)] == 1:
                last = next(i for i in readers[id(value)] if not done[i])
                if not waiting[last]:
                    offer(last)
        for user in users[best]:
            waiting[user] -= 1
            if not waiting[user]:
                offer(user)
    assert len(order) == len(tasks), "tasks wait for each other"
    return order


def _growth(task: Task, left: dict[int, int]) -> int:
    """Arena bytes that are in use after the task and were not before."""
    grown = sum(v.node.nbytes for v in task.writes if not v.place().home)
    for value in _distinct(task.reads):
        if left[id(value)] == 1 and not value.place().home:
            grown -= value.node.nbytes
    return grown


def _distinct(values: list[PlacedValue]) -> list[PlacedValue]:
    return list({id(v): v for v in values}.values())
