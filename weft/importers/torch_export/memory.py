"""In-place operators made functional: each write gives a new value, and later reads of views of the
written tensor make them again.

The rules for views and writes follow PyTorch's documentation ("Tensor Views"). An operator may or
may not share memory (reshape, contiguous, to); weft rejects a program that depends on it:
`run_decompositions` knows, this does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.core.errors import ModelError
from weft.importers.aten.table import out_of_place
from weft.importers.ports import Ref
from weft.importers.torch_export.graph import CallNode

# Views, by the way in which a write to them changes their source.
_RESHAPED = ("view", "unsqueeze", "squeeze", "unflatten", "view_as")
_TURNED = ("transpose", "t", "mT", "swapaxes", "swapdims", "numpy_T")
_SAME = ("alias", "detach", "detach_", "alias_")
_PIECES = ("split", "split_with_sizes", "chunk", "unbind")
_READ_ONLY = ("expand", "expand_as", "diagonal", "movedim", "moveaxis", "broadcast_tensors",
              "meshgrid", "broadcast_to")  # fmt: skip
_VIEWS = {*_RESHAPED, *_TURNED, *_SAME, *_PIECES, *_READ_ONLY, "permute", "slice", "select",
          "narrow"}  # fmt: skip
_PERHAPS = {"reshape", "flatten", "contiguous", "to", "type_as", "dropout", "_to_copy_", "real"}


class Aliased(ModelError):
    """A program that reads memory which may or may not have been written through another name."""


@dataclass(slots=True)
class _View:
    parent: str
    call: CallNode
    index: int  # index of the result, if there are several
    sure: bool


def _name(target: str) -> str:
    return target.split(".")[1] if target.startswith("aten.") else ""


def writes_in_place(calls: list[CallNode]) -> bool:
    """True if any call changes one of its arguments."""
    return any(out_of_place(c.target) for c in calls)


def functional(
    calls: list[CallNode], outputs: list[Any], inputs: list[str]
) -> tuple[list[CallNode], list[Any], dict[str, Ref]]:
    """The calls without in-place writes, the outputs by their present names, and the inputs that
    were written: name -> its last value. Raises Aliased."""
    memory = _Memory(inputs)
    for call in calls:
        memory.run(call)
    results = [memory.now(o) for o in outputs]
    written = {i: memory.now(Ref(i)) for i in inputs if memory.version.get(i, 0)}
    return memory.calls, results, written


class _Memory:
    def __init__(self, inputs: list[str]) -> None:
        self.calls: list[CallNode] = []
        self.views: dict[str, _View] = {}
        self.roots: dict[str, str] = {n: n for n in inputs}
        # the result of an in-place call -> the tensor that it wrote to
        self.same: dict[str, str] = {}
        self.current: dict[str, str] = {}  # a name -> the name of its value now
        self.stamp: dict[str, int] = {}  # the version of its root at which that was so
        self.version: dict[str, int] = {}  # the version of its root at which `current` held
        self.unsure: dict[str, str] = {}  # the number of writes to a root
        self.made = 0

    def run(self, call: CallNode) -> None:
        if out_of_place(call.target) and _name(call.target) not in _SAME:
            self._write(call)
            return
        args, kwargs = self.now(call.args), self.now(call.kwargs)
        self.calls.append(CallNode(call.target, args, kwargs, call.out, call.where))
        source = call.args[0] if call.args else None
        name = _name(call.target)
        outs = (call.out,) if isinstance(call.out, str) else call.out
        shares = (name in _VIEWS or name in _PERHAPS) and isinstance(source, Ref)
        for i, out in enumerate(outs):
            if shares:
                assert isinstance(source, Ref)
                parent = self._own(source.name)
                self.views[out] = _View(parent, call, i, name in _VIEWS)
                self.roots[out] = self.roots[parent]
            else:
                self.roots[out] = out
            self.stamp[out] = self.version.get(self.roots[out], 0)

    def now(self, value: Any) -> Any:
        """Arguments with Refs to present values."""
        if isinstance(value, Ref):
            return Ref(self._read(value.name))
        if isinstance(value, list):
            return [self.now(x) for x in value]
        if isinstance(value, dict):
            return {k: self.now(x) for k, x in value.items()}
        return value

    def _own(self, name: str) -> str:
        while name in self.same:
            name = self.same[name]
        return name

    def _read(self, name: str) -> str:
        name = self._own(name)
        root = self.roots.get(name, name)
        if root in self.unsure:
            raise Aliased(
                f"{name!r} is read after {self.unsure[root]}, which may have written to its memory"
            )
        version = self.version.get(root, 0)
        if self.stamp.get(name, 0) != version and name != root:
            view = self.views[name]
            if not view.sure:
                raise Aliased(f"{name!r} ({view.call.target}) is read after what it may show of "
                              "was written")  # fmt: skip
            self._look_again(view)
        return self.current.get(name, name)

    def _look_again(self, view: _View) -> None:
        """The call of a view once more, on what it shows by now."""
        call = view.call
        parent = Ref(self._read(view.parent))
        outs = (call.out,) if isinstance(call.out, str) else call.out
        fresh = tuple(self._fresh(o) for o in outs)
        args = [parent, *self.now(call.args[1:])]
        out = fresh[0] if isinstance(call.out, str) else fresh
        self.calls.append(CallNode(call.target, args, self.now(call.kwargs), out, call.where))
        for old, new in zip(outs, fresh):
            self.current[old] = new
            self.stamp[old] = self.version.get(self.roots[old], 0)

    def _fresh(self, name: str) -> str:
        self.made += 1
        return f"{name or 'value'}'{self.made}"

    def _write(self, call: CallNode) -> None:
        target = call.args[0]
        if not isinstance(target, Ref) or not isinstance(call.out, str):
            raise Aliased(f"{call.target} at {call.where} writes to no tensor")
        name = self._own(target.name)
        args, kwargs = self.now(call.args), self.now(call.kwargs)
        value = self._fresh(name)
        self.calls.append(CallNode(call.target, args, kwargs, value, call.where))
        self._store(name, value, call)
        if call.out:
            self.same[call.out] = name
            self.roots[call.out] = self.roots[name]

    def _store(self, name: str, value: str, call: CallNode) -> None:
        """`value` is what `name` holds from here on, and so what it is a view of."""
        first, at = name, value
        while (view := self.views.get(name)) is not None:
            if not view.sure:  # It is separate from now on; the others must not be read again.
                self.unsure[self.roots[name]] = f"{call.target} at {call.where or 'a call'}"
                del self.views[name]
                self.roots[name] = name
                break
            at = self._back(view, at, call)
            name = view.parent
        root = self.roots.setdefault(name, name)
        self.version[root] = self.version.get(root, 0) + 1
        self.current[name] = at
        self.stamp[name] = self.version[root]
        self.roots[first] = root
        self.current[first], self.stamp[first] = value, self.version[root]

    def _back(self, view: _View, value: str, call: CallNode) -> str:
        """The new value of what a view shows, from the view's own."""
        made, kind, where = view.call, _name(view.call.target), call.where
        parent, options = Ref(self._read(view.parent)), self.now(made.args[1:])
        out = self._fresh(view.parent)

        def emit(target: str, args: list[Any], **kwargs: Any) -> str:
            self.calls.append(CallNode(target, args, kwargs, out, where))
            return out

        if kind in _SAME:
            return value
        if kind in _RESHAPED:
            return emit("aten.view_as.default", [Ref(value), parent])
        if kind in _TURNED:
            return emit(made.target, [Ref(value), *options])
        if kind == "permute":
            order = options[0]
            back = [(order.index(i) if i in order else order.index(i - len(order)))
                    for i in range(len(order))]  # fmt: skip
            return emit(made.target, [Ref(value), back])
        if kind == "slice":
            return emit("aten.slice_scatter.default", [parent, Ref(value), *options],
                        **self.now(made.kwargs))  # fmt: skip
        if kind == "select":
            return emit("aten.select_scatter.default", [parent, Ref(value), *options])
        if kind in ("split", "split_with_sizes", "chunk", "unbind"):
            assert not isinstance(made.out, str)
            pieces = [Ref(value) if i == view.index else Ref(self._read(o))
                      for i, o in enumerate(made.out)]  # fmt: skip
            axis = options[-1] if len(options) > (kind != "unbind") else made.kwargs.get("dim", 0)
            return emit(f"aten.{'stack' if kind == 'unbind' else 'cat'}.default", [pieces, axis])
        raise Aliased(f"{call.target} at {where or 'a call'} writes to what {made.target} gave")
