"""Certificate of the model gateway as a root of this process and of the programs that it starts."""

from __future__ import annotations

import atexit
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Variables with a file that replaces the roots: OpenSSL (Python, httpx, Rust), requests, curl.
_ROOTS = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

#: Variable with a file of further roots: Node.js.
_FURTHER = "NODE_EXTRA_CA_CERTS"

#: All variables that `trust` sets.
VARIABLES = (*_ROOTS, _FURTHER)


def trust(certificate: str) -> None:
    """Adds a certificate to the roots of this process, beside all that it had.

    The variables name files that are removed with the process.
    """
    folder = Path(tempfile.mkdtemp(prefix="rollway-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    further = _text(os.environ.get(_FURTHER))
    (folder / "gateway.pem").write_text(f"{certificate}\n{further}")
    bundle = "\n".join(text for path in _bundles() if (text := _text(path)))
    (folder / "roots.pem").write_text(f"{certificate}\n{bundle}")
    for name in _ROOTS:
        os.environ[name] = str(folder / "roots.pem")
    os.environ[_FURTHER] = str(folder / "gateway.pem")


def _bundles() -> Iterator[str | None]:
    """Yields the files with roots that programs of this environment would use."""
    given = [os.environ.get(name) for name in _ROOTS]
    yield from dict.fromkeys(given)
    if any(given):
        return
    paths = ssl.get_default_verify_paths()
    yield paths.cafile or paths.openssl_cafile
    try:
        import certifi
    except ImportError:
        return
    yield certifi.where()


def _text(path: str | None) -> str:
    try:
        return Path(path).read_text() if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
