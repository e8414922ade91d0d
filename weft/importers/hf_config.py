"""JSON files of a Hugging Face folder, read as data from a stranger: bounded, typed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, ModelError, unreadable
from weft.core.hints import command
from weft.core.notices import say
from weft.core.text import shown
from weft.host.private import read_regular

MAX_JSON = 64 << 20  # bytes; the index of a very large model has a few
MAX_CONFIG = 4 << 20  # bytes; what people write is below 100 KB


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that refuses a repeated name instead of keeping the last."""
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the name {key[:80]!r} appears twice in one object")
        out[key] = value
    return out


def parse_json(data: bytes, where: str) -> Any:
    """The value of JSON text in UTF-8. Raises FileFormatError, saying `where`, for anything else:
    broken UTF-8 or syntax, repeated names, absurd nesting, numbers of thousands of digits."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=no_duplicates)
    except UnicodeDecodeError as e:
        raise FileFormatError(f"{where}: not UTF-8 text (byte {e.start}); expected JSON") from None
    except RecursionError:
        raise FileFormatError(f"{where}: JSON nested too deeply") from None
    except ValueError as e:  # JSONDecodeError is one
        raise FileFormatError(f"{where}: not valid JSON: {e}") from None


def read_bounded(path: Path, limit: int = MAX_JSON) -> bytes:
    """The bytes of a regular file of at most `limit` bytes, else FileFormatError."""
    try:
        return read_regular(path, limit)
    except OSError as e:
        raise unreadable(path, e) from None
    except UnicodeEncodeError:  # a name from a file, with what no file system holds
        raise FileFormatError(f"{str(path)!a}: not the name of a file") from None


def read_object(path: Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """The JSON object in the file at `path`; FileFormatError if it holds anything else."""
    value = parse_json(read_bounded(path, limit), str(path))
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected a JSON object, found {_kind(value)}")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "null" if value is None else f"the number {value!r:.40}")


_REQUIRED: Any = object()


class Fields:
    """Typed, bounded access to a JSON object. Every getter raises ModelError naming the file, the
    field, what it holds and what was expected. A field that is absent or null takes the default,
    or is an error where there is none. `called` maps the path of a field to its name in messages,
    if the fields were made from those of another format."""

    def __init__(self, data: Mapping[str, Any], where: str, called: Mapping[str, str] = {}) -> None:
        self.data = data
        self.where = where
        self._called = called

    def name(self, field: str) -> str:
        """The name of a field in messages."""
        return self._called.get(field, field)

    def having(self, data: Mapping[str, Any]) -> Fields:
        """Other fields from the same place."""
        return Fields(data, self.where, self._called)

    def over(self, more: Mapping[str, Any]) -> Fields:
        """The same with some fields replaced."""
        return self.having({**self.data, **more})

    def _get(self, name: str, default: Any, expected: str) -> tuple[Any, bool]:
        value = self.data.get(name)
        if value is not None:
            return value, True
        if default is _REQUIRED:
            raise ModelError(f"{self.where}: {self.name(name)} is missing; expected {expected}")
        return default, False

    def _bad(self, name: str, value: object, expected: str) -> ModelError:
        said = shown(repr(value) if isinstance(value, str) else value)
        return ModelError(f"{self.where}: {self.name(name)} is {said}; expected {expected}")

    def integer(self, name: str, lo: int, hi: int, default: Any = _REQUIRED) -> Any:
        """An integer in [lo, hi], or `default`."""
        expected = f"an integer from {lo} to {hi}"
        value, given = self._get(name, default, expected)
        if not given:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not lo <= value <= hi:
            raise self._bad(name, value, expected)
        return value

    def number(self, name: str, lo: float, hi: float, default: Any = _REQUIRED) -> Any:
        """A finite number in [lo, hi] as float, or `default`."""
        expected = f"a number from {lo:g} to {hi:g}"
        value, given = self._get(name, default, expected)
        if not given:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(name, value, expected)
        if not lo <= value <= hi or math.isnan(value):
            raise self._bad(name, value, expected)
        return float(value)

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        value, given = self._get(name, default, "true or false")
        if given and not isinstance(value, bool):
            raise self._bad(name, value, "true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED, choices: Sequence[Any] = ()) -> Any:
        """A string (one of `choices` where given), or `default`."""
        expected = "one of " + ", ".join(choices) if choices else "a string"
        value, given = self._get(name, default, expected)
        if given and (not isinstance(value, str) or (choices and value not in choices)):
            raise self._bad(name, value, expected)
        return value

    def integers(self, name: str, lo: int, hi: int) -> tuple[Any, ...]:
        """An integer or a list of at most 1024 of them, each in [lo, hi]; () when absent."""
        expected = f"an integer or a list of integers from {lo} to {hi}"
        value, given = self._get(name, (), expected)
        if not given:
            return ()
        items = value if isinstance(value, list) else [value]
        bad = any(isinstance(v, bool) or not isinstance(v, int) or not lo <= v <= hi for v in items)
        if bad or len(items) > 1024:
            raise self._bad(name, value, expected)
        return tuple(items)

    def numbers(self, name: str, lo: float, hi: float) -> tuple[float, ...]:
        """A list of at most 4096 numbers, each in [lo, hi]; () when absent."""
        expected = f"a list of numbers from {lo:g} to {hi:g}"
        value, given = self._get(name, (), expected)
        if not given:
            return ()
        if not isinstance(value, list) or len(value) > 4096:
            raise self._bad(name, value, expected)
        for v in value:
            if isinstance(v, bool) or not isinstance(v, int | float) or not lo <= v <= hi:
                raise self._bad(name, v, expected)
        return tuple(float(v) for v in value)

    def texts(self, name: str, limit: int = 4096) -> tuple[Any, ...]:
        """A list of strings; () when absent."""
        value, given = self._get(name, (), "a list of strings")
        if not given:
            return ()
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._bad(name, value, "a list of strings")
        if len(value) > limit:
            raise self._bad(name, f"{len(value)} strings", f"at most {limit}")
        return tuple(value)

    def section(self, name: str) -> Fields | None:
        """The object under `name`, or None when absent or null."""
        value, given = self._get(name, None, "an object")
        if not given:
            return None
        if not isinstance(value, dict):
            raise self._bad(name, value, "an object")
        at = f"{name}."
        inner = {k.removeprefix(at): v for k, v in self._called.items() if k.startswith(at)}
        where = self.where if self._called else f"{self.where}: {name}"
        return Fields(value, where, {**self._called, **inner})


def read_config(
    folder: Path, name: str = "config.json", expected: str = "a Hugging Face model folder"
) -> Fields:
    """`config.json` of a model folder. Raises ModelError when the folder has none,
    FileFormatError when it is not a JSON object."""
    path = folder / name
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ModelError(f"{folder} {what}; expected {expected}")
    if not path.exists():
        made = (folder / "model", folder / "adapter")  # `weft train` makes these folders
        inner = [p for p in made if any((p / n).exists() for n in (name, "adapter_config.json"))]
        hint = f"did you mean {inner[0]}?" if inner else f"expected {expected}"
        raise ModelError(f"{folder} has no {name}; {hint}")
    if name == "config.json" and has_weights(folder):
        _say_adapter(folder)
    return Fields(read_object(path, MAX_CONFIG), str(path))


def has_weights(folder: Path) -> bool:
    """True if a folder holds a model's weights, and not only those of an adapter."""
    return any((folder / f"model.safetensors{end}").exists() for end in ("", ".index.json"))


def _say_adapter(folder: Path) -> None:
    """Says that weft reads a model without the LoRA adapter in the same folder."""
    if (folder / "adapter_model.safetensors").exists():
        merged = command("merge", folder, folder, "-o", "MERGED")
        say(f"{folder} holds a model and a LoRA adapter; weft reads the model without it\n"
            f"for a model with the adapter in it: {merged}")  # fmt: skip
    elif (folder / "adapter_config.json").exists():
        say(f"{folder} holds a model; weft does not read its adapter_config.json, which has no "
            "adapter_model.safetensors")  # fmt: skip
