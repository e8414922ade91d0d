"""The certificate of a server that speaks HTTPS."""

from __future__ import annotations

import binascii
import logging
import os
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from weft.core.errors import UsageError

_log = logging.getLogger(__name__)


class Certificate:
    """A certificate and its private key, PEM files. New connections use the files' newest content
    that fits together. Raises UsageError for files that do not, and for one that has expired."""

    def __init__(self, cert: str, key: str) -> None:
        self._files = cert, key
        self._seen = self._stamps()
        self.context = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def refresh(self) -> None:
        """Reads the files again if they have changed; keeps the old ones if the new ones are
        wrong."""
        seen = self._stamps()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._renew()
            _log.info("read the certificate again")
        except UsageError as e:
            _log.warning("the certificate stays as it was: %s", e)

    def become(self, other: Certificate) -> None:
        """Takes the files of another certificate, which has read them. Raises UsageError where
        they have become wrong meanwhile, and keeps its own."""
        before, self._files = self._files, other._files
        try:
            seen = self._stamps()
            self._renew()
            self._seen = seen
        except UsageError:
            self._files = before
            raise

    def _renew(self) -> None:
        self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a failure leaves half of it
        self._loaded(self.context)

    def _stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(path) for path in self._files]

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(*self._files, password=_no_password)
            end = _end(Path(self._files[0]).read_text("latin-1"))
        except (OSError, ValueError) as e:
            reason = getattr(e, "reason", None) or e
            raise UsageError(
                f"--tls-cert {self._files[0]} and --tls-key {self._files[1]}: {reason}; expected "
                "PEM files that belong together"
            ) from None
        if end < datetime.now(UTC):
            raise UsageError(f"--tls-cert {self._files[0]} has expired, at {end:%Y-%m-%d %H:%M} "
                             "UTC; expected one that is valid")  # fmt: skip
        return context


def _stamp(path: str) -> tuple[int, int] | None:
    """The marks by which a replaced file differs from the old one; None for a missing file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _end(pem: str) -> datetime:
    """The time up to which the first certificate of a PEM file is valid (RFC 5280, 4.1). Python's
    ssl tells it of the other side's certificate only. Raises ValueError."""
    kind = "-----{} (?:X509 |TRUSTED )?CERTIFICATE-----"
    found = re.search(kind.format("BEGIN") + "(.*?)" + kind.format("END"), pem, re.DOTALL)
    if found is None:
        raise ValueError("no certificate")
    (_, signed), *_ = _parts(binascii.a2b_base64(found[1]))
    (_, told), *_ = _parts(signed)
    fields = [content for tag, content in _parts(told) if tag != 0xA0]  # all but the version
    _, (tag, end) = _parts(fields[3])
    text = end.decode("ascii")
    if tag == 0x17:  # UTCTime, a year of two digits
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of each value in DER."""
    at = 0
    while at < len(der):
        tag, size, begin = der[at], der[at + 1], at + 2
        if size >= 0x80:
            begin += size - 0x80
            size = int.from_bytes(der[at + 2 : begin], "big")
        yield tag, der[begin : begin + size]
        at = begin + size


def _no_password() -> str:
    """Stands in for OpenSSL's question on the terminal."""
    raise ValueError("the key is encrypted")
