"""HTTPS, and certificates that are replaced while the server runs."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from serve_kit import process, until

from weft.core.errors import UsageError
from weft.serve.tls import Certificate

needs = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes certificates")


def certificate(folder: Path, name: str, *more: str, days: int = 2) -> tuple[str, str]:
    """The files of one that is valid for so many days; -1: until yesterday."""
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1", *more],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["openssl", "x509", "-in", cert, "-signkey", key, "-days", str(days), "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)


def shown(port: int) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=60)


@needs
def test_a_server_speaks_https(chatty: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "now", "first")
    words = ("serve", f"box={chatty}", "--device", "cpu", "--tls-cert", cert, "--tls-key", key)
    with process(*words) as made:
        context = ssl.create_default_context(cafile=cert)
        connection = HTTPSConnection(made.host, made.port, timeout=240, context=context)
        connection.request("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 2}')
        answer = connection.getresponse()
        assert answer.status == 200 and b"choices" in answer.read()
        connection.close()
        with socket.create_connection((made.host, made.port), timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(9).startswith(b"HTTP/1.1 200")
        before = shown(made.port)
        assert before == Path(cert).read_text()
        Path(cert).write_text("half a file")  # never served
        new = certificate(tmp_path / "new", "second")
        for old, fresh in zip((key, cert), reversed(new)):
            os.replace(fresh, old)
        until(lambda: shown(made.port) != before)
        assert shown(made.port) == Path(cert).read_text()


@needs
def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "a", "a")
    other = certificate(tmp_path / "b", "b")[1]
    with pytest.raises(UsageError, match="belong together"):
        Certificate(cert, other)
    Path(other).write_text("no key")
    with pytest.raises(UsageError, match="belong together"):
        Certificate(cert, other)
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-out", locked, "-aes256", "-passout", "pass:secret"],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(UsageError, match="encrypted"):
        Certificate(cert, str(locked))


@needs
def test_a_wrong_new_file_keeps_the_old_one(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "a", "a")
    made = Certificate(cert, key)
    Path(cert).unlink()
    made.refresh()
    Path(cert).write_text("half a file")
    made.refresh()
    assert made.context.cert_store_stats() is not None


@needs
def test_one_that_has_expired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every client would refuse it, so it is refused at the start, and a new one is not taken. A
    missing file is told once, not every two seconds."""
    good = certificate(tmp_path / "a", "a")
    for what in ("TRUE", "FALSE"):
        basic = f"basicConstraints=critical,CA:{what}"
        expired = certificate(tmp_path / what, "b", "-addext", basic, days=-1)
        with pytest.raises(UsageError, match=r"--tls-cert .*has expired"):
            Certificate(*expired)
    made = Certificate(*good)
    for fresh, place in zip(expired, good):
        os.replace(fresh, place)
    made.refresh()
    assert "has expired" in caplog.text and "stays as it was" in caplog.text
    caplog.clear()
    Path(good[0]).unlink()
    for _ in range(3):
        made.refresh()
    assert caplog.text.count("stays as it was") == 1
    fresh = certificate(tmp_path / "a", "c")
    made.refresh()
    assert fresh == good and caplog.text.count("stays as it was") == 1
