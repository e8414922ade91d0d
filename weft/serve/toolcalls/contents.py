"""The content of a response template's region: Hugging Face's content parsers and transforms.

Source: docs/source/en/chat_response_parsing.md of transformers 5.13. Every function raises
ValueError for a text that it cannot read.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

from weft.core.errors import UsageError
from weft.serve.toolcalls.pattern import Pattern, find_all

Parse = Callable[[str], Any]
MAX_NESTED = 100
_PLAIN = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}


def parser(name: object, args: Mapping[str, Any]) -> Parse:
    """The content parser of that name. Raises UsageError for a name or an argument that the format
    does not have."""
    if not isinstance(name, str) or name not in _PARSERS:
        raise UsageError(f"response_template: content is {str(name)[:40]!r}; expected one of "
                         f"{', '.join(_PARSERS)}")  # fmt: skip
    make, known = _PARSERS[name]
    if unknown := set(args) - known:
        raise UsageError(f"response_template: {name} takes no {', '.join(sorted(unknown))}")
    return make(args)


def _strip(args: Mapping[str, Any]) -> Parse:
    return str.strip if args.get("strip", True) else str


def _simple(convert: Callable[[str], Any]) -> Callable[[Mapping[str, Any]], Parse]:
    def make(args: Mapping[str, Any]) -> Parse:
        strip = _strip(args)
        return lambda text: convert(strip(text))

    return make


def _json(args: Mapping[str, Any]) -> Parse:
    quotes = [(o, c) for o, c in args.get("string_delims", ())]
    bare_keys, lenient = args.get("unquoted_keys", False), args.get("allow_non_json", False)

    def parse(text: str) -> Any:
        try:
            return json.loads(_plain_json(text, quotes, bare_keys))
        except (ValueError, RecursionError):
            if lenient:
                return text.strip()
            raise ValueError from None

    return parse


def _plain_json(text: str, quotes: list[tuple[str, str]], bare_keys: bool) -> str:
    """Plain JSON from JSON with other quotation marks around texts, or with keys that have none."""
    if not quotes and not bare_keys:
        return text
    out: list[str] = []
    at = 0
    expects_key = False  # after a bracket or a comma
    while at < len(text):
        c = text[at]
        opened = next(((o, e) for o, e in quotes if text.startswith(o, at)), None)
        if opened is not None:
            end = text.find(opened[1], at + len(opened[0]))
            if end < 0:
                raise ValueError
            out.append(json.dumps(text[at + len(opened[0]) : end]))
            at = end + len(opened[1])
        elif c == '"':
            end = _string_end(text, at)
            out.append(text[at:end])
            at = end
        elif bare_keys and expects_key and (c.isalnum() or c == "_"):
            end = at
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            word, follows = text[at:end], text[end:].lstrip()[:1]
            out.append(json.dumps(word) if follows == ":" else word)
            at = end
        else:
            out.append(c)
            at += 1
            expects_key = c in "{," or (expects_key and c.isspace())
            continue
        expects_key = False
    return "".join(out)


def _string_end(text: str, at: int) -> int:
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    return min(end + 1, len(text))


def _inner(args: Mapping[str, Any]) -> Parse:
    nested = args.get("value_parser")
    return str if nested is None else parser(nested.get("name", "text"), nested.get("args", {}))


def _xml_inline(args: Mapping[str, Any]) -> Parse:
    pattern = Pattern(args.get("tag_pattern", ""))
    if "key" not in pattern.names:
        raise UsageError("response_template: tag_pattern lacks a group named 'key'")
    value_of, merge = _inner(args), args.get("merge_duplicates", False)

    def parse(text: str) -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        for m in find_all(pattern, text):
            if "key" not in m.groups:
                raise ValueError
            begin, end = m.groups.get("value", (0, 0))
            found.setdefault(text[slice(*m.groups["key"])], []).append(value_of(text[begin:end]))
        return {k: v if merge and len(v) > 1 else v[-1] for k, v in found.items()}

    return parse


def _kv_lines(args: Mapping[str, Any]) -> Parse:
    line_sep, kv_sep = args.get("line_sep", "\n"), args.get("kv_sep", ":")
    strip, value_of = _strip(args), _inner(args)

    def parse(text: str) -> dict[str, Any]:
        pairs = (strip(line).partition(kv_sep) for line in text.split(line_sep))
        return {strip(k): value_of(strip(v)) for k, found, v in pairs if found}

    return parse


def _call_list(args: Mapping[str, Any]) -> Parse:
    """[f(a=1, b="x"), g()]: as Python reads it, with JSON's words too; values are literals."""

    def parse(text: str) -> list[dict[str, Any]]:
        if len(text) > 1 << 20 or sum(map(text.count, "([{")) > 1 << 14:
            raise ValueError
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError from None
        if not isinstance(tree, ast.List):
            raise ValueError
        return [_call(node) for node in tree.elts]

    return parse


def _call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError
        arguments[keyword.arg] = _literal(keyword.value, 0)
    return {"name": ast.unparse(node.func), "arguments": arguments}


def _literal(node: ast.expr | None, depth: int) -> Any:
    if depth > MAX_NESTED:
        raise ValueError
    match node:
        case ast.Constant(value) if isinstance(value, str | int | float | bool | None):
            return value
        case ast.Name(name) if name in _PLAIN:
            return _PLAIN[name]
        case ast.List(items):
            return [_literal(item, depth + 1) for item in items]
        case ast.Dict(keys, values):
            names = [_literal(k, depth + 1) for k in keys]
            if not all(isinstance(name, str) for name in names):
                raise ValueError
            return dict(zip(names, (_literal(v, depth + 1) for v in values)))
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
    raise ValueError


_PARSERS: dict[str, tuple[Callable[[Mapping[str, Any]], Parse], set[str]]] = {
    "text": (_simple(str), {"strip"}),
    "int": (_simple(int), {"strip"}),
    "float": (_simple(float), {"strip"}),
    "bool": (_simple(lambda text: text.lower() in ("true", "1")), {"strip"}),
    "json": (_json, {"unquoted_keys", "string_delims", "allow_non_json"}),
    "xml-inline": (_xml_inline, {"tag_pattern", "value_parser", "merge_duplicates"}),
    "kv-lines": (_kv_lines, {"line_sep", "kv_sep", "strip", "value_parser"}),
    "python-call-list": (_call_list, set()),
}


def transformed(shape: Any, scope: Mapping[str, Any]) -> Any:
    """`shape` with every text "{name}" or "{name.key}" replaced by what `scope` has there. Raises
    ValueError where it has nothing."""
    if isinstance(shape, Mapping):
        return {k: transformed(v, scope) for k, v in shape.items()}
    if isinstance(shape, list):
        return [transformed(v, scope) for v in shape]
    if not isinstance(shape, str) or shape[:1] != "{" or shape[-1:] != "}":
        return shape
    value: Any = scope
    for key in shape[1:-1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError
        value = value[key]
    return value
