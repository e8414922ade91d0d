"""The part of a decoder that shows its inside: values at named places of a pass, and changes."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.models.arch.inputs import PAGE, columns
from weft.models.arch.places import WEIGHTS
from weft.models.run.edits import Edit, check_place
from weft.models.run.generating import Generating
from weft.models.run.gradients import Objective, check_differentiable, value_and_gradients
from weft.models.run.placed import Placed
from weft.models.run.reader import bucket
from weft.models.run.runner import STEP
from weft.models.run.visiting import Visiting, shapes_of, unembedding, visiting
from weft.models.text.prompts import Prompt, as_list

HIDDEN = ("embed", "layers.*.out", "norm")


class Inspection(Mapping[str, np.ndarray]):
    """The values of one pass over a text of T tokens, float32 [T, ...], by the names of their
    places; attention's weights are [heads, T, T] (row: the token that looks). `ids` are the text's
    tokens, `logits` [T, vocab] those of the token after each."""

    def __init__(self, ids: Sequence[int], values: Mapping[str, np.ndarray]) -> None:
        self.ids = tuple(ids)
        self.logits = values["logits"]
        self._values = {k: _square(k, v, len(self.ids)) for k, v in values.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._values:
            raise UsageError(f"{name!r:.100} was not read; ask for it: inspect(..., places=...)")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return f"Inspection of {len(self.ids)} tokens: {', '.join(self._values)}"

    @property
    def hidden_states(self) -> np.ndarray:
        """The residual stream float32 [layers + 1, T, hidden]: the embeddings, the results of all
        layers but the last, and the last one's after the final norm, as in transformers. Raises
        UsageError if they were not read."""
        outs = [name for name in self if _matches(name, "layers.*.out")]
        return np.stack([self[name] for name in ("embed", *outs[:-1], "norm")])

    @property
    def attentions(self) -> list[np.ndarray]:
        """The attention weights that were read, float32 [heads, T, T] each, by layer."""
        return [value for name, value in self.items() if name.endswith(WEIGHTS)]


class Inspecting(Generating):
    """A decoder whose values can be read and changed at named places."""

    placed: Placed
    fixed: bool
    max_batch: int
    _make_runner: Any
    _look: tuple[object, Visiting] | None = None  # the last runner, and what it was made for
    _spare: tuple[object, Visiting] | None = None  # likewise, of generation

    @abc.abstractmethod
    def slots_for(self, sequences: int) -> int:
        """Returns the number of slots of a runner for this number of sequences."""

    def places(self) -> dict[str, tuple[int, ...]]:
        """Returns the names of the places where values can be read and changed, in the order of the
        pass, each with the shape of one token's value. docs/inside.md says what they are. Raises
        UsageError for a compiled file and a model on several machines."""
        return dict(self._shapes)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if self.fixed or self._make_runner is not None or self.config.run is not None:
            what = "the file fixes its Programs" if self.fixed else "machines share it"
            raise UsageError(
                f"{self.folder}: {what}, so nothing inside can be read or changed; load the "
                "model's folder on one machine"
            )
        if self.config.traced is not None and self.config.traced.whole:
            raise UsageError(
                f'{self.folder}: cache="none" has no layers that weft knows, so nothing inside can '
                "be read or changed"
            )
        heads = self.config.heads
        found = shapes_of(self.config, self.placed)
        return {k: (heads, self.context) if k.endswith(WEIGHTS) else v for k, v in found.items()}

    def inspect(
        self,
        prompt: Prompt,
        places: str | Sequence[str] | None = None,
        edits: Sequence[Edit] = (),
        adapter: str = "",
    ) -> Inspection:
        """Returns values inside the model for a text or ids, from one pass.

        `places` are names or patterns (`*` matches one part: "layers.*.attn.weights"); by default
        the hidden states. `edits` change values on the way. Without edits the logits have the bits
        of `logits(ids)`. Each set of places, and of edits' places and shapes, has a Program of its
        own; it is kept.

        Raises UsageError for unknown places and edits that do not fit, LimitError and ModelError as
        `logits` does.
        """
        ids = self.encode(prompt)
        self.check_adapter(adapter)
        names, fitted = self._named(places), self._fitted(edits)
        context = bucket(len(ids), min(PAGE, self.context), self.context)
        with self._lock:
            self._check_files()
            runner = self._looking(names, fitted, context)
            values = runner.passes(ids, adapter)
        if not np.isfinite(values["logits"]).all():
            raise self.explain_bad("the logits are")
        return Inspection(ids, values)

    def unembed(self, x: np.ndarray) -> np.ndarray:
        """Returns logits float32 [N, vocab] of residual streams x[N, hidden], such as rows of
        "layers.3.out": the final norm and the output layer alone (the logit lens). Those of the
        last layer are the model's own logits, bit for bit. Raises UsageError for another shape, or
        a model whose code is traced from transformers."""
        if "norm" not in self._shapes:
            raise UsageError(f"{self.config.family} is traced: its output layer is not known apart")
        rows = np.asarray(x, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.config.stream:
            raise UsageError(f"x is {list(rows.shape)}; expected [N, {self.config.stream}]")
        with self._lock:
            self._check_files()
            return np.concatenate(
                [self._unembedded(rows[i : i + STEP]).copy() for i in range(0, len(rows), STEP)]
            )

    @cached_property
    def _unembedded(self) -> Callable[[np.ndarray], np.ndarray]:
        return unembedding(self.config, self.placed)

    def embed(
        self, texts: Prompt | Sequence[Prompt], layer: int | None = None, pooling: str = "mean"
    ) -> np.ndarray:
        """Returns vectors of texts (or ids), float32 [N, hidden], from the residual stream after a
        layer, 0 or more (None: after the last one and the final norm). `pooling` takes the "mean"
        over a text's tokens or the "last" token's. Raises UsageError as `inspect` does."""
        if pooling not in ("mean", "last"):
            raise UsageError(f'pooling is {pooling!r:.60}; expected "mean" or "last"')
        place = "norm" if layer is None else f"layers.{layer}.out"
        check_place(place, self._shapes)
        found = [self.inspect(text, [place])[place] for text in as_list(texts)[0]]
        return np.stack([x.mean(0) if pooling == "mean" else x[-1] for x in found])

    def gradients(
        self, prompt: Prompt, of: Objective, places: str | Sequence[str] = "embed"
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Returns a function's value and its gradients with respect to values inside the model.

        `of` takes the logits of a text or ids, a weft Tensor float32 [T, vocab], and returns a
        Tensor of one element. The gradients are float32 [T, ...] by place; "embed" has those of the
        embeddings. The pass is that of training: float32 products, and on a device a copy of the
        weights while the Program lives. Each call compiles. Raises UsageError for unknown places
        and for models without derivatives (experts, the delta rule, sinks, traced code).

        >>> value, found = weft.load("box", device="cpu").gradients([5, 6], lambda x: x[-1].max())
        >>> found["embed"].shape
        (2, 192)
        """
        ids, names = self.encode(prompt), self._named(places)
        check_differentiable(self.config, names)
        with self._lock:
            self._check_files()
            shapes = {name: self._shapes[name] for name in names}
            return value_and_gradients(self.config, self.placed, ids, of, shapes)

    def _looking(self, names: Sequence[str], edits: Sequence[Edit], context: int) -> Visiting:
        """Returns a runner of one sequence that reads and changes."""
        key = tuple(names), tuple(edit.change for edit in edits), context
        if self._look is None or self._look[0] != key:
            config = replace(self.config, kv_window=0)  # the whole text is in the cache
            self._look = key, visiting(config, self.placed, context, 1, columns(context))
        runner = self._look[1]
        runner.visits(names, edits)
        return runner

    @contextmanager
    def _edited(self, sequences: int, edits: Sequence[Edit]) -> Iterator[Visiting]:
        """Lends a runner with changes for one generation. The last one is kept for the next
        generation with changes of the same places and shapes."""
        slots = self.slots_for(sequences)
        key = slots, tuple(edit.change for edit in edits)
        with self._lock:
            kept, self._spare = self._spare, None
        if kept is not None and kept[0] == key:
            runner = kept[1]
        else:
            pages = slots * columns(self.context)
            runner = visiting(self.config, self.placed, self.context, slots, pages)
        runner.visits((), edits)
        yield runner
        self._spare = key, runner

    def _named(self, places: str | Sequence[str] | None) -> list[str]:
        """Returns the names that match patterns, in the order of the pass."""
        if places is None:
            return [n for n in self._shapes if any(_matches(n, one) for one in HIDDEN)]
        patterns = [places] if isinstance(places, str) else list(places)
        for one in patterns:
            if not any(_matches(name, one) for name in self._shapes):
                check_place(one, self._shapes)
        return [n for n in self._shapes if any(_matches(n, one) for one in patterns)]

    def _fitted(self, edits: Sequence[Edit]) -> list[Edit]:
        given = [edits] if isinstance(edits, Edit) else list(edits)
        for one in given:
            if not isinstance(one, Edit):
                raise UsageError(f"an edit is {one!r:.60}; expected weft.Edit.add or .replace")
        return [one.fitted(self._shapes) for one in given]


def _matches(name: str, pattern: Any) -> bool:
    """Returns True if a name matches a pattern, part by part."""
    parts, wanted = name.split("."), str(pattern).split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _square(name: str, value: np.ndarray, count: int) -> np.ndarray:
    """Returns attention's weights [T, heads, positions] as [heads, T, T]; others unchanged."""
    return value[:, :, :count].swapaxes(0, 1) if name.endswith(WEIGHTS) else value
