"""Fetches models from a hub into huggingface_hub's cache, and checks each file against the sizes
and digests that the hub lists."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core import text
from weft.core.errors import HubError
from weft.core.notices import tell
from weft.core.places import check_inside
from weft.host.files import check_free, default_directory, naming, write_text
from weft.host.progress import progress
from weft.hub.bar import Bar
from weft.hub.choice import CONFIG, choose, shown
from weft.hub.errors import explained
from weft.hub.names import COMMIT, Name, cache
from weft.hub.resolve import entry, note_whole, shards
from weft.hub.store import check_store, clear, discard
from weft.importers.hf_config import MAX_CONFIG

MAX_INDEX = 1 << 26  # bytes; an index is fetched early, to learn the size of the rest
SECONDS = 10.0  # timeout of a request
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PLAIN = re.compile(r'(?:W/)?"?[0-9A-Za-z][\w.+=-]{0,199}"?', re.ASCII)
_HEADERS = "ETag", "X-Linked-Etag"


@dataclass(frozen=True)
class Remote:
    """A file of a repository. `digest` is its SHA-256, or git's digest of a small file; "" if the
    hub gives neither."""

    size: int
    digest: str


@dataclass(frozen=True)
class Listing:
    """A repository at a commit: name -> file."""

    name: Name
    commit: str
    files: dict[str, Remote]

    @property
    def folder(self) -> Path:
        return self.name.snapshot(self.commit)


@dataclass(frozen=True)
class Offer:
    """A pending download."""

    name: Name
    files: int
    nbytes: int

    def __str__(self) -> str:
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"{self.name}: {files}, {text.size(self.nbytes)}, into {self.name.store.parent}"


Agree = Callable[[Offer], None]  # raises to decline
Check = Callable[[Path], object]  # raises for a folder, with its config.json, that is not wanted


def look_up(name: Name) -> Listing:
    """Looks up a name on the hub. Raises HubError."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise HubError(f"{name}: HF_HUB_OFFLINE is set, so the hub is not asked for what lacks")
    from huggingface_hub import HfApi

    with progress(f"asking the hub for {name}"), explained(name):
        api = HfApi(endpoint=_endpoint(), library_name="weft")
        found = api.model_info(
            name.repo, revision=name.revision, timeout=SECONDS, files_metadata=True
        )
        files = dict(_facts(sibling) for sibling in found.siblings or ())
    if not isinstance(found.sha, str) or not COMMIT.fullmatch(found.sha):
        raise HubError(f"{name}: the hub gave no commit, but {str(found.sha)[:60]!r}")
    return Listing(name, found.sha, files)


def fetch(listing: Listing, agree: Agree | None = None, check: Check | None = None) -> Path:
    """Fetches the missing files of a model and checks each against the hub's digest. Returns the
    model's path in the cache. `check` runs before the weights are fetched. Raises HubError,
    StorageError, ModelError, and the errors of `agree` and `check`."""
    name, folder = listing.name, listing.folder
    refuse_paths()
    with Bar() as bar:
        files = _chosen(listing, bar, check)
        missing = [f for f in files if not (folder / f).is_file()]
        if missing:
            check_store(name, listing.commit, missing)
            clear(name)
            total = sum(listing.files[f].size for f in missing)
            check_free(name.store.parent, total)
            (agree or _say)(Offer(name, len(missing), total))
            bar.show(str(name), total)
            for file in missing:
                _fetch_one(listing, file, bar)
        # Check files fetched by other programs too, once; without a cache directory, only the new
        # files.
        new = files if default_directory() is not None else missing
        bar.show(f"checking {name}", sum(listing.files[f].size for f in new))
        for file in new:
            _check(listing, file, bar, file in missing)
    _note_revision(listing)
    note_whole(name, listing.commit, files)
    return entry(folder, files)


def _note_revision(listing: Listing) -> None:
    """Records the revision's commit in the cache, as huggingface_hub does. Ignores failures, since
    a shared cache may be read-only."""
    name = listing.name
    if name.commit() != listing.commit:
        ref = name.store / "refs" / name.revision
        with suppress(OSError):
            check_inside(ref, cache())
            ref.parent.mkdir(parents=True, exist_ok=True)
            write_text(ref, listing.commit)


