"""A stand-in for a hub: its HTTP surface, as far as models are read, on 127.0.0.1.

Large files are kept as Git LFS does: their place answers with a redirect and the SHA-256, a second
place sends them, from any byte on. `Hub.faults` says what goes wrong, `Hub.seen` what was asked.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".gguf", ".bin")


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository: revision -> commit -> files. `refuses`: (status, X-Error-Code) of everything;
    `token`: asked for, or that refusal follows."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    refuses: tuple[int, str] | None = None
    token: str = ""
    open_list: bool = False  # what is gated may be looked at, as on the hub
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)  # file -> lies about it


@dataclass
class Hub:
    """`cut`: file -> bytes after which the connection ends, each time it is asked for until the
    list is empty. `sends`: file -> what is sent in its place; `etags`: file -> its
    digest, as it is said. `slow`: seconds before each block."""

    repos: dict[str, Repo] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    sends: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    slow: float = 0.0
    seen: list[str] = field(default_factory=list)
    url: str = ""
    large: str = ""  # another host's address, as of a hub: redirects within one host are followed

    def add(self, name: str, files: Mapping[str, bytes], ref: str = "main", **more: Any) -> str:
        """A new commit of a repository; returns it."""
        digest = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        repo = self.repos.setdefault(name, Repo({}, {}))
        repo.commits[digest] = dict(files)
        repo.refs[ref] = digest
        for key, value in more.items():
            setattr(repo, key, value)
        return digest

    def sent(self, *kinds: str) -> list[str]:
        """The files whose bytes were asked for."""
        return [s.partition(" ")[2] for s in self.seen if s.split(" ")[0] in (kinds or ("SEND",))]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None: ...  # whoever asked has gone


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    server = _Server(("127.0.0.1", 0), _handler(hub))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    hub.large = f"http://localhost:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "revision":
                self._list("/".join(parts[2:4]), "/".join(parts[5:]))
            elif len(parts) >= 5 and parts[2] == "resolve":
                self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body)
            elif parts[0] == "lfs" and len(parts) == 2:
                self._send_large(parts[1], body)
            else:
                self._plain(404)

        def _repo(self, name: str, listing: bool = False) -> Repo | None:
            repo = hub.repos.get(name)
            if repo is None:
                self._plain(401, {"X-Error-Code": "RepoNotFound"})
            elif listing and repo.open_list:
                return repo
            elif repo.refuses and self.headers.get("Authorization") != f"Bearer {repo.token}":
                status, code = repo.refuses
                self._plain(status, {"X-Error-Code": code} if code else {})
            else:
                return repo
            return None

        def _list(self, name: str, revision: str) -> None:
            hub.seen.append(f"LIST {name}")
            repo = self._repo(name, listing=True)
            if repo is None:
                return
            commit = repo.refs.get(revision, revision)
            if commit not in repo.commits:
                self._plain(404, {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = []
            for file, data in repo.commits[commit].items():
                entry: dict[str, Any] = {"rfilename": file, "size": len(data)}
                entry["blobId"] = git_digest(data)
                if file.endswith(LARGE):
                    sha256 = hashlib.sha256(data).hexdigest()
                    entry["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 130}
                siblings.append(entry | repo.listed.get(file, {}))
            answer = {"id": name, "sha": commit, "siblings": siblings}
            self._plain(200, {}, json.dumps(answer).encode())

        def _resolve(self, name: str, revision: str, file: str, body: bool) -> None:
            repo = self._repo(name)
            if repo is None:
                return
            commit = repo.refs.get(revision, revision)
            data = repo.commits.get(commit, {}).get(file)
            if data is None:
                self._plain(404, {"X-Error-Code": "EntryNotFound"})
                return
            heads = {"X-Repo-Commit": commit}
            if file.endswith(LARGE):
                sha256 = hashlib.sha256(data).hexdigest()
                etag = hub.etags.get(file, sha256)
                heads |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
                heads["Location"] = f"{hub.large}/lfs/{name.replace('/', '|')}|{commit}|{file}"
                self._plain(302, heads)
                return
            if body:
                hub.seen.append(f"SEND {file}")
            heads["ETag"] = f'"{hub.etags.get(file, git_digest(data))}"'
            self._plain(200, heads, hub.sends.get(file, data))

        def _send_large(self, place: str, body: bool) -> None:
            org, name, commit, file = place.split("|", 3)
            data = hub.repos[f"{org}/{name}"].commits[commit][file]
            data = hub.sends.get(file, data)
            start, asked = 0, self.headers.get("Range")
            if asked:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
            if body:
                hub.seen.append(f"{'RESUME' if start else 'SEND'} {file}")
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if not body:
                return
            cuts = hub.cut.get(file)
            end = start + cuts.pop(0) if cuts else len(data)
            for at in range(start, end, 1 << 14):
                time.sleep(hub.slow)
                self.wfile.write(data[at : min(end, at + (1 << 14))])
            self.close_connection = end < len(data)

        def _plain(
            self, status: int, heads: Mapping[str, str] | None = None, data: bytes = b"{}"
        ) -> None:
            self.send_response(status)
            for key, value in (heads or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler
