"""Certificates of private authorities: the same are trusted on every Python."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from image_service.common.http.client import HttpClient
from image_service.common.http.errors import UntrustedCertificate
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import ConfigurationError
from tests.chains import REFUSED, TRUSTED, Chain, write_chain
from tests.server.catalog.origin import Reply, running

ROOT = Path(__file__).resolve().parents[3]


def server_context(chain: Chain) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain.certificate)
    return context


def get(url: str, ca_file: Path) -> bytes:
    context = client_context(ca_file)
    with HttpClient(lambda: context, RequestLimits()).send("GET", url, {}) as response:
        return response.read(9)


@pytest.mark.parametrize("name", TRUSTED)
def test_certificate_that_go_trusts_is_trusted(name: str, tmp_path: Path) -> None:
    chain = write_chain(name, tmp_path)
    with running(server_context(chain)) as server:
        assert get(server.serve("/a", Reply(b"body")), chain.ca_file) == b"body"


@pytest.mark.parametrize("name", REFUSED)
def test_certificate_that_go_refuses_is_refused(name: str, tmp_path: Path) -> None:
    chain = write_chain(name, tmp_path)
    with running(server_context(chain)) as server:
        url = server.serve("/a", Reply(b"body"))
        with pytest.raises(UntrustedCertificate, match=r"^certificate: ") as caught:
            get(url, chain.ca_file)
        assert caught.value.lacks_authority is (name == "another root")
        assert server.requests == []


def test_certificate_has_the_name_without_the_dot_of_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context, asked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []
    authority.issue_cert("images.svc.cluster.local").configure_cert(context)
    context.sni_callback = lambda _, name, __: asked.append(name)
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda _, *others, **more: resolve("127.0.0.1", *others, **more)
    )
    with running(context) as server:
        url = server.serve("/a", Reply(b"body")).replace("127.0.0.1", "images.svc.cluster.local.")
        assert get(url, tmp_path / "ca.pem") == b"body"
    assert asked == ["images.svc.cluster.local"]


def other_interpreters() -> list[str]:
    """Return each Python here of another minor version than this one's."""
    found = subprocess.run([ROOT / ".ci/interpreters"], check=True, capture_output=True, text=True).stdout
    pairs = (line.split(" ", 1) for line in found.splitlines())
    return [path for version, path in pairs if version != "{}.{}".format(*sys.version_info)]


PROGRAM = """
import sys
from pathlib import Path
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import UntrustedCertificate
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits

for url, ca_file in zip(sys.argv[1::2], sys.argv[2::2]):
    context = client_context(Path(ca_file))
    try:
        with HttpClient(lambda: context, RequestLimits()).send("GET", url, {}) as response:
            print(response.read(9).decode())
    except UntrustedCertificate as error:
        print(error)
"""


def test_other_versions_of_python_have_the_same_rules(tmp_path: Path) -> None:
    """They run this code with the pure packages of this one."""
    path = f"{ROOT}:{Path(pytest.__file__).parents[1]}"
    arguments: list[str] = []
    with ExitStack() as stack:
        for name in (*TRUSTED, *REFUSED):
            directory = tmp_path / name
            directory.mkdir()
            chain = write_chain(name, directory)
            server = stack.enter_context(running(server_context(chain)))
            arguments += [server.serve("/a", Reply(b"body")), str(chain.ca_file)]
        results = {
            python: subprocess.run(
                [python, "-c", PROGRAM, *arguments],
                check=True,
                capture_output=True,
                text=True,
                env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            ).stdout.splitlines()
            for python in (sys.executable, *other_interpreters())
        }
    for lines in results.values():
        assert [line == "body" for line in lines] == [True] * len(TRUSTED) + [False] * len(REFUSED)


def test_rules_are_the_same_on_every_python() -> None:
    context = client_context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_system_authorities_are_loaded_once_and_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "authorities.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    trustme.CA().cert_pem.write_to_path(file)
    first = client_context()
    assert client_context() is first
    assert len(first.get_ca_certs()) == 1
    trustme.CA().cert_pem.write_to_path(file, append=True)
    assert len(client_context().get_ca_certs()) == 2
    assert client_context(file) is not client_context(file)


def test_unreadable_authorities_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no\.pem cannot be read: No such file"):
        client_context(tmp_path / "no.pem")
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"text cannot be read: NO_CERTIFICATE_OR_CRL_FOUND"):
        client_context(tmp_path / "text")
