"""The installed distribution, and what to type to add to it.

Nothing is published yet, so everything is installed from a clone. The distribution's name comes
from the pyproject.toml of the clone, or from the metadata of the installed distribution.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # 30 ms to import, and only messages need it
    from importlib import metadata

_PACKAGE = Path(__file__).parents[1]
_COMMAND = "weft.cli.start:main"  # entry point of our distribution's `weft` script
_TAKEN = "weft"  # the name of another project's distribution, which also has a package `weft`


def clone() -> Path | None:
    """The folder with weft's pyproject.toml: the one around this package, or the one it was
    installed from; None if that is gone."""
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        return _PACKAGE.parent
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    ours = _ours()
    try:
        said = json.loads((ours and ours.read_text("direct_url.json")) or "{}")
        address = urlsplit(str(said["url"]))
    except (KeyError, TypeError, ValueError):
        return None
    folder = Path(url2pathname(address.path))
    here = address.scheme == "file" and (folder / "pyproject.toml").is_file()
    return folder if here else None


def name() -> str:
    """The distribution's name in a package registry; the import name is `weft`."""
    import tomllib

    file = _PACKAGE.parent / "pyproject.toml"
    if file.is_file():
        return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"])
    ours = _ours()
    return str(ours.metadata["Name"]) if ours else "weft-ml"


def how(extra: str = "", flags: str = "") -> str:
    """The command that installs weft from its clone, with an extra: `pip install '.[serve]'`."""
    folder = clone()
    near = folder is None or _same(folder, Path.cwd())
    what = ("." if near else str(folder)) + (f"[{extra}]" if extra else "")
    command = " ".join(["pip install", *flags.split(), shlex.quote(what)])
    return command if folder else f"in weft's clone: {command}"


def clash() -> str | None:
    """Two lines about another distribution that has, or had, a package called weft in this
    environment: what is wrong, what to type. None if all is well."""
    other, damaged = _other(), _damaged()
    if not (other or damaged):
        return None
    again = how(flags="--force-reinstall --no-deps")
    if other:
        version, away = other.version, f"pip uninstall -y {_TAKEN}"
        what = f"the package {_TAKEN} {version} of another project is installed too"
        again = f"{away} && {again}" if again.startswith("pip") else f"{away}; {again}"
    else:
        what = f"{len(damaged)} of weft's files were changed or removed, {damaged[0]} for one"
    return f"weft: {what}; `import weft` may load the wrong one\nweft: to mend it: {again}"


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _is_ours(found: metadata.Distribution) -> bool:
    return any(e.value == _COMMAND for e in found.entry_points if e.name == "weft")


def _ours() -> metadata.Distribution | None:
    """The distribution that holds this package; None in a clone."""
    from importlib import metadata

    beside = metadata.distributions(path=[str(_PACKAGE.parent)])
    return next(filter(_is_ours, beside), None)


def _other() -> metadata.Distribution | None:
    from importlib import metadata

    called = metadata.distributions(name=_TAKEN)
    return next((d for d in called if not _is_ours(d)), None)


def _damaged() -> list[str]:
    """Files of the installed distribution that are not as it brought them."""
    found = _ours()
    changed = []
    for file in (found.files if found else None) or ():
        if file.hash is None or file.parts[0] != "weft":
            continue
        try:
            content = Path(str(file.locate())).read_bytes()
        except OSError:
            content = b""
        made = hashlib.new(file.hash.mode, content).digest()
        if base64.urlsafe_b64encode(made).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    return changed
