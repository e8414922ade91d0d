"""Lists the test files that a change can touch: python scripts/changed.py [BASE]

A change is what differs from the commit BASE (by default HEAD), files that git does not know
included. The parts of a Python file are its functions, classes and variables, and its body, which
runs when it is imported. A part has changed if its code differs. A test file is listed if it uses a
changed part, directly or through others:

- by name, wherever the import stands: `from weft.x import f`, `weft.x.f`, "weft.x.f" in a string
- late, from a table: names that __init__.pyi lists, or a dictionary of names (`_HOMES`)
- as a fixture, from the test's file or a conftest.py
- by a name that is put together at run time (a device, a command, a level of `weft check`), if the
  test file has that name as a string

Any other file counts for the test files that name it or one of its folders. What is used in no such
way is not found, so the whole suite has the last word.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# A change of one of these can touch every test.
EVERYTHING = ("pyproject.toml", "scripts/setup", "scripts/test", "tests/conftest.py")
FOLDERS = {"weft/web/js": "tests/web", "weft/serve/page": "tests/serve", "weft/box": "tests/models"}
COMMON = {"tests", "weft", "docs", "js", "scripts"}  # folders that many tests name
DEFAULT = {"weft.backends": {"cpu"}}  # what a name put together is without being written anywhere
QUIET = {"dataclass", "property", "staticmethod", "classmethod", "cache", "lru_cache", "overload"}
QUIET |= {"contextmanager", "cached_property", "wraps", "abstractmethod", "final", "total_ordering"}

Part = tuple[str, str]  # a file, and a name in it; "" is its body
# Of a file: part -> [hash, names that it uses, strings that its names begin with]; and the names
# that it imports -> what they are, its tables, its strings.
Facts = dict[str, Any]


class Reader:
    """Reads the facts of one file."""

    def __init__(self, text: str) -> None:
        self.parts: dict[str, list[Any]] = {"": ["", set(), set()]}
        self.aliases: dict[str, str] = {}
        self.late: dict[str, str] = {}
        self.strings: set[str] = set()
        digests: dict[str, list[str]] = defaultdict(list)
        for node in ast.parse(text).body:
            for name in names_of(node) or [""]:
                self.parts.setdefault(name, ["", set(), set()])
                digests[name].append(ast.dump(node))
                _, used, begun = self.parts[name]
                self.read(node, used, begun, {} if name else self.aliases)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                calls = [ast.unparse(d).partition("(")[0] for d in node.decorator_list]
                if any(c.rpartition(".")[2] not in QUIET and "pytest" not in c for c in calls):
                    self.parts[""][1].add(node.name)  # it is registered somewhere
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                _, used, begun = self.parts[""]
                self.read(node, used, begun, self.aliases)
        for name, dumps in digests.items():
            self.parts[name][0] = hashlib.sha256("\n".join(dumps).encode()).hexdigest()[:16]

    def facts(self) -> Facts:
        parts = {n: [h, sorted(used), sorted(begun)] for n, (h, used, begun) in self.parts.items()}
        return {
            "parts": parts, "aliases": self.aliases, "late": self.late,
            "strings": sorted(self.strings),
        }  # fmt: skip

    def read(self, top: ast.AST, used: set[str], begun: set[str], aliases: dict[str, str]) -> None:
        """Adds what the code below `top` uses, imports within it resolved."""
        inner: dict[str, str] = {}
        found: set[str] = set()
        todo = [top]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Attribute | ast.Name):
                name, rest = dotted(node)
                if name:
                    found.add(name)
                todo += rest
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                self.read(ast.Module(node.body, []), set(), set(), aliases)  # names, but no use
                todo += node.orelse
                continue
            todo += ast.iter_child_nodes(node)
            if isinstance(node, ast.Import):
                for a in node.names:
                    inner[a.asname or a.name.partition(".")[0]] = (
                        a.name if a.asname else a.name.partition(".")[0]
                    )
                    used.add(f"import {a.name}")
            elif isinstance(node, ast.ImportFrom) and node.module:
                used.add(f"import {node.module}")
                for a in node.names:
                    inner[a.asname or a.name] = f"{node.module}.{a.name}"
                    used.add(f"import {node.module}.{a.name}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.strings |= {node.value[:200], *node.value[:200].split()}
                if node.value.startswith("weft.") and node.value.replace(".", "a").isidentifier():
                    found.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                text = str(node.values[0].value)
                if text.startswith("weft.") and text.endswith("."):
                    begun.add(text[:-1])
            elif isinstance(node, ast.Dict):
                self._table(node)
            elif isinstance(node, ast.FunctionDef):  # fixtures
                found |= {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
        aliases |= inner
        for name in found:
            first, _, more = name.partition(".")
            whole = inner.get(first, first)
            used.add(f"{whole}.{more}" if more else whole)

    def _table(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            value = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                self.late[str(key.value)] = str(value.value)


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement of a file's body defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def dotted(node: ast.expr) -> tuple[str, list[ast.expr]]:
    """The text of x.y.z; "" and what is left to read of any other expression."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(names)]), []
    return "", [node]


