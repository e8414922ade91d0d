"""The certificate of a server that speaks HTTPS."""

from __future__ import annotations

import logging
import os
import ssl

from weft.core.errors import UsageError

_log = logging.getLogger(__name__)


class Certificate:
    """A certificate and its private key, PEM files. New connections use the files' newest content
    that fits together. Raises UsageError for files that do not."""

    def __init__(self, cert: str, key: str) -> None:
        self._files = cert, key
        self._seen = self._stamps()
        self.context = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def refresh(self) -> None:
        """Reads the files again if they have changed; keeps the old ones if the new ones are
        wrong."""
        try:
            seen = self._stamps()
            if seen == self._seen:
                return
            self._seen = seen
            self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a failure leaves half of it
            self._loaded(self.context)
            _log.info("read the certificate again")
        except (UsageError, OSError) as e:
            _log.warning("the certificate stays as it was: %s", e)

    def become(self, other: Certificate) -> None:
        """Takes the files of another certificate, which has read them. Raises UsageError where
        they have become wrong meanwhile, and keeps its own."""
        before, self._files = self._files, other._files
        try:
            self._seen = self._stamps()
            self._loaded(self.context)
        except (UsageError, OSError):
            self._files = before
            raise

    def _stamps(self) -> list[tuple[int, int]]:
        found = [os.stat(path) for path in self._files]
        return [(one.st_mtime_ns, one.st_ino) for one in found]

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as e:
            reason = getattr(e, "reason", None) or e
            raise UsageError(
                f"--tls-cert {self._files[0]} and --tls-key {self._files[1]}: {reason}; expected "
                "PEM files that belong together"
            ) from None
        return context


def _no_password() -> str:
    """Stands in for OpenSSL's question on the terminal."""
    raise ValueError("the key is encrypted")
