"""Facts about Python's library, read from its own docstrings: name, signature, first sentence.

They are what box-chat learns (scripts/box_chat.py). The sentences are Python's documentation,
(c) Python Software Foundation, used under the PSF License Version 2.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

LONGEST = 150  # characters of a sentence; longer ones are left out
MODULES = {  # module -> what it is for, in our words
    "os": "talks to the operating system: files, folders, processes and environment variables",
    "os.path": "works on the names of files and folders",
    "pathlib": "gives file paths as objects, such as Path",
    "re": "searches and replaces text by regular expressions",
    "json": "reads and writes JSON text",
    "itertools": "makes and combines iterators",
    "functools": "holds functions that work on other functions, such as caches",
    "collections": "holds more containers, such as Counter, deque and defaultdict",
    "math": "holds mathematical functions of real numbers",
    "random": "draws random numbers and random choices",
    "datetime": "holds dates, times and time differences",
    "time": "reads clocks and waits",
    "sys": "holds variables and functions of the interpreter itself",
    "subprocess": "starts other programs and talks to them",
    "shutil": "copies, moves and removes files and whole folders",
    "csv": "reads and writes tables as comma-separated values",
    "logging": "writes log messages of several levels",
    "argparse": "reads the arguments of a command line",
    "threading": "runs several threads and lets them wait for one another",
    "string": "holds sets of characters and string templates",
    "copy": "copies objects, shallow or deep",
    "glob": "finds files whose names match a pattern",
    "fnmatch": "matches file names against patterns",
    "tempfile": "makes temporary files and folders",
    "hashlib": "computes hashes such as SHA-256 and MD5",
    "base64": "writes bytes as text in base 64, 32 or 16, and back",
    "struct": "packs numbers into bytes and unpacks them",
    "pickle": "turns Python objects into bytes and back",
    "io": "holds streams of text and bytes",
    "operator": "holds Python's operators as functions",
    "statistics": "computes means, medians and other statistics",
    "decimal": "computes with decimal numbers of any precision",
    "fractions": "computes with exact fractions",
    "heapq": "keeps a list as a heap, whose least item comes first",
    "bisect": "finds places in sorted lists",
    "contextlib": "helps to write context managers for the with statement",
    "enum": "makes enumerations: sets of named constants",
    "dataclasses": "makes classes that mainly hold data",
    "textwrap": "wraps and indents paragraphs of text",
    "pprint": "prints data structures in a readable way",
    "urllib.parse": "takes URLs apart and puts them together",
    "urllib.request": "opens URLs",
    "socket": "talks over the network at a low level",
    "inspect": "looks at functions, classes and other live objects",
    "traceback": "prints and formats stack traces",
    "warnings": "issues and filters warnings",
    "uuid": "makes unique identifiers",
    "zipfile": "reads and writes ZIP files",
    "tarfile": "reads and writes tar files",
    "gzip": "reads and writes gzip files",
    "zlib": "compresses and decompresses bytes",
    "sqlite3": "works with SQLite databases",
    "queue": "holds queues that several threads share",
    "secrets": "makes random numbers that are safe for passwords and tokens",
    "platform": "tells which machine, system and Python this is",
    "types": "holds the names of built-in types",
    "weakref": "holds references that do not keep objects alive",
    "calendar": "works with calendars",
    "html": "escapes and unescapes HTML",
    "asyncio": "runs coroutines: code that waits for many things at once",
    "unittest": "tests programs",
    "signal": "handles signals of the system",
    "difflib": "compares sequences and shows the differences",
    "timeit": "measures how long small pieces of code take",
    "configparser": "reads and writes configuration files in the style of INI",
    "ast": "parses Python source into a tree",
    "getpass": "asks for a password without showing it",
    "array": "holds arrays of numbers of one type",
    "locale": "works with the conventions of languages and countries",
    "codecs": "encodes and decodes text and streams",
    "binascii": "converts between bytes and text such as hexadecimal",
    "hmac": "computes keyed hashes of messages",
    "shlex": "splits text as a shell does",
    "select": "waits until files or sockets are ready",
    "gc": "controls the garbage collector",
    "importlib": "imports modules by name",
    "concurrent.futures": "runs calls in pools of threads or processes",
    "multiprocessing": "runs several processes",
    "http.client": "talks HTTP as a client",
    "email": "reads and writes email messages",
    "xml.etree.ElementTree": "reads and writes XML as a tree of elements",
    "typing": "holds types for annotations",
    "abc": "makes abstract base classes",
    "keyword": "tells which words Python reserves",
    "numbers": "holds abstract classes of numbers",
    "cmath": "holds mathematical functions of complex numbers",
}  # fmt: skip
CLASSES = (  # whose methods are facts
    str, list, dict, set, frozenset, tuple, int, float, bytes, "pathlib.Path",
    "collections.Counter", "collections.deque", "collections.OrderedDict", "datetime.datetime",
    "datetime.date", "datetime.timedelta", "threading.Thread", "threading.Lock",
    "threading.Event", "subprocess.Popen", "argparse.ArgumentParser", "queue.Queue",
    "re.Pattern", "re.Match",
)  # fmt: skip
RARE = re.compile(
    r"os\.(W[A-Z]|spawn|exec|sched_|posix|p?(read|write)v?2?$|preadv|pwritev|[gs]et\w*(id|groups|sid)"
    r"|\w*xattr|minor|major|makedev|login_tty|openpty|ctermid|lch|memfd|eventfd|splice|sendfile"
    r"|lockf|pidfd|tc[gs]et|unshare|\w*pri?o?rity|wait\w+|f(d|p)?(sync|open|atasync|athconf|ork\w+)"
    r"|confstr|copy_file_range|set_blocking|get_blocking|device_encoding|\w*_result$|sysconf)"
)
OURS = {  # sentences for docstrings that have none
    "dict": ("dict(**kwargs)", "Make a dictionary, from pairs of keys and values or from names."),
    "dict.items": ("dict.items()", "Return a view of all pairs of keys and values."),
    "dict.keys": ("dict.keys()", "Return a view of all keys."),
    "dict.values": ("dict.values()", "Return a view of all values."),
    "dict.update": ("dict.update(other)", "Take the keys and values of another dictionary."),
    "dict.pop": ("dict.pop(key, default)", "Remove a key and return its value, or the default."),
    "enumerate": ("enumerate(iterable, start=0)", "Return pairs of a counter and each item."),
    "itertools.chain": (
        "itertools.chain(*iterables)", "Return the items of each iterable in turn."
    ),
    "list": ("list(iterable=())", "Make a list of the items of an iterable."),
    "os.environ": ("", "A mapping of the environment variables to their values."),
    "range": (
        "range(start, stop, step)", "Return the integers from start up to, not including, stop."
    ),
    "set": ("set(iterable=())", "Make a set: each item once, in no order."),
    "set.add": ("set.add(elem)", "Add an item to the set, if it is not there."),
    "str": ("str(object='')", "Make a string of an object."),
    "super": ("super()", "Give access to the methods of a parent class."),
    "sys.argv": ("", "The list of the command line's arguments; the script's name comes first."),
    "sys.path": ("", "The list of folders in which modules are looked for."),
    "tuple": ("tuple(iterable=())", "Make a tuple of the items of an iterable."),
    "type": ("type(object)", "Return the type of an object."),
    "zip": ("zip(*iterables)", "Return tuples of the first items, then the second, and so on."),
    "math.pi": ("", "The ratio of a circle's circumference to its diameter, 3.14159."),
    "csv.reader": ("csv.reader(csvfile)", "Return the rows of a CSV file, each a list of strings."),
    "csv.writer": ("csv.writer(csvfile)", "Return an object that writes rows to a CSV file."),
}  # fmt: skip
PRIVATE = {"copyright", "credits", "license", "exit", "quit"}


@dataclass(frozen=True)
class Fact:
    """One thing that has a name. `call` is the name with its arguments, or "" where they are not
    known; `module` is where it is found, "" for what is built in."""

    name: str
    call: str
    sentence: str
    module: str
    kind: str  # function, method, class or exception

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


def facts() -> list[Fact]:
    """Every fact, by name."""
    found: dict[str, Fact] = {}
    for name in dir(builtins):
        if not name.startswith("_") and name not in PRIVATE:
            _add(found, name, getattr(builtins, name), "")
    for module in MODULES:
        if module in LIBRARY:
            held = importlib.import_module(module)
            for name in _public(held):
                _add(found, f"{module}.{name}", getattr(held, name), module)
    for each in CLASSES:
        cls, name = (_find(each), each) if isinstance(each, str) else (each, each.__name__)
        module = name.rpartition(".")[0]
        for method in dir(cls):
            if not method.startswith("_"):
                _add(found, f"{name}.{method}", inspect.getattr_static(cls, method), module, cls)
    for name, (call, sentence) in OURS.items():
        module = name.rpartition(".")[0]
        module = module if module in MODULES else ""
        kind = "function" if module or "." not in name else "method"
        found[name] = Fact(name, call, sentence, module, kind)
    return [found[name] for name in sorted(found) if not RARE.match(name)]


LIBRARY = {  # modules whose functions are facts; of the others only what they are for is one
    "os", "os.path", "pathlib", "re", "json", "itertools", "functools", "collections", "math",
    "random", "datetime", "time", "sys", "subprocess", "shutil", "csv", "logging", "argparse",
    "threading", "string", "copy", "glob", "fnmatch", "tempfile", "hashlib", "base64", "struct",
    "pickle", "operator", "statistics", "fractions", "heapq", "bisect",
    "contextlib", "enum", "dataclasses", "textwrap", "pprint", "urllib.parse", "warnings", "uuid",
    "gzip", "zlib", "queue", "secrets", "html", "timeit", "getpass", "shlex", "keyword",
}  # fmt: skip


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _public(module: ModuleType) -> list[str]:
    """The names of functions and classes that a module offers as its own."""
    named = getattr(module, "__all__", None)
    names = sorted(named) if named else [n for n in dir(module) if not n.startswith("_")]
    return [n for n in names if callable(getattr(module, n, None)) and not n.startswith("_")]


def _add(
    found: dict[str, Fact], name: str, thing: Any, module: str, cls: type | None = None
) -> None:
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    sentence = first_sentence(inspect.getdoc(thing) or "")
    if not sentence or not (callable(thing) or isinstance(thing, property)):
        return
    kind = "method" if cls else "function"
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
    found[name] = Fact(name, _call(name, thing, cls is not None), sentence, module, kind)


def _call(name: str, thing: Any, method: bool) -> str:
    if isinstance(thing, property):
        return ""
    try:
        named = [p for p in inspect.signature(thing).parameters.values() if p.name not in SELF]
    except (ValueError, TypeError):
        found = re.match(r"\w+(\.\w+)?\(([\w, =*.\[\]'-]{0,40})\)", inspect.getdoc(thing) or "")
        return f"{name}({found[2]})" if found else ""
    shown = [_argument(p) for p in named]
    kinds = [p.kind for p in named]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    while len(f"{name}({', '.join(shown)})") > MOST and len(shown) > 1:
        shown = [*(shown[:-2] if shown[-1] == "..." else shown[:-1]), "..."]
    text = f"{name}({', '.join(shown)})"
    return text if len(text) <= MOST and " at 0x" not in text and "<" not in text else ""


SELF = ("self", "cls", "type")
MOST = 72  # characters of a call; where there are more, its last arguments are left out


def _argument(p: inspect.Parameter) -> str:
    kinds: dict[Any, str] = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}
    stars = kinds.get(p.kind, "")
    default = "" if p.default is p.empty else f"={p.default!r}"
    return f"{stars}{p.name}{default}"


MARKUP = re.compile(r"``?|''|(?<=\s)\*(?=\w+\*)|(?<=\w)\*(?=[\s,.;)])")
CALLED = re.compile(r"^[\w.]+\([^)]*\)\s*(->\s*[\w ,\[\]]+?)?\s*(--|:)?\s*(?=[A-Z]|$)")


def first_sentence(doc: str) -> str:
    """The first sentence of a docstring in one line; "" where it has none that is short enough."""
    paragraphs = re.split(r"\n\s*\n", doc.strip())
    for paragraph in paragraphs[:2]:
        text = re.sub(
            r"``?|''|(?<=\s)\*(?=\w+\*)|(?<=\w)\*(?=[\s,.;)])", "", " ".join(paragraph.split())
        )
        if re.match(r"^[\w.]+\(.*?\)( ->.*)?$", text) or "->" in text[:60]:
            text = re.sub(
                r"^[\w.]+\([^)]*\)\s*(->\s*[\w ,\[\]]+?)?\s*(--|:)?\s*(?=[A-Z]|$)", "", text
            )
        if len(text) < 12 or "->" in text[:40]:
            continue
        end = re.search(r"(?<!e\.g)(?<!i\.e)(?<!etc)[.:](?=\s|$)", text)
        if end and end[0] == ":":
            continue
        text = text[: end.start()] if end else text
        plain = text[0].isupper() and "::" not in text and ">>>" not in text and "<" not in text
        if plain and len(text) <= LONGEST and len(text.split()) > 2:
            return f"{text}."
    return ""
