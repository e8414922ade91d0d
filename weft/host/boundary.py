"""The boundary of the public API: errors that Python and NumPy raise about arguments become weft's.

A function's own checks give better messages. This module catches the rest: each package guards its
public functions, classes and methods once, so that `except WeftError` catches every error.
"""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, MutableMapping
from types import FunctionType
from typing import Any, TypeVar

from weft.core.errors import CallError, InternalError, OutOfMemoryError, UsageError, WeftError
from weft.core.missing import nearest
from weft.host.blame import is_internal

_FOREIGN = (
    TypeError, ValueError, ArithmeticError, MemoryError, RecursionError, LookupError,
    AttributeError, NotImplementedError, AssertionError, NameError,
)  # fmt: skip
_OPERATORS = frozenset(
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or",
                 "xor", "lshift", "rshift")
    for side in ("", "r", "i")
) | {"__getitem__", "__setitem__", "__neg__", "__abs__", "__invert__", "__lt__", "__le__",
     "__gt__", "__ge__", "__eq__", "__ne__", "__init__"}  # fmt: skip
_GUARDED = "__weft_guarded__"
QUICK = "__weft_quick__"  # marks a function that tries a short way before a long one
_USERS = "__weft_users__"  # marks an error that a user's function raised
_FORM = "__weft_torch_form__"
# PyTorch's names of parameters, and the array API's or weft's that mean the same.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "dim": ("axis",), "dims": ("axes", "axis"), "keepdim": ("keepdims",), "shifts": ("shift",),
    "dim0": ("a",), "dim1": ("b",), "start_dim": ("start",), "end_dim": ("end",),
    "chunks": ("count",), "split_size_or_sections": ("sizes",), "split_size": ("sizes",),
}  # fmt: skip
_VARIADIC = 0x04  # of a code's co_flags: the function takes *args
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
LONGEST = 500  # characters of a message that printed a tensor
F = TypeVar("F", bound=Callable[..., Any])


def guarded(function: F, name: str = "", deep: bool = True) -> F:
    """`function`, whose foreign errors come out as CallError, UsageError or OutOfMemoryError, or as
    InternalError where the arguments cannot be the reason, with the call in the message and the
    error itself as their cause. It calls users' own functions by
    `users`, whose errors stay theirs; if not `deep`, only a call that does not fit its parameters
    is caught. Parameters may have PyTorch's names (`dim`, `keepdim`)."""
    called = name or function.__name__
    if (ways := getattr(function, QUICK, None)) is not None:  # the short way raises nothing
        around, long = ways
        quick: F = around(guarded(long, called, deep))
        setattr(quick, _GUARDED, True)
        return quick
    form = getattr(function, _FORM, None)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs and not _SPELLINGS.keys().isdisjoint(kwargs):
                if form is not None:
                    return form(*args, **kwargs)
                args, kwargs = _respelled(args, kwargs, _spelled(function))
            return function(*args, **kwargs)
        except WeftError as error:
            _shorten(error)
            raise
        except _FOREIGN as error:
            inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            if hasattr(error, _USERS) or (inside and not deep):
                raise
            raise _ours(error, called, args, kwargs, function) from error

    setattr(call, _GUARDED, True)
    return call  # type: ignore[return-value]


def users(function: F) -> F:
    """A user's function, which weft calls back: its errors pass guarded functions unchanged."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except _FOREIGN as error:
            setattr(error, _USERS, True)
            raise

    return call  # type: ignore[return-value]


def torch_form(form: Callable[..., Any]) -> Callable[[F], F]:
    """Decorates a function whose name means something else in PyTorch. A call with `dim` or
    `keepdim` goes to `form`, which has PyTorch's meaning."""

    def marked(function: F) -> F:
        setattr(function, _FORM, form)
        return function

    return marked


@functools.cache
def _spelled(function: Any) -> dict[str, str]:
    """Returns PyTorch's names of a function's parameters with the names that they have here; a
    name with a star takes the rest of the positional arguments."""
    code = getattr(function, "__wrapped__", function).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    here = dict.fromkeys(code.co_varnames[:count])
    if code.co_flags & _VARIADIC:
        here[f"*{code.co_varnames[count]}"] = None
    found = {}
    for spelling, names in _SPELLINGS.items():
        for name in (*names, *(f"*{n}" for n in names)):
            if name in here and spelling not in here:
                found[spelling] = name
                break
    return found


def _respelled(args: Any, kwargs: dict[str, Any], spelled: dict[str, str]) -> Any:
    for spelling in spelled.keys() & kwargs.keys():
        name, value = spelled[spelling], kwargs.pop(spelling)
        if name.startswith("*"):
            args = (*args, value)
        elif name in kwargs:
            raise CallError(f"{spelling} and {name} are one argument; give only one")
        else:
            kwargs[name] = value
    return args, kwargs


