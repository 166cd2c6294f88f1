"""Calls through a proxy: in absolute form, or by CONNECT."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from image_service.server.assisted.check import check_upstream
from image_service.server.assisted.client import AssistedService
from image_service.settings.parsers import address
from image_service.settings.proxies import ProxySettings
from image_service.settings.upstream import UpstreamSettings
from tests.chains import write_chain
from tests.connect_proxy import running_proxy
from tests.ports import ANY_ADDRESS, free_port
from tests.pytwisted import ensure_deferred
from tests.server.assisted.calling import ID, TIMEOUT_SECONDS, error_of
from tests.server.assisted.clocked import ClockedReactor
from tests.server.assisted.tunnel_proxy import tunnel_proxy
from tests.server.assisted.upstream import IGNITION, OK, issue, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

CHECK_PROXY = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
NO_ANSWER = f"assisted-service: no answer for the Ignition config of infra-env {ID}: "
USER = "us%3Aer:s%2F%40cret@"
CREDENTIALS = base64.b64encode(b"us:er:s/@cret").decode()


def proxies_at(port: int, user: str = "", exempt: str = "") -> ProxySettings:
    url = f"http://{user}127.0.0.1:{port}"
    return ProxySettings.from_environment({"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": exempt})


@ensure_deferred
async def test_http_request_has_the_absolute_form_and_the_credentials_of_the_proxy(
    reactor: EPollReactor,
) -> None:
    async with upstream(reactor) as proxy:
        url = "http://ai.example.com:8090"
        assisted = AssistedService(reactor, url, proxies=proxies_at(proxy.port, USER))
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
        await assisted.close()
        (request,) = proxy.requests
    assert request.startswith(f"GET {url}/api/assisted-install/v2/infra-envs/{ID}/".encode())
    assert b"\r\nHost: ai.example.com:8090\r\n" in request
    assert f"\r\nProxy-Authorization: Basic {CREDENTIALS}\r\n".encode() in request


@pytest.mark.parametrize("exempt", [f"{ANY_ADDRESS}/32", "*"])
@ensure_deferred
async def test_exempt_host_is_reached_directly(reactor: EPollReactor, exempt: str) -> None:
    async with upstream(reactor) as server:
        url, proxies = f"http://{ANY_ADDRESS}:{server.port}", proxies_at(free_port(), USER, exempt)
        assisted = AssistedService(reactor, url, proxies=proxies)
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
        await assisted.close()
        assert b"Proxy-Authorization" not in server.requests[0]


@ensure_deferred
async def test_https_goes_through_a_tunnel(reactor: EPollReactor, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = issue(authority, tmp_path, ANY_ADDRESS)
    async with tunnel_proxy(reactor) as proxy, upstream(reactor, certificate=certificate) as server:
        there = f"{ANY_ADDRESS}:{server.port}"
        proxies = proxies_at(proxy.port, USER)
        assisted = AssistedService(reactor, f"https://{there}", ca_file=tmp_path / "ca.pem", proxies=proxies)
        for _ in range(2):  # the second one on the same connection
            assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
        await assisted.close()
        assert len(server.requests) == 2
        assert b"Proxy-Authorization" not in server.requests[0]
    head = f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\nProxy-Authorization: Basic {CREDENTIALS}\r\n\r\n"
    assert proxy.heads == [head.encode()]


@ensure_deferred
async def test_certificate_is_verified_in_the_tunnel(reactor: EPollReactor, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = issue(authority, tmp_path, "127.0.0.1")  # that of the proxy's address
    async with tunnel_proxy(reactor) as proxy, upstream(reactor, certificate=certificate) as server:
        url = f"https://{ANY_ADDRESS}:{server.port}"
        assisted = AssistedService(reactor, url, ca_file=tmp_path / "ca.pem", proxies=proxies_at(proxy.port))
        error = await error_of(assisted.fetch_ignition(ID, None, None))
        await assisted.close()
        assert server.requests == []
    assert "its certificate is not for this host" in error.detail


def tls_proxies_at(port: int) -> ProxySettings:
    url = f"https://{USER}localhost:{port}"
    return ProxySettings.from_environment({"HTTP_PROXY": url, "HTTPS_PROXY": url})


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("name", ["without key identifiers", "intermediate alone"])
@ensure_deferred
async def test_proxy_may_be_reached_by_tls(
    reactor: EPollReactor, scheme: str, name: str, tmp_path: Path
) -> None:
    chain = write_chain(name, tmp_path)
    authority = trustme.CA()
    certificate = issue(authority, tmp_path, ANY_ADDRESS) if scheme == "https" else None
    chain.ca_file.write_bytes(chain.ca_file.read_bytes() + authority.cert_pem.bytes())
    with running_proxy(chain.certificate) as proxy:
        async with upstream(reactor, certificate=certificate) as server:
            url, proxies = f"{scheme}://{ANY_ADDRESS}:{server.port}", tls_proxies_at(proxy.port)
            assisted = AssistedService(reactor, url, ca_file=chain.ca_file, proxies=proxies)
            for _ in range(2):
                assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
            await assisted.close()
            assert len(server.requests) == 2
    start = f"CONNECT {ANY_ADDRESS}:{server.port}" if scheme == "https" else f"GET {url}/api/"
    assert proxy.lines[0].startswith(start)
    assert proxy.lines[0].endswith(f"Proxy-Authorization: Basic {CREDENTIALS}")


@pytest.mark.parametrize("scheme", ["http", "https"])
@ensure_deferred
async def test_certificate_of_the_proxy_is_verified(
    reactor: EPollReactor, scheme: str, tmp_path: Path
) -> None:
    chain = write_chain("another root", tmp_path)
    with running_proxy(chain.certificate) as proxy:
        url, proxies = f"{scheme}://ai.example.com", tls_proxies_at(proxy.port)
        assisted = AssistedService(reactor, url, ca_file=chain.ca_file, proxies=proxies)
        error = await error_of(assisted.fetch_ignition(ID, None, None))
        await assisted.close()
    assert proxy.lines == []
    named = f"the proxy https://localhost:{proxy.port}: the issuer of its certificate is not trusted"
    assert error.detail == (
        f"{NO_ANSWER}{named}; {CHECK_PROXY}, and its authority in ASSISTED_SERVICE_API_TRUSTED_CA_FILE"
    )


@ensure_deferred
async def test_proxy_without_tls_is_named(reactor: EPollReactor) -> None:
    async with upstream(reactor) as proxy:
        proxy.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        assisted = AssistedService(reactor, "https://ai.example.com", proxies=tls_proxies_at(proxy.port))
        error = await error_of(assisted.fetch_ignition(ID, None, None))
        await assisted.close()
    assert f"the proxy https://localhost:{proxy.port}: it does not answer with TLS; " in error.detail


@pytest.mark.parametrize("scheme", ["http", "https"])
@ensure_deferred
async def test_proxy_that_is_down_is_named_without_its_password(reactor: EPollReactor, scheme: str) -> None:
    port = free_port()
    url = f"{scheme}://ai.example.com"
    assisted = AssistedService(reactor, url, proxies=proxies_at(port, "user:s3cret@"))
    with capturedLogs() as events:
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    await assisted.close()
    reason = f"the proxy http://127.0.0.1:{port} refuses the connection; {CHECK_PROXY}"
    assert error.detail == NO_ANSWER + reason
    (line,) = [formatEvent(event) for event in events if "upstream" in event]
    assert line == f"{NO_ANSWER}{reason} ({url} through the proxy http://127.0.0.1:{port})"
    assert "s3cret" not in repr(events)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "answered CONNECT with status 407"),
        (b"HTTP/1.0 503 No\r\nContent-Length: 1\r\n\r\nx", "answered CONNECT with status 503"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer with HTTP"),
        (b"x" * 20_000, "does not answer with HTTP"),
    ],
)
@ensure_deferred
async def test_proxy_that_refuses_a_tunnel_is_named(
    reactor: EPollReactor, answer: bytes, reason: str
) -> None:
    async with upstream(reactor) as proxy:
        proxy.answer = answer
        assisted = AssistedService(reactor, "https://ai.example.com", proxies=proxies_at(proxy.port))
        error = await error_of(assisted.fetch_ignition(ID, None, None))
        await assisted.close()
    named = f"the proxy http://127.0.0.1:{proxy.port}"
    assert error.detail == f"{NO_ANSWER}{named} {reason}; {CHECK_PROXY}, and the log of the proxy"


@ensure_deferred
async def test_proxy_that_closes_is_named(reactor: EPollReactor) -> None:
    async with upstream(reactor) as proxy:
        proxy.answer, proxy.close = b"", True
        assisted = AssistedService(reactor, "https://ai.example.com", proxies=proxies_at(proxy.port))
        error = await error_of(assisted.fetch_ignition(ID, None, None))
        await assisted.close()
    assert f"the proxy http://127.0.0.1:{proxy.port} closed the connection" in error.detail


@ensure_deferred
async def test_proxy_that_hangs_is_named(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    async with upstream(reactor) as proxy:
        proxy.answer = OK[:9]
        assisted = AssistedService(
            clocked,
            "https://ai.example.com",
            proxies=proxies_at(proxy.port),
            connect_timeout_seconds=TIMEOUT_SECONDS,
        )
        failing = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        while not proxy.requests:
            await deferLater(reactor, 0.005)
        clocked.clock.advance(TIMEOUT_SECONDS)
        error = await failing
        await assisted.close()
    assert f"the proxy http://127.0.0.1:{proxy.port} did not answer CONNECT within 10 s" in error.detail
    assert error.code == "upstream-timeout"


@ensure_deferred
async def test_check_of_the_start_uses_the_proxy(reactor: EPollReactor) -> None:
    async with upstream(reactor) as proxy:
        settings = UpstreamSettings(host=address("ai.example.com"))
        assert await check_upstream(reactor, settings, proxies_at(proxy.port)) is None
        assert len(proxy.requests) == 1
