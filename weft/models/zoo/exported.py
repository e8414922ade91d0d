"""In the tracing process: an exported graph becomes a form (`form`)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import torch

from weft.core.dtypes import DType
from weft.importers.ports import Ref
from weft.importers.steps import refs
from weft.importers.torch_export import live
from weft.importers.torch_export.build import inlined
from weft.importers.torch_export.graph import CallNode
from weft.importers.torch_export.memory import functional, writes_in_place
from weft.models.arch.traced import ATTENTION, CONV, RECURRENCE
from weft.models.zoo import form, operators, places

KEPT = 1 << 22  # elements of constants altogether
LARGE = 1 << 20  # elements of a result that is not kept


def form_of(
    program: Any, model: Any, small: dict[str, Any], names: dict[str, list[int]]
) -> dict[str, Any]:
    """Returns the form of an exported model, but for the facts of its config. `small` has the
    buffers with content, `names` the shapes of the checkpoint's tensors."""
    given = [(spec.arg.name, spec.target, spec.kind.name)
             for spec in program.graph_signature.input_specs]  # fmt: skip
    calls, result = _functional(program, [value for value, *_ in given])
    read = {ref for call in calls for ref in form.refs_of(call)}
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    known, state = dict(named), model.state_dict()
    tensors, constants, inputs = {}, {}, []
    for value, target, kind in given:
        if kind == "USER_INPUT":
            inputs.append(value)
        elif value in read:
            name = target.removeprefix("model.")
            if kind == "PARAMETER" or name in state:
                tensors[value] = name
            else:
                constants[value] = small.get(name, program.constants.get(target))
    calls = list(folded(calls, constants))
    read = {ref for call in calls for ref in form.refs_of(call)}
    constants = {name: value for name, value in constants.items() if name in read}
    placed = places.placed(model, names, set(tensors.values()))
    return {
        "inputs": inputs,
        "calls": [form.call_data(call) for call in calls],
        "result": form.value_data(result),
        "tensors": tensors,
        "shapes": {n: list(known[n].shape) for n in tensors.values()},
        "constants": _constants(constants),
        "attends": [_attend(node) for node in _nodes(program.graph_module, ATTENTION)],
        "convs": [_conv(node) for node in _nodes(program.graph_module, CONV)],
        "memories": [_memory(node) for node in _nodes(program.graph_module, RECURRENCE)],
        "places": placed.places,
        "unread": placed.unread,
    }


def _functional(program: Any, inputs: list[str]) -> tuple[list[CallNode], Any]:
    """Returns the calls that the logits need, without regions and writes in place, and the
    logits."""
    body = live.body_of(program.graph_module)
    calls, results = list(inlined(body.calls)), list(body.outputs)
    if writes_in_place(calls):
        calls, results, written = functional(calls, results, inputs)
        if written:
            raise operators.Refused(f"the model writes to {min(written)}")
    return _alive(calls, results[0]), results[0]


def _constants(given: dict[str, Any]) -> dict[str, Any]:
    for value, array in given.items():
        if array is None or array.device.type == "meta":
            raise operators.Refused(f"the content of {value} is not known without the weights")
    if sum(array.numel() for array in given.values()) > KEPT:
        raise operators.Refused("the model has constants of more than 16 MiB")
    return {value: _constant(array) for value, array in given.items()}


def _nodes(module: Any, target: str) -> Iterator[Any]:
    """Yields the calls of an operator in their order, with those in regions."""
    for node in module.graph.nodes:
        if node.op == "call_function":
            if str(node.target) == target:
                yield node
            for x in node.all_input_nodes:
                if x.op == "get_attr" and isinstance(region := getattr(module, x.target, None),
                                                     torch.fx.GraphModule):  # fmt: skip
                    yield from _nodes(region, target)


def _attend(node: Any) -> dict[str, Any]:
    """Returns the fields of an AttentionCall."""
    (q, k, v), (scale, window, chunk, softcap, causal) = node.args[:3], node.args[4:]
    if not causal:
        raise operators.Refused("attention looks at later tokens too")
    if chunk:
        raise operators.Refused(f"attention is cut into chunks of {chunk} positions")
    shape = [x.meta["val"].shape for x in (q, k, v)]
    return {
        "heads": int(shape[0][1]), "kv_heads": int(shape[1][1]), "key_dim": int(shape[1][3]),
        "value_dim": int(shape[2][3]), "scale": scale, "window": window, "softcap": softcap,
    }  # fmt: skip


def _conv(node: Any) -> list[int]:
    """Returns the number of channels of a short convolution, and of its taps."""
    return [int(n) for n in node.args[1].meta["val"].shape]


def _memory(node: Any) -> list[int]:
    """Returns the shape of a recurrence's memory."""
    key, value = (x.meta["val"].shape for x in node.args[1:3])
    return [int(value[2]), int(key[3]), int(value[3])]


def _constant(array: Any) -> dict[str, Any]:
    held = array.detach().cpu().contiguous()
    if held.dtype == torch.int64:
        held = held.to(torch.int32)
    if held.dtype in (torch.float64, torch.bfloat16, torch.float16):
        held = held.to(torch.float32)
    data = held.numpy()
    return {
        "dtype": data.dtype.name,
        "shape": list(data.shape),
        "data": base64.b64encode(data.tobytes()).decode(),
    }


def _alive(calls: list[CallNode], result: Any) -> list[CallNode]:
    """Returns the calls that the result needs. Checks of the exporter's own go."""
    needed = set(refs(result))
    kept: list[CallNode] = []
    for call in reversed(calls):
        outs = (call.out,) if isinstance(call.out, str) else call.out
        if needed.intersection(outs):
            needed.update(form.refs_of(call))
            kept.append(call)
    return kept[::-1]


def folded(calls: list[CallNode], constants: dict[str, Any]) -> Iterator[CallNode]:
    """Yields the calls, less those on constants alone, whose results become constants."""
    for call in calls:
        reads = form.refs_of(call)
        known = all(torch.is_tensor(constants.get(r)) and not constants[r].is_meta for r in reads)
        made = _computed(call, constants) if reads and known else None
        if made is None:
            yield call
            continue
        outs = (call.out,) if isinstance(call.out, str) else call.out
        results = (made,) if isinstance(call.out, str) else made
        constants |= {name: value for name, value in zip(outs, results) if name}


def _computed(call: CallNode, constants: dict[str, Any]) -> Any:
    """Returns the results of an ATen operator; None if it is none, or its results are large."""
    space, _, rest = call.target.partition(".")
    name, _, overload = rest.partition(".")
    if space != "aten":
        return None
    operator = getattr(getattr(torch.ops.aten, name), overload)
    args = _torch(call.args, constants)
    if call.target == "aten.to.device":
        args[1] = operators.HOST
    made = operator(*args, **_torch(call.kwargs, constants))
    tensors = made if isinstance(made, tuple | list) else [made]
    whole = all(torch.is_tensor(x) and x.numel() <= LARGE for x in tensors)
    return made if whole else None


def _torch(value: Any, constants: dict[str, Any]) -> Any:
    """Returns nested arguments with constants for Refs and PyTorch's dtypes."""
    if isinstance(value, Ref):
        return constants[value.name]
    if isinstance(value, list | tuple):
        return [_torch(x, constants) for x in value]
    if isinstance(value, dict):
        return {k: _torch(x, constants) for k, x in value.items()}
    return getattr(torch, value.name) if isinstance(value, DType) else value
