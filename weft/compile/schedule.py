"""The order of a run's tasks: any order that respects data and overwrites is right; this one
prefers tasks that free memory, so that lifetimes stay short and the arena small."""

from __future__ import annotations

from weft.compile.homes import Task, Value


def schedule(tasks: list[Task]) -> list[Task]:
    """The tasks in execution order (earlier ones first among equals)."""
    waiting = [len(t.after) for t in tasks]
    users: list[list[int]] = [[] for _ in tasks]
    for i, task in enumerate(tasks):
        for a in task.after:
            users[a].append(i)
    left = _read_counts(tasks)
    ready = [i for i, n in enumerate(waiting) if not n]
    order: list[Task] = []
    while ready:
        best = min(ready, key=lambda i: (_growth(tasks[i], left), i))
        ready.remove(best)
        order.append(tasks[best])
        for value in _distinct(tasks[best].reads):
            left[id(value)] -= 1
        for user in users[best]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    assert len(order) == len(tasks), "tasks wait for each other"
    return order


def _growth(task: Task, left: dict[int, int]) -> int:
    """Arena bytes that are in use after the task and were not before."""
    grown = sum(v.node.nbytes for v in task.writes if not v.place().home)
    for value in _distinct(task.reads):
        if left[id(value)] == 1 and not value.place().home:
            grown -= value.node.nbytes
    return grown


def _read_counts(tasks: list[Task]) -> dict[int, int]:
    left: dict[int, int] = {}
    for task in tasks:
        for value in _distinct(task.reads):
            left[id(value)] = left.get(id(value), 0) + 1
    return left


def _distinct(values: list[Value]) -> list[Value]:
    return list({id(v): v for v in values}.values())
