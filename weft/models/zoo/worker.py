"""The tracing process: builds a model of transformers without weights, and returns its graph.

It runs by `weft.host.confined`. The model is built on PyTorch's meta device, which holds shapes
alone. When the graph runs, each row is a sequence of one token, so its first axis is the engine's
rows. It is exported with both sizes open.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from weft.core.errors import WeftError
from weft.models.zoo import methods, operators, places, recurrent
from weft.models.zoo.decoders import Stateless, traced_model
from weft.models.zoo.defaults import position_offset, probe
from weft.models.zoo.eager import Eager
from weft.models.zoo.exported import form_of
from weft.models.zoo.logits import Logits
from weft.models.zoo.rows import mixed

LARGE = 1 << 20  # elements of a tensor whose content is not kept
MASK = 1 << 23  # the same of models that write attention out, whose masks may be tables
EAGER = "eager"  # transformers' name of attention that is written out
SHORTEST, LONGEST = 16, 1 << 30  # tokens of a text


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Returns {"traced": the form of the model}, or {"refused": the reason} for a request of
    {"config": config.json, "names": {checkpoint name: shape}, "whole": True for one that reads
    whole texts}. The request {"type": ...} asks whether there are causal models of the type. The
    first request, {}, cuts the process off the network."""
    if not request:
        socket.socket = _no_network  # type: ignore[assignment, misc]
        sys.setrecursionlimit(10_000)  # graphs are deep
    try:
        if "type" in request:
            _known(request["type"])
        if "config" not in request:
            return {}
        settings = _Settings.of(request)
    except operators.Refused as error:
        return {"refused": str(error)}
    make = _whole if request.get("whole") else _cached
    made = _tried(make, settings)
    if "refused" in made and make is _cached and "traced" in _tried(_whole, settings):
        made["recomputes"] = True
    return made


def _tried(make: Callable[[_Settings], dict[str, Any]], settings: _Settings) -> dict[str, Any]:
    """Returns {"traced": the form that `make` returns}, or {"refused": the reason}."""
    try:
        with operators.registered():
            return {"traced": make(settings)}
    except (operators.Refused, places.Unplaced) as error:
        return {"refused": str(error)}
    except Exception as error:  # of transformers' and PyTorch's code
        if operators.met(error):
            return {"refused": "its attention does not go through transformers' interface"}
        if isinstance(error, WeftError):
            return {"refused": str(error)}
        if "Constraints violated" in str(error):
            return {"refused": "its code depends on the length of the text"}
        said = (str(error).strip() or "no reason given").splitlines()[0][:300]
        return {"refused": f"transformers {transformers.__version__}: "
                f"{type(error).__name__}: {said}"}  # fmt: skip


def _no_network(*args: Any, **kwargs: Any) -> Any:
    raise OSError("the tracing process has no network")


class _Outlines(TorchFunctionMode):
    """Tensors without content where they are large or empty: parameters, that is. Small ones that
    models compute when they are built, such as frequencies, keep their content."""

    _EMPTY = {torch.empty, torch.empty_strided, torch.rand, torch.randn}
    _FULL = {torch.zeros, torch.ones, torch.full, torch.arange, torch.tril, torch.triu, torch.eye}

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._EMPTY or (func in self._FULL and _count(func, args) > self.most):
            kwargs = {**kwargs, "device": "meta"}
        if func is torch.Tensor.copy_ and isinstance(args[0], torch.nn.Parameter):
            return args[0]  # a first value, which weights replace
        return func(*args, **kwargs)


def _count(func: Any, args: Any) -> int:
    if args and isinstance(args[0], torch.Tensor):
        return 0
    if func is torch.full:
        args = args[:1]
    sizes = args[0] if args and isinstance(args[0], tuple | list | torch.Size) else args
    numbers = [x for x in sizes if isinstance(x, int)]
    if func is torch.arange:
        return max(numbers, default=0)
    count = 1
    for n in numbers:
        count *= n
    return count


def _known(kind: str) -> None:
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise operators.Refused(
            f"transformers {transformers.__version__} lacks a causal model of this type"
        )


