"""Chat templates as data for pages (js/template.js): the tree of Jinja's own parser, if the page
supports all of its nodes.

tests/web/test_page_chat.py compares the behaviour of Python's values there with Jinja's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from weft.core.errors import ModelError
from weft.models.text.tokenizer import Tokenizer
from weft.web.calls import page_calls


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NODES = _words(
    "Add And Assign AssignBlock Break Call Compare Concat CondExpr Const Continue Dict Filter "
    "FloorDiv For Getattr Getitem If Keyword List Macro Mod Mul NSRef Name Neg Not Operand Or "
    "Output Pair Scope Slice Sub Template TemplateData Test Tuple"
)
FILTERS = {  # and the names that their arguments may be given by
    "capitalize": (), "count": (), "d": ("default_value", "boolean"),
    "default": ("default_value", "boolean"), "first": (), "items": (), "join": ("d", "attribute"),
    "last": (), "length": (), "list": (), "lower": (), "map": ("attribute",), "reject": (),
    "rejectattr": (), "replace": ("old", "new", "count"), "reverse": (), "select": (),
    "selectattr": (), "string": (), "title": (), "tojson": ("ensure_ascii", "indent"),
    "trim": ("chars",), "upper": (),
}  # fmt: skip
TESTS = _words(
    "!= == boolean defined divisibleby eq equalto even false in integer iterable mapping ne none "
    "number odd sequence string true undefined"
)
TEXT_METHODS = _words(
    "capitalize endswith find join lower lstrip removeprefix removesuffix replace rsplit rstrip "
    "split startswith strip upper"
)
DICT_METHODS = _words("get items keys values")
GLOBALS = _words("namespace raise_exception range strftime_now")
LOOP = _words("first index index0 last length nextitem previtem revindex revindex0")
# Jinja gives these names a meaning other than a variable or a dict's entry.
_RESERVED = _words("caller cycler dict joiner kwargs lipsum self super varargs")
_OTHER = frozenset(dir(dict)) - {n for n in dir(dict) if n.startswith("__")}
_TIME = re.compile(r"(?:[^%]|%[aAbBdmyYHMS%])*")


def chat_file(tokenizer: Tokenizer, eos: Iterable[int] = ()) -> bytes:
    """JSON of {"template": a tree, "special": the special tokens, "calls": how calls of tools are
    written (page_calls)}. Raises ModelError naming the parts that a page cannot run, and the errors
    of `ChatTemplate`."""
    tree = playable(tokenizer.chat_template().tree())
    calls = page_calls(tokenizer, eos)
    data = {"template": tree, "special": tokenizer.special_tokens, "calls": calls}
    try:
        return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ModelError("the chat template is not valid Unicode") from None


def playable(tree: list[Any]) -> list[Any]:
    """The tree, in place as the player takes it, or a ModelError that names what it has not."""
    for node in _nodes(tree):
        _check(node)
    return tree


def _nodes(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            yield value
        for inner in value:
            yield from _nodes(inner)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ModelError(f"a page cannot run the chat template: pages lack {what}")


def _check(node: list[Any]) -> None:
    kind = node[0]
    _need(kind in NODES, f"{kind} of Jinja")
    check = _CHECKS.get(kind)
    if check is not None:
        check(*node[1:])
    if kind == "Output":
        for n, each in enumerate(node[1]):  # nothing is escaped, so `safe` changes no text
            while each[0] == "Filter" and each[2] == "safe":
                each = node[1][n] = each[1]
    elif kind == "Filter" and node[2] == "map" and node[4]:
        node[2:5] = ["map.attribute", [node[4][0][2]], []]
    elif kind == "Call" and node[1][0] == "Getattr":
        node[:] = ["Method", *node[1][1:3], node[2]]


def _const(value: Any) -> None:
    _need(not isinstance(value, float), "numbers with a fraction")
    _need(not isinstance(value, int) or abs(value) < 1 << 53, "numbers that large")


def _name(name: str, _ctx: str) -> None:
    _need(name not in _RESERVED, name)


def _attribute(of: list[Any], name: str, _ctx: str) -> None:
    _need(not name.startswith("_") and name not in _OTHER, f"attribute {name}")
    _need(of[:2] != ["Name", "loop"] or name in LOOP, f"loop.{name}")


def _item(_of: list[Any], key: list[Any], _ctx: str) -> None:
    _need(key[0] != "Const" or key[1] not in _OTHER, f"item {key[-1]!r}")


def _call(callee: list[Any], args: list[Any], named: list[Any], more: Any, others: Any) -> None:
    _need(more is None and others is None, "calls with * or **")
    if callee[0] == "Getattr":
        name = callee[2]
        _need(name in TEXT_METHODS | DICT_METHODS, f"method {name}")
        _need(not named, f"named arguments of {name}")
    else:
        _need(callee[0] == "Name", "calls of what is no name")
    if callee[:2] == ["Name", "strftime_now"]:
        plain = len(args) == 1 and args[0][0] == "Const" and isinstance(args[0][1], str)
        _need(plain and _TIME.fullmatch(args[0][1]) is not None, "time written so")
    if callee[:2] == ["Name", "namespace"]:
        _need(not args, "namespace made of a dict")
    elif callee[0] == "Name" and callee[1] in GLOBALS:
        _need(not named, f"named arguments of {callee[1]}")


def _filter(of: Any, name: str, args: list[Any], named: list[Any], more: Any, others: Any) -> None:
    _need(name in FILTERS, f"filter {name}")
    _need(of is not None and more is None and others is None, f"filter {name} used so")
    for _, key, _value in named:
        _need(key in FILTERS[name], f"filter {name} with {key}")
    if name == "map":
        _need(bool(args) != bool(named), "map used so")
        if args:
            _need(args[0][0] == "Const" and args[0][1] in FILTERS, "map with such a filter")
        _path(named[0][2] if named else args[0])
    elif name in ("select", "reject", "selectattr", "rejectattr"):
        which = args[1:] if name.endswith("attr") else args
        known = not which or (which[0][0] == "Const" and which[0][1] in TESTS)
        _need(known, f"{name} with such a test")
        if name.endswith("attr"):
            _path(args[0])
    elif name == "tojson":
        _need(not args, "tojson with arguments without names")


def _path(of: list[Any]) -> None:
    """The attribute that filters look up."""
    plain = of[0] == "Const" and isinstance(of[1], str)
    _need(plain and not _OTHER & set(of[1].split(".")), "such an attribute in a filter")


def _test(_of: Any, name: str, _args: list[Any], named: list[Any], more: Any, others: Any) -> None:
    _need(name in TESTS, f"test {name}")
    _need(not named and more is None and others is None, f"test {name} used so")


def _for(_target: Any, _iter: Any, _body: Any, _else: Any, _test: Any, recursive: bool) -> None:
    _need(not recursive, "recursive loops")


def _block(_target: Any, filter_: Any, _body: Any) -> None:
    _need(filter_ is None, "filtered set block")


_CHECKS: dict[str, Callable[..., None]] = {
    "AssignBlock": _block, "Call": _call, "Const": _const, "Filter": _filter, "For": _for,
    "Getattr": _attribute, "Getitem": _item, "Name": _name, "Test": _test,
}  # fmt: skip