class Imports:
    """Which parts of the Python files of `root` use which."""

    def __init__(self, root: Path, kept: Path | None = None) -> None:
        self.root = root
        files = [p for top in ("weft", "tests") for p in sorted((root / top).rglob("*.py*"))]
        files = [p for p in files if p.suffix in (".py", ".pyi")]
        self.facts = self._read(files, kept)
        self.places: dict[str, list[str]] = defaultdict(list)  # a test module's name -> files
        for name in self.facts:
            if name.startswith("tests/"):
                self.places[Path(name).stem].append(name)
        self.users: dict[Part, set[Part]] = defaultdict(set)
        for name in self.facts:
            for user, used in self._edges(name):
                self.users[used].add(user)

    def _read(self, files: list[Path], kept: Path | None) -> dict[str, Facts]:
        old = json.loads(kept.read_text()) if kept and kept.exists() else {}
        new, found, me = {}, {}, Path(__file__).read_bytes()
        for path in files:
            data = path.read_bytes()
            key = hashlib.sha256(me + data).hexdigest()
            new[key] = old.get(key) or Reader(data.decode()).facts()
            found[path.relative_to(self.root).as_posix()] = new[key]
        if kept and kept.parent.is_dir() and new.keys() != old.keys():
            kept.write_text(json.dumps(new))
        return found

    def _file(self, module: str) -> str | None:
        base = module.replace(".", "/")
        return next((n for n in (f"{base}.py", f"{base}/__init__.py") if n in self.facts), None)

    def _edges(self, name: str) -> Iterator[tuple[Part, Part]]:
        facts, test = self.facts[name], name.startswith("tests/")
        for part, (_, used, begun) in facts["parts"].items():
            me = (name, part)
            if part:
                yield me, (name, "")
            for each in used:
                yield from ((me, it) for it in self.resolve(each, name))
            for family in begun:
                yield me, (family, "")  # see by_name
        if not test:
            return
        if "weft" in facts["strings"] or any("-m weft" in s for s in facts["strings"]):
            yield (name, ""), ("weft/__main__.py", "")
            yield (name, ""), ("weft/cli/main.py", "")
        for folder in Path(name).parents:
            if (conftest := (folder / "conftest.py").as_posix()) in self.facts:
                yield (name, ""), (conftest, "")
                for part in self.facts[conftest]["parts"].keys() & self._words(facts):
                    yield (name, ""), (conftest, part)

    def _words(self, facts: Facts) -> set[str]:
        return {name for _, used, _ in facts["parts"].values() for name in used}

    def resolve(self, name: str, where: str, depth: int = 0) -> Iterator[Part]:
        """The parts that a name means, used in the file `where`; the bodies on the way to them."""
        body, name = name.startswith("import "), name.removeprefix("import ")
        first, _, rest = name.partition(".")
        if depth > 9:
            return
        if first == "weft":
            yield from self._module(name.split("."), body, depth)
        elif not body and first in self.facts[where]["parts"]:
            yield where, first
        elif not body and first in (aliases := self.facts[where]["aliases"]):
            whole = aliases[first]
            if whole.partition(".")[0] != first or rest:
                target = f"{whole}.{rest}" if rest else whole
                if whole.startswith("weft"):
                    yield from self.resolve(target, where, depth + 1)
                elif where.startswith("tests/"):
                    yield from self._sibling(target, where)
        elif first in self.places and where.startswith("tests/"):
            yield from self._sibling(name, where)

    def _sibling(self, name: str, where: str) -> Iterator[Part]:
        """A module of the tests, which is found by its bare name."""
        stem, _, rest = name.partition(".")
        own = Path(where).with_name(f"{stem}.py").as_posix()
        for file in [own] if own in self.facts else self.places.get(stem, []):
            yield from self._parts(file, rest.partition(".")[0])

    def _parts(self, file: str, name: str) -> Iterator[Part]:
        yield file, ""
        if name in self.facts[file]["parts"]:
            yield file, name

    def _module(self, names: list[str], body: bool, depth: int) -> Iterator[Part]:
        at = ""
        for n, name in enumerate(names):
            inner = f"{at}.{name}" if at else name
            if (file := self._file(inner)) is not None:
                yield file, ""
                at = inner
                continue
            package = str(self._file(at))
            rest = ".".join(names[n + 1 :])
            facts = self.facts[package]
            if name in facts["parts"]:
                yield package, name
            elif stub := self.facts.get(f"{package}i", {}).get("aliases", {}).get(name):
                yield from self.resolve(f"{stub}.{rest}".strip("."), package, depth + 1)
            elif (late := facts["late"].get(name)) is not None:
                whole = late if late.startswith("weft.") else f"{at}.{late}"
                yield from self.resolve(f"{whole}.{name}", package, depth + 1)
            elif name in facts["aliases"] and not body:
                yield from self.resolve(name, package, depth + 1)
            return
        if not body and at != "weft":  # the module itself is passed on
            file = str(self._file(at))
            yield from ((file, part) for part in self.facts[file]["parts"])

    def reach(self, parts: Iterable[Part]) -> set[Part]:
        """The parts that use one of `parts`, and these themselves."""
        found, new = set(), set(parts)
        while new:
            found |= new
            new = {user for each in new for user in self.users[each]} - found
        return found

    def tests(self, parts: Iterable[Part]) -> set[str]:
        """The test files that use one of `parts`."""
        found = self.reach(parts)
        return {name for name, _ in found if is_test(name)} | set(self._by_name(found))

    def _by_name(self, found: set[Part]) -> Iterator[str]:
        """The test files that use what imports by a name put together, and contain that name."""
        files = {name for name, _ in found}
        families = {
            f for facts in self.facts.values() for p in facts["parts"].values() for f in p[2]
        }
        for family in families:
            inside = family.replace(".", "/") + "/"
            names = {
                f.removeprefix(inside).partition("/")[0] for f in files if f.startswith(inside)
            }
            names = {name.removesuffix(".py") for name in names}
            importers = set(self.users[family, ""])
            tables = {k: v for f, _ in importers for k, v in self.facts[f]["late"].items()}
            words = names | {key for key, value in tables.items() if value in names}
            always = bool(DEFAULT.get(family, set()) & names)
            for name in {n for n, _ in self.reach(importers) if is_test(n)}:
                if always or words & set(self.facts[name]["strings"]):
                    yield name

    def naming(self, path: str) -> Iterator[str]:
        """The test files for a file that is not Python."""
        for folder, tests in FOLDERS.items():
            if path.startswith(f"{folder}/"):
                yield from (n for n in self.facts if is_test(n) and n.startswith(tests))
                return
        words = {Path(path).name, *Path(path).parts[:-1]} - COMMON
        for name, facts in self.facts.items():
            if is_test(name) and any(Path(s).name in words for s in facts["strings"]):
                yield name