def _chosen(listing: Listing, bar: Bar, check: Check | None = None) -> list[str]:
    """Returns the files that weft reads. To decide, it fetches small ones: an index, and the
    config."""

    def read(index: str) -> list[str]:
        _fetch_small(listing, index, MAX_INDEX, bar)
        return shards(listing.folder, index)

    files = choose(listing.name.repo, listing.name.part, listing.files, read)
    if CONFIG in files:
        _fetch_small(listing, CONFIG, MAX_CONFIG, bar)
        if check is not None:
            check(listing.folder)
    return files


def _fetch_small(listing: Listing, file: str, most: int, bar: Bar) -> None:
    if listing.files[file].size > most:
        size = listing.files[file].size
        raise HubError(f"{listing.name}: {file} has {size} bytes; at most {most} are read")
    new = not (listing.folder / file).is_file()
    if new:
        check_store(listing.name, listing.commit, [file])
        clear(listing.name)
        _fetch_one(listing, file, bar)
    _check(listing, file, bar, new)


def _fetch_one(listing: Listing, file: str, bar: Bar) -> None:
    """Fetches a file with huggingface_hub, which resumes after a lost connection."""
    from huggingface_hub import hf_hub_download

    counter = bar.counter(f"{listing.name}: {shown([file])}", listing.files[file].size)
    with explained(listing.name, file), naming(listing.name.store.parent):
        path = hf_hub_download(
            listing.name.repo, file, revision=listing.commit, endpoint=_endpoint(),
            cache_dir=listing.name.store.parent, etag_timeout=SECONDS, library_name="weft",
            tqdm_class=counter,
        )  # fmt: skip
        if Path(path).parent.resolve() != (listing.folder / file).parent.resolve():
            raise HubError(f"{listing.name}: the hub has moved on meanwhile; try again")


def _check(listing: Listing, file: str, bar: Bar, new: bool) -> None:
    """Raises HubError for a file that differs from the listing, after removing it from the cache as
    far as it belongs to it."""
    path, known = listing.folder / file, listing.files[file]
    status = path.stat()
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        what = "no file is there"
    elif size != known.size:
        what = f"{size} bytes instead of {known.size}"
    elif known.digest and _digest(path, known, bar) != known.digest:
        what = f"its digest is not {known.digest[:12]}..."
    else:
        return

    def intact(blob: Path) -> bool:
        """Returns True if a blob is another, undamaged file: its name is its digest."""
        status = blob.lstat()
        if not stat.S_ISREG(status.st_mode) or not _DIGEST.fullmatch(blob.name):
            return False
        return _digest(blob, Remote(status.st_size, blob.name), bar) == blob.name

    done = discard(listing.name, path, new, intact)
    raise HubError(f"{listing.name}: {shown([file])} is damaged: {what}\n{done}")


def _digest(path: Path, known: Remote, bar: Bar) -> str:
    sha256 = len(known.digest) == 64
    digest = hashlib.sha256() if sha256 else hashlib.sha1(b"blob %d\0" % known.size)
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
            bar.step(len(block))
    return digest.hexdigest()


def _facts(sibling: Any) -> tuple[str, Remote]:
    """Returns one file of the hub's answer. Raises TypeError for anything else."""
    lfs = sibling.lfs
    size = sibling.size if lfs is None else lfs.size
    if not isinstance(sibling.rfilename, str) or type(size) is not int or not 0 <= size < 1 << 60:
        raise TypeError(f"a file {str(sibling.rfilename)[:40]!r} of {str(size)[:40]!r} bytes")
    digest = sibling.blob_id if lfs is None else lfs.sha256
    known = isinstance(digest, str) and _DIGEST.fullmatch(digest)
    return sibling.rfilename, Remote(size, str(digest) if known else "")


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _say(offer: Offer) -> None:
    tell(f"weft: fetching {offer}")


@functools.cache
def refuse_paths() -> None:
    """Makes every HTTP client that huggingface_hub creates from now on reject an ETag that is a
    path. A cached file has its ETag as its name, so a path would lead out of the cache."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http  # the only place that holds the current factory

    made = _http._GLOBAL_CLIENT_FACTORY

    def guarded() -> Any:
        client = made()
        client.event_hooks["response"].append(_check_etag)
        return client

    set_client_factory(guarded)


def _check_etag(response: Any) -> None:
    for header in _HEADERS if response.request.method == "HEAD" else ():
        value = response.headers.get(header, "0")
        if not _PLAIN.fullmatch(value):
            raise HubError(f"{response.url.host} gave {value[:60]!a} as the {header} of a file")
