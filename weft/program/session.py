"""Session: a Program bound to a device, its weights and its state, ready to run many times."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.host.clock import compiling
from weft.program.arena import Arena
from weft.program.array import DeviceArray
from weft.program.device import OWN_KERNEL, Buffer, Device
from weft.program.memory import check_fits
from weft.program.outputs import Pool, maker
from weft.program.placing import GivenWeights, Value, cleared, fresh, place, wrap
from weft.program.program import BufferSpec, Library, Program
from weft.program.values import alike, fitted, scalar_values
from weft.program.weights import ordering

Direct = tuple[list[Callable[[], np.ndarray]], Callable[..., int]]
_WRAP_BYTES = 1 << 16  # below this, copying an input is cheaper than rebinding


class Session:
    """One Program on one device, for one thread at a time.

    `weights` maps names to NumPy arrays (copied once, or used in place where the device allows) or
    to Buffers of another Session. `session.weights` gives those; it lists a weight cut for the
    device under the names of its buffers. `placed` are such buffers of other Sessions, which take
    precedence. `take` returns a weight for the last time, so that its owner can free it. `state`
    takes the same as `weights`; otherwise state starts as zeros.

    Raises UsageError for a missing weight, ShapeError or DTypeError for one that does not fit, and
    LimitError or OutOfMemoryError for sizes that the device cannot hold.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        weights: Mapping[str, Value] | None = None,
        state: Mapping[str, Value] | None = None,
        arena: Arena | None = None,
        reuse_outputs: bool = False,
        placed: Mapping[str, Buffer] | None = None,
        take: Callable[[str], Value] | None = None,
    ):
        self.program, self.device = program, device
        self.reuse_outputs = reuse_outputs
        self.weights: dict[str, Buffer] = {}
        self.state: dict[str, Buffer] = {}
        self._arena = arena or Arena(device)
        self._arena_index: dict[int, int] = {}  # arena ordinal -> buffer number
        self._bound: Any = None
        self._rows: Mapping[str, str] = program.meta.get("rows", {})
        self._ranges = program.scalar_ranges
        check_fits(program, device, state or {})
        self._index = {b.name: i for i, b in enumerate(program.buffers)}
        self._pool: dict[int, Pool] = {}  # one pool per output
        with ordering(device) as threads:
            given = GivenWeights(program, device, weights or {}, placed or {}, take, threads)
            self._buffers = [
                self._make(i, spec, given, state or {}) for i, spec in enumerate(program.buffers)
            ]
        self._own = {i: self._buffers[i] for i in program.inputs}  # memory for NumPy inputs
        self._inputs = {program.buffers[i].name: i for i in program.inputs}
        self._seen: dict[int, np.ndarray] = {}  # inputs read in place at the last run
        self._small = self._small_inputs() if device.is_host else {}
        with compiling.running():
            self._bound = device.bind(program, self._buffers)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers bound now, one per Program buffer."""
        return tuple(self._buffers)

    @property
    def input_names(self) -> Collection[str]:
        """The names of the inputs that `run` takes."""
        return self._inputs

    @property
    def products(self) -> Mapping[int, str]:
        """The worker of each Library step, by its number in the Program: a vendor's library by
        name, or the step's own kernel and the reason."""
        steps = enumerate(self.program.steps)
        taken: Mapping[int, str] = self._bound.products
        return {n: taken.get(n, OWN_KERNEL) for n, s in steps if isinstance(s, Library)}

    # -- binding

    def _make(
        self, i: int, spec: BufferSpec, weights: GivenWeights, state: Mapping[str, Value]
    ) -> Buffer:
        if spec.nbytes > self.device.caps.max_buffer_bytes:
            raise LimitError(
                f"{spec.role} {spec.name!r} takes {spec.nbytes} bytes; "
                f"{self.device.info.id} allows {self.device.caps.max_buffer_bytes} per buffer"
            )
        if spec.role == "arena":
            ordinal = len(self._arena_index)
            self._arena_index[ordinal] = i
            buffer = self._arena.request(ordinal, spec.nbytes, self)
            return fresh(self.program, self.device, buffer, spec)
        if spec.role == "const":
            assert spec.value is not None
            return place(self.device, spec, spec.value)
        if spec.role == "weight":
            made = self.weights[spec.name] = weights.buffer(spec)
            return made
        if spec.role == "state":
            start = state.get(spec.name)
            made = self.state[spec.name] = (
                cleared(self.device, spec)
                if start is None
                else place(self.device, spec, start, in_place=False)
            )
            return made
        buffer = fresh(self.program, self.device, self.device.alloc(spec.nbytes), spec)
        if spec.role == "output":
            self._pool[i] = [(buffer, None)]
        return buffer

    def _small_inputs(self) -> dict[int, np.ndarray]:
        """Returns arrays over the memory of NumPy inputs small enough to copy."""
        specs = ((i, self.program.buffers[i]) for i in self.program.inputs)
        small = ((i, s) for i, s in specs if 0 < s.nbytes < _WRAP_BYTES)
        return {i: DeviceArray(self._own[i], s.shape, s.dtype).view() for i, s in small}

    def __repr__(self) -> str:
        return f"Session({self.program.name!r} on {self.device.info.id})"

    def _arena_moved(self, ordinal: int, buffer: Buffer) -> None:
        index = self._arena_index.get(ordinal)
        if index is not None:
            self._set(index, fresh(self.program, self.device, buffer, self.program.buffers[index]))

    def _set(self, index: int, buffer: Buffer) -> None:
        if self._buffers[index] is not buffer:
            self._buffers[index] = buffer
            if self._bound is not None:
                self._bound.rebind(index, buffer)

    # -- running

    def run(
        self,
        inputs: Mapping[str, Value] | Sequence[Value] = (),
        scalars: Mapping[str, int] | None = None,
        pause: Callable[[], None] | None = None,
    ) -> list[np.ndarray]:
        """Runs once; the outputs as NumPy arrays (without a copy where the device's memory is
        host memory). An output is not overwritten by later runs while the caller holds it,
        unless the Session was made with reuse_outputs. `pause`: see Device.submit_pausing."""
        return [out.view() for out in self._run(inputs, scalars, True, pause)]

    def run_device(
        self,
        inputs: Mapping[str, Value] | Sequence[Value] = (),
        scalars: Mapping[str, int] | None = None,
    ) -> list[DeviceArray]:
        """Runs once; the outputs stay on the device (work may still be in flight)."""
        return self._run(inputs, scalars, in_place=self.device.synchronous)

    def _run(
        self,
        inputs: Mapping[str, Value] | Sequence[Value],
        scalars: Mapping[str, int] | None,
        in_place: bool,
        pause: Callable[[], None] | None = None,
    ) -> list[DeviceArray]:
        """Binds, submits and returns the outputs. With `in_place`, large host inputs are read in
        place: the caller waits for the run, so they cannot change meanwhile."""
        self._bind_inputs(inputs, in_place)
        outputs = self._bind_outputs()
        values = scalar_values(self.program, self._ranges, scalars or {})
        if pause is None:
            self.device.submit(self._bound, values)
        else:
            self.device.submit_pausing(self._bound, values, pause)
        return outputs

    def direct(self, names: Sequence[str], holder: type | None = None) -> Direct | None:
        """Returns a shorter way to run a Program in host memory, or None: makers of output arrays,
        and Bound.direct's function of the outputs and then the inputs `names`."""
        p = self.program
        specs = [p.buffers[i] for i in p.outputs]
        plain = all(spec.role == "output" for spec in specs) and len(set(p.outputs)) == len(specs)
        empty = not all(p.buffers[i].nbytes for i in (*p.outputs, *p.inputs))
        if not plain or empty or sorted(names) != sorted(self._inputs):
            return None
        if p.scalars or self.state or p.meta.get("foreign") or p.meta.get("rows"):
            return None
        call = self._bound.direct([self._inputs[n] for n in names], p.outputs, holder)
        if call is None:
            return None
        return [maker(self.device, p.buffers[i], self._pool[i]) for i in p.outputs], call

    def prepare(
        self,
        inputs: Mapping[str, Value] | Sequence[Value] = (),
        scalars: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Binds inputs and outputs as `run` does, without running. Returns the content of the
        scalar buffer. For tools that run the steps themselves."""
        self._bind_inputs(inputs)
        self._bind_outputs()
        return scalar_values(self.program, self._ranges, scalars or {})

    def _bind_inputs(
        self, inputs: Mapping[str, Value] | Sequence[Value], in_place: bool = False
    ) -> None:
        names = self._inputs
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(names):
                raise UsageError(
                    f"{self.program.name} takes {len(names)} inputs ({', '.join(names)}), "
                    f"got {len(inputs)}"
                )
            inputs = dict(zip(names, inputs))
        if inputs.keys() != names.keys():
            wrong = min(inputs.keys() ^ names.keys())
            what = "misses input" if wrong in names else "has no input"
            raise UsageError(f"{self.program.name} {what} {wrong!r}; it takes {', '.join(names)}")
        for name, i in names.items():
            self._bind_input(i, self.program.buffers[i], inputs[name], in_place)

    def _bind_input(self, i: int, spec: BufferSpec, value: Value, in_place: bool) -> None:
        seen = self._seen.get(i)
        if seen is not None and seen is value and in_place and seen.shape == spec.shape:
            return  # the same array as in the last run, read in place
        self._seen.pop(i, None)
        if (small := self._small.get(i)) is not None and alike(value, small):
            self._set(i, self._own[i])
            small[...] = value
            return
        rows = self._rows.get(spec.name)
        if isinstance(value, DeviceArray | Buffer):
            self._set(i, place(self.device, spec, value))
            return
        array = fitted(spec, np.asarray(value), rows)
        if not array.nbytes:
            return
        if in_place and array.nbytes >= max(_WRAP_BYTES, spec.nbytes):
            wrapped = wrap(self.device, array)
            if wrapped is not None:
                self._set(i, wrapped)
                if array is value:
                    self._seen[i] = array
                return
        self._set(i, self._own[i])
        self.device.write(self._own[i], array)

    def _bind_outputs(self) -> list[DeviceArray]:
        made: dict[int, DeviceArray] = {}
        for i in self.program.outputs:
            if i not in made:
                spec = self.program.buffers[i]
                made[i] = DeviceArray(self._free_output(i, spec), spec.shape, spec.dtype)
                self._remember(i, made[i])
        return [made[i] for i in self.program.outputs]

    def _free_output(self, i: int, spec: BufferSpec) -> Buffer:
        """A pooled buffer that no caller holds any more, or a new one."""
        if spec.role != "output":
            return self._buffers[i]
        for buffer, holder in self._pool[i]:
            if self.reuse_outputs or holder is None or holder() is None:
                self._set(i, buffer)
                return buffer
        buffer = fresh(self.program, self.device, self.device.alloc(spec.nbytes), spec)
        self._pool[i].append((buffer, None))
        self._set(i, buffer)
        return buffer

    def _remember(self, i: int, array: DeviceArray) -> None:
        pool = self._pool.get(i, [])
        for n, (buffer, _) in enumerate(pool):
            if buffer is array.buffer:
                pool[n] = (buffer, weakref.ref(array))

    # -- state

    def read_state(self, name: str) -> np.ndarray:
        """A host copy of a state's (or weight's) content. Raises UsageError for an unknown one."""
        spec = self._named(name)
        return self.device.read(self._buffers[self._index[name]], spec.shape, spec.dtype)

    def write_state(self, name: str, value: np.ndarray) -> None:
        """Overwrites a state from NumPy; shape and dtype must fit."""
        spec = self._named(name)
        self.device.write(self._buffers[self._index[name]], fitted(spec, np.asarray(value), None))

    def _named(self, name: str) -> BufferSpec:
        if name not in self.state and name not in self.weights:
            known = ", ".join([*self.state, *self.weights]) or "none"
            raise UsageError(f"no state {name!r} in {self.program.name}; known: {known}")
        return self.program.buffers[self._index[name]]