def is_test(name: str) -> bool:
    return name.startswith("tests/") and Path(name).name.startswith("test_")


def parts_changed(new: Facts | None, old: Facts | None) -> set[str]:
    """The names of the parts that differ between two states of a file."""
    a, b = (({} if f is None else {n: p[0] for n, p in f["parts"].items()}) for f in (new, old))
    return {n for n in a.keys() | b.keys() if a.get(n) != b.get(n)}


def touched(
    before: dict[str, str | None], root: Path = ROOT, kept: Path | None = None
) -> list[str]:
    """The test files for changed files, given with their text before (None: there was none)."""
    if any(name in EVERYTHING for name in before):
        return ["tests"]
    imports, found = Imports(root, kept), set()
    parts: set[Part] = set()
    for name, text in before.items():
        if not name.endswith((".py", ".pyi")) or not name.startswith(("weft/", "tests/")):
            found |= set(imports.naming(name))
            continue
        old = None if text is None else Reader(text).facts()
        if name not in imports.facts and name.startswith(
            "weft/"
        ):  # whoever used it, by its package
            parts.add((Path(name).with_name("__init__.py").as_posix(), ""))
        parts |= {(name, part) for part in parts_changed(imports.facts.get(name), old)}
        if name in imports.facts and is_test(name):
            found.add(name)
        # those that read the source as text
        found |= {n for n, f in imports.facts.items() if is_test(n) and "*.py" in f["strings"]}
    return sorted(found | imports.tests(parts))


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"changed.py: git {words[0]}: {done.stderr.strip()}; give a commit to compare with"
        )
    return done.stdout


def difference(base: str, root: Path = ROOT) -> dict[str, str | None]:
    """The files that differ from a commit, with their text there."""
    known = git(root, "ls-tree", "-r", "--name-only", base).splitlines()
    names = git(root, "diff", "--name-only", base, "--").splitlines()
    names += git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    old = {name for name in names if name in set(known) and name.endswith((".py", ".pyi"))}
    return {name: git(root, "show", f"{base}:{name}") if name in old else None for name in names}


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    print("\n".join(touched(difference(base), kept=ROOT / ".venv" / "changed.json")))
