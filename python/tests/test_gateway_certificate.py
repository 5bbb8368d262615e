"""Certificates of the gateway as roots of a worker and of its programs."""

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from rollway.worker import certificates

PEM = "-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in certificates.VARIABLES:
        # Restored after the test, also if it was not set before.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def read(name):
    return Path(os.environ[name]).read_text()


def test_the_roots_of_the_machine_stay():
    paths = ssl.get_default_verify_paths()
    certificates.trust(PEM)
    for name in certificates.VARIABLES:
        assert PEM in read(name)
    if paths.cafile:
        assert Path(paths.cafile).read_text() in read("SSL_CERT_FILE")
    assert read("NODE_EXTRA_CA_CERTS").count("BEGIN") == 1


def test_files_of_the_environment_stay(tmp_path, monkeypatch):
    for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        (tmp_path / name).write_text(f"roots of {name}")
        monkeypatch.setenv(name, str(tmp_path / name))
    certificates.trust(PEM)
    assert "roots of SSL_CERT_FILE" in read("REQUESTS_CA_BUNDLE")
    assert "roots of NODE_EXTRA_CA_CERTS" in read("NODE_EXTRA_CA_CERTS")


def test_the_files_end_with_the_process():
    code = (
        "from rollway.worker import certificates; import os\n"
        f"certificates.trust({PEM!r}); print(os.environ['SSL_CERT_FILE'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(ended.stdout.strip()).exists()