def check_options(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises CallError for a keyword in `given` that is not in `known`."""
    known = list(known)
    for wrong in given:
        if wrong not in known:
            right = nearest(wrong, known)
            hint = f"; did you mean {right!r}?" if right else f"; it takes {', '.join(known)}"
            raise CallError(f"{name} has no argument {wrong!r}{hint}")


def _shorten(error: WeftError) -> None:
    """Puts a message with a printed tensor in it on one line."""
    text = str(error)
    if text.count("\n") > 1:
        line = " ".join(text.split())
        error.args = (line if len(line) <= LONGEST else f"{line[:LONGEST]}...", *error.args[1:])


def _ours(error: Exception, name: str, args: Any, kwargs: Any, function: Any) -> WeftError:
    try:
        if getattr(function, "__name__", "") == "__init__":
            args = args[1:]  # not the object that is being made
        shown = [_show(a) for a in args] + [f"{k}={_show(v)}" for k, v in kwargs.items()]
        text = f"{name}({', '.join(shown)})"
    except Exception:  # a user's own __repr__ may raise anything
        text = name
    first = (str(error).strip().splitlines() or [""])[0][:200]
    if isinstance(error, MemoryError):
        return OutOfMemoryError(f"{text}: {first or 'out of memory'}; ask for less")
    if isinstance(error, RecursionError):
        return UsageError(f"{text}: the arguments are nested too deeply")
    if is_internal(error, (args, kwargs)):
        kind = type(error).__name__
        return InternalError(f"{text}: a fault in weft: {kind}: {first}; please report this line")
    why = f"{text}: {first or type(error).__name__}; see help({name.removesuffix('()')})"
    if (wrong := _UNKNOWN.search(first)) and (right := nearest(wrong[1], _parameters(function))):
        why = f"{text}: {name} has no argument {wrong[1]!r}; did you mean {right!r}?"
    kinds = (TypeError, AttributeError, LookupError)
    return CallError(why) if isinstance(error, kinds) else UsageError(why)


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _show(value: Any) -> str:
    """An argument in a few characters."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{getattr(dtype, 'name', dtype)}{list(shape)[:8]}"
    return reprlib.repr(value)[:80]


def guard_functions(namespace: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Guards the functions in `namespace`, a module's namespace, that `names` lists."""
    for name in names:
        value = namespace.get(name)
        if isinstance(value, FunctionType) and not hasattr(value, _GUARDED):
            namespace[name] = guarded(value)


def guard_calls(
    namespace: MutableMapping[str, Any], names: Iterable[str], deep: bool = False
) -> None:
    """Guards the functions and the making of the classes in a module's namespace that `names`
    lists. Unless `deep`, errors from inside pass, as they may be those of a user's function."""
    for name in names:
        value = namespace.get(name)
        if isinstance(value, FunctionType) and not hasattr(value, _GUARDED):
            namespace[name] = guarded(value, deep=deep)
        elif isinstance(value, type) and not issubclass(value, tuple | Exception):
            made = vars(value).get("__init__")
            if isinstance(made, FunctionType) and not hasattr(made, _GUARDED):
                value.__init__ = guarded(made, name, deep)  # type: ignore[method-assign]


def takes_function(function: F) -> F:
    """`function`, whose first argument is a function; CallError for anything else."""
    inner = guarded(function, deep=False)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args or tuple(kwargs[k] for k in ("fn", "func") if k in kwargs)
        if given and not callable(given[0]):
            kind = type(given[0]).__name__
            raise CallError(f"{function.__name__} takes a function first, not {kind}")
        return inner(*args, **kwargs)

    setattr(call, _GUARDED, True)
    return call  # type: ignore[return-value]


def guard_methods(owner: type, but: Iterable[str] = ()) -> None:
    """Guards a class's public methods and operators, those that it inherits within weft too; not
    those named in `but`."""
    skipped = {*but}
    found: dict[str, FunctionType] = {}
    texts: dict[str, str | None] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("weft."):
            own = {k: v for k, v in vars(base).items() if isinstance(v, FunctionType)}
            found |= own
            texts |= {k: v.__doc__ or texts.get(k) for k, v in own.items()}
    for name, value in found.items():
        public = not name.startswith("_") or name in _OPERATORS
        if public and name not in skipped and not hasattr(value, _GUARDED):
            made = guarded(value, owner.__name__ if name == "__init__" else name)
            made.__doc__ = texts[name]  # help() finds inherited texts of unwrapped functions only
            setattr(owner, name, made)