class _Settings(NamedTuple):
    """A model to trace: its class in transformers, its config, its type, and the names and shapes
    of the checkpoint's tensors."""

    cls: Any
    config: Any
    kind: str
    names: dict[str, list[int]]

    @classmethod
    def of(cls, request: dict[str, Any]) -> _Settings:
        config = request["config"]
        kind = str(config.get("model_type"))
        _known(kind)
        given = {k: v for k, v in config.items() if k not in ("auto_map", "quantization_config")}
        if hasattr(PreTrainedConfig, "_decode_special_floats"):
            given = PreTrainedConfig._decode_special_floats(given)
        settings = CONFIG_MAPPING[kind].from_dict(given)
        model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(settings)]
        if not isinstance(settings, model.config_class):  # of a model with pictures or sounds
            settings = settings.get_text_config(decoder=True)
        return cls(model, settings, kind, request["names"])


def _cached(given: _Settings) -> dict[str, Any]:
    """Returns the form of a model whose rows are tokens: its attention is the engine's."""
    try:
        return _graph(_built(given.cls, given.config), given, None)
    except Exception as error:
        if not operators.met(error) and not isinstance(error, Stateless):
            raise
        first = error
    try:
        return _graph(_outline(given.cls, given.config, EAGER).eval(), given, Eager())
    except operators.Refused:
        raise
    except Exception:
        raise first from None


def _whole(given: _Settings) -> dict[str, Any]:
    """Returns the form of a model that reads a whole text [1, T]."""
    model = _outline(given.cls, given.config, EAGER).eval()
    small = _small(model)
    model.to("meta")
    ids = torch.zeros((1, 5), dtype=torch.int64, device="meta")
    program = torch.export.export(
        Logits(model), (ids,), dynamic_shapes=({1: torch.export.Dim.DYNAMIC},), strict=False
    )
    made = form_of(program, model, small, given.names) | _facts(model.config)
    made |= {"family": given.kind, "alibi": False, "whole": True}
    made["max_positions"] = min(made["max_positions"], _longest(program))
    traced_model(made, "its graph")
    return made


def _longest(program: Any) -> int:
    """Returns the longest text that an exported graph is right for; its code may do something else
    with longer ones."""
    (ids,) = program.graph_signature.user_inputs
    given = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == ids)
    ends = program.range_constraints[given.meta["val"].shape[1].node.expr]
    if ends.lower > SHORTEST:
        raise operators.Refused(f"its code is another for texts of less than {ends.lower} tokens")
    return int(min(ends.upper, LONGEST))


def _small(model: Any) -> dict[str, Any]:
    """Returns the buffers with content."""
    return {n: b for n, b in model.named_buffers() if b.device.type != "meta"}


def _graph(model: Any, given: _Settings, eager: Eager | None) -> dict[str, Any]:
    """Returns the form of a model, which is proved; with `eager` its attention is found where it is
    written out."""
    small = _small(model)
    logits = Logits(model, eager)
    with recurrent.replaced(model), methods.replaced(model):
        text = model.config.get_text_config()
        logits.offset = position_offset(logits, int(text.vocab_size))
        if eager is not None:
            probe(logits, text, _facts(model.config)["max_positions"])
        model.to("meta")
        sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        ids = torch.zeros((3, 5), dtype=torch.int64, device="meta")
        program = torch.export.export(
            logits, (ids, ids.clone()), dynamic_shapes=(sizes, sizes), strict=False
        )
    made = form_of(program, model, small, given.names) | _facts(model.config)
    made |= {"family": given.kind, "whole": False}
    made["alibi"] = eager is not None and any(one.slopes for one in eager.kinds)
    reason = mixed(traced_model(made, "its graph").config)
    if reason:
        raise operators.Refused(reason)
    return made


def _built(cls: Any, config: PreTrainedConfig) -> Any:
    try:
        model = _outline(cls, config, operators.NAME)
    except KeyError:  # older code, which writes its ways of attention out
        model = _outline(cls, config, operators.PLAIN)
    model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Module):
            module.training = False
    return model


def _outline(cls: Any, config: PreTrainedConfig, attention: str) -> Any:
    with _Outlines(MASK if attention == EAGER else LARGE):
        return cls._from_config(
            config, dtype=torch.float32, attn_implementation=attention,
            experts_implementation=operators.NAME,
        )  # fmt: skip


def _facts(config: Any) -> dict[str, Any]:
    text = config.get_text_config(decoder=True)
    known = (getattr(text, n, None) for n in ("max_position_embeddings", "n_positions"))
    positions = next((n for n in known if n and n > 0), None)
    return {
        "vocab": int(text.vocab_size),
        "hidden": int(text.hidden_size),
        "max_positions": int(positions or getattr(text, "max_seq_len", 0) or 1 << 17),
    }
