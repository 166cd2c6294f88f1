"""The client of assisted-service: requests, credentials, statuses and contents."""

from __future__ import annotations

import gzip
import json
import lzma
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import (
    ConfigurationError,
    IgnitionInvalid,
    Unauthorized,
    UpstreamError,
    UpstreamRefused,
)
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.reference import Credentials, CredentialScheme, Kind
from image_service.server.assisted.calls import (
    RAMDISK_LIMIT_BYTES,
    infra_env_limit,
)
from image_service.server.assisted.client import AssistedService
from image_service.server.http.problem import status_of
from image_service.settings.parsers import address
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.assisted.calling import (
    ID,
    NO_CONTENT,
    RAMDISK,
    SECRET,
    client_of,
    config_of,
    error_of,
    response,
    target,
)
from tests.server.assisted.upstream import IGNITION, OK, upstream
from tests.server.standalone.faults import Break, Call, Fault, FaultyStandalone
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor


@ensure_deferred
async def test_ignition_config_is_fetched_with_its_date(
    standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    ignition = await assisted.fetch_ignition(infra_env_id, Kind.FULL_ISO, None)
    assert json.loads(ignition.config)["storage"]["files"][0]["path"] == "/etc/issue.d/sample.issue"
    assert ignition.modified is not None
    assert "issue" not in repr(ignition)
    assert standalone.calls[infra_env_id, Call.IGNITION] == 1


@ensure_deferred
async def test_infra_env_is_fetched(standalone: FaultyStandalone, assisted: AssistedService) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    infra_env = await assisted.fetch_infra_env(infra_env_id, None)
    assert infra_env.kernel_arguments == (KernelArgument(Operation.APPEND, "console=ttyS0"),)
    assert (infra_env.openshift_version, infra_env.kind) == ("4.20", Kind.FULL_ISO)
    assert infra_env.architecture == "x86_64"


@ensure_deferred
async def test_ramdisk_is_fetched(
    reactor: EPollReactor, standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    api = ApiClient(reactor, standalone.api_url)
    infra_env_id = await api.register(network_keyfiles={"eth0.nmconnection": "[connection]\n"})
    ramdisk = await assisted.fetch_ramdisk(infra_env_id, None)
    assert ramdisk is not None
    members = read_members(ramdisk)
    assert members["etc/coreos-firstboot-network/eth0.nmconnection"].data == b"[connection]\n"
    assert standalone.calls == {(infra_env_id, Call.RAMDISK): 1}


@ensure_deferred
async def test_absent_or_empty_ramdisk_is_none(
    standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    assert await assisted.fetch_ramdisk(infra_env_id, None) is None
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=b"")
    assert await assisted.fetch_ramdisk(infra_env_id, None) is None
    assert standalone.calls[infra_env_id, Call.RAMDISK] == 2


@pytest.mark.parametrize(
    "ramdisk",
    [
        RAMDISK,
        lzma.compress(write_archive([Member("a", b"")]), check=lzma.CHECK_CRC32),
        b"\x89LZO the rest is the kernel's",
        b"\0" + RAMDISK,
        write_archive([Member("a", b"")]),
        RAMDISK + bytes(3) + RAMDISK,
    ],
)
@ensure_deferred
async def test_ramdisk_is_returned_unchanged(
    standalone: FaultyStandalone, assisted: AssistedService, ramdisk: bytes
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=ramdisk)
    assert await assisted.fetch_ramdisk(infra_env_id, None) == ramdisk


@ensure_deferred
async def test_204_is_an_error_except_for_a_ramdisk(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = NO_CONTENT
        for fetching in (assisted.fetch_ignition(ID, None, None), assisted.fetch_infra_env(ID, None)):
            error = await error_of(fetching)
            assert isinstance(error, UpstreamError)
            assert "answered 204" in error.detail


@ensure_deferred
async def test_connection_is_reused_after_204(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = NO_CONTENT
        assert await assisted.fetch_ramdisk(ID, None) is None
        (connection,) = server.connections
        server.answer = response("200 OK", RAMDISK)
        assert await assisted.fetch_ramdisk(ID, None) == RAMDISK
        assert server.connections == [connection]


@ensure_deferred
async def test_paths_and_parameters_are_those_of_the_contract(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        await assisted.fetch_ignition(ID, Kind.MINIMAL_ISO, None)
        await assisted.fetch_ignition(ID, None, None)
        server.answer = response("200 OK", b"{}")
        await assisted.fetch_infra_env(ID, None)
        server.answer = NO_CONTENT
        await assisted.fetch_ramdisk(ID, None)
    base = f"/api/assisted-install/v2/infra-envs/{ID}"
    assert [target(request) for request in server.requests] == [
        (
            f"{base}/downloads/files",
            {"file_name": ["discovery.ign"], "discovery_iso_type": ["minimal-iso"]},
        ),
        (f"{base}/downloads/files", {"file_name": ["discovery.ign"]}),
        (base, {}),
        (f"{base}/downloads/minimal-initrd", {}),
    ]


@pytest.mark.parametrize("path", ["", "/", "/assisted", "/assisted/"])
@ensure_deferred
async def test_path_of_the_base_url_precedes_the_api(reactor: EPollReactor, path: str) -> None:
    async with upstream(reactor) as server, client_of(reactor, server, path) as assisted:
        await assisted.fetch_ignition(ID, None, None)
    (request,) = server.requests
    assert target(request)[0].startswith(path.rstrip("/") + "/api/")


@pytest.mark.parametrize("host", ["[::1]:{port}", "127.0.0.1:{port}", "localhost:{port}"])
@ensure_deferred
async def test_names_and_addresses_are_connected_to(reactor: EPollReactor, host: str) -> None:
    interface = "::1" if host.startswith("[") else "127.0.0.1"
    async with upstream(reactor, interface) as server:
        netloc = address(host.format(port=server.port)).netloc
        assisted = AssistedService(reactor, f"http://{netloc}")
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
        await assisted.close()
    assert f"\r\nHost: {netloc}\r\n".encode() in server.requests[0]


@ensure_deferred
async def test_bare_ipv6_address_is_a_host(reactor: EPollReactor) -> None:
    # Nothing listens on the scheme's default port; the refusal shows that the address was parsed.
    assisted = AssistedService(reactor, f"http://{address('::1').netloc}")
    error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert "refuses the connection" in error.detail
    await assisted.close()


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8090",
        "ftp://localhost",
        "http://",
        "http://u:p@localhost",
        "http://localhost?a",
        "http://[::1",
    ],
)
def test_invalid_base_url_is_refused(reactor: EPollReactor, base_url: str) -> None:
    with pytest.raises(ConfigurationError):
        AssistedService(reactor, base_url)


@pytest.mark.parametrize(
    ("field", "modified"),
    [
        ("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "1994-11-06T08:49:37+00:00"),
        ("Last-Modified: yesterday\r\n", None),
        ("Last-Modified: \xff\r\n", None),
        ("", None),
    ],
)
@ensure_deferred
async def test_date_is_last_modified_or_none(reactor: EPollReactor, field: str, modified: str | None) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = OK.replace(b"\r\n", f"\r\n{field}".encode("latin-1"), 1)
        ignition = await assisted.fetch_ignition(ID, None, None)
    assert (ignition.modified and ignition.modified.isoformat()) == modified


# Credentials.


@pytest.mark.parametrize("scheme", CredentialScheme)
@ensure_deferred
async def test_credentials_are_passed_on_in_their_own_place(
    standalone: FaultyStandalone, assisted: AssistedService, scheme: CredentialScheme
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    right = Credentials(scheme, "a b&c=d/é" if scheme is CredentialScheme.API_KEY else "Bearer a.b.c")
    standalone.faults |= dict.fromkeys(Call, Fault(credentials=right))
    await assisted.fetch_ignition(infra_env_id, Kind.FULL_ISO, right)
    await assisted.fetch_infra_env(infra_env_id, right)
    assert await assisted.fetch_ramdisk(infra_env_id, right) is None
    for wrong in (None, Credentials(scheme, "wrong")):
        for fetching in (
            assisted.fetch_infra_env(infra_env_id, wrong),
            assisted.fetch_ramdisk(infra_env_id, wrong),
        ):
            error = await error_of(fetching)
            assert isinstance(error, Unauthorized)
            assert error.fields == (("WWW-Authenticate", "Bearer"),)


@pytest.mark.parametrize("scheme", CredentialScheme)
@ensure_deferred
async def test_credential_is_sent_in_one_place_only(reactor: EPollReactor, scheme: CredentialScheme) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        await assisted.fetch_ignition(ID, None, Credentials(scheme, SECRET))
        await assisted.fetch_ignition(ID, None, None)
    with_it, without = server.requests
    assert with_it.count(SECRET.encode()) == 1
    assert SECRET.encode() not in without
    assert b"api_key" not in without
    assert b"Authorization" not in without
    assert b"Image-Token" not in without


@pytest.mark.parametrize("scheme", [CredentialScheme.IMAGE_TOKEN, CredentialScheme.AUTHORIZATION])
@pytest.mark.parametrize("secret", ["a\r\nX-Other: b", "a\0", "é"])
@ensure_deferred
async def test_token_cannot_inject_a_field(
    reactor: EPollReactor, scheme: CredentialScheme, secret: str
) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        error = await error_of(assisted.fetch_ignition(ID, None, Credentials(scheme, secret)))
    assert isinstance(error, Unauthorized)
    assert secret not in error.detail
    assert server.requests == []


@ensure_deferred
async def test_errors_contain_neither_query_nor_upstream_body(reactor: EPollReactor) -> None:
    credentials = Credentials(CredentialScheme.API_KEY, SECRET)
    body = b'{"reason":"the body knows things"}'
    bodies = (*(f"{status} No" for status in (302, 400, 401, 403, 404, 409, 418, 500, 503)), "200 OK")
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        for head in bodies:
            server.answer = response(head, body)
            for fetching in (
                assisted.fetch_ignition(ID, None, credentials),
                assisted.fetch_ramdisk(ID, credentials),
            ):
                error = await error_of(fetching)
                assert SECRET not in error.detail
                assert "knows" not in error.detail
                assert ID in error.detail or isinstance(error, IgnitionInvalid)


# Statuses.


@pytest.mark.parametrize(
    ("status", "becomes"),
    [
        (400, 400),
        (401, 401),
        (403, 403),
        (404, 404),
        (409, 409),
        (422, 422),
        (429, 503),
        (500, 502),
        (503, 502),
    ],
)
@ensure_deferred
async def test_upstream_status_is_mapped(
    standalone: FaultyStandalone, assisted: AssistedService, status: int, becomes: int
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    fields = (("Retry-After", "7"), ("WWW-Authenticate", 'Basic realm="a"'))
    standalone.faults |= dict.fromkeys(Call, Fault(status=status, fields=fields))
    for fetching in (
        assisted.fetch_ignition(infra_env_id, None, None),
        assisted.fetch_infra_env(infra_env_id, None),
        assisted.fetch_ramdisk(infra_env_id, None),
    ):
        error = await error_of(fetching)
        assert status_of(error) == becomes
        assert error.retry_after_seconds == (7 if becomes in {502, 503} else None)
        assert error.fields == ((("WWW-Authenticate", 'Basic realm="a"'),) if becomes == 401 else ())


@ensure_deferred
async def test_unknown_infra_env_is_404(assisted: AssistedService) -> None:
    assert status_of(await error_of(assisted.fetch_ignition(ID, None, None))) == 404
    assert status_of(await error_of(assisted.fetch_ramdisk(ID, None))) == 404


@ensure_deferred
async def test_connection_is_reused_after_a_refusal(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = response("404 Not Found", b"{}")
        await error_of(assisted.fetch_ignition(ID, None, None))
        (connection,) = server.connections
        server.answer = OK
        await assisted.fetch_ignition(ID, None, None)
        assert server.connections == [connection]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@ensure_deferred
async def test_redirect_is_not_followed(reactor: EPollReactor, status: int) -> None:
    async with (
        upstream(reactor) as elsewhere,
        upstream(reactor) as server,
        client_of(reactor, server) as assisted,
    ):
        location = f"Location: http://127.0.0.1:{elsewhere.port}/"
        server.answer = response(f"{status} Elsewhere\r\n{location}")
        error = await error_of(
            assisted.fetch_ignition(ID, None, Credentials(CredentialScheme.IMAGE_TOKEN, SECRET))
        )
        assert elsewhere.requests == []
    assert isinstance(error, UpstreamRefused)
    assert error.retry_after_seconds


@ensure_deferred
async def test_cookies_are_neither_stored_nor_sent(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = OK.replace(
            b"\r\n", b"\r\nSet-Cookie: session=1\r\nSet-Cookie: \xff=\xff; Path=/\r\n", 1
        )
        await assisted.fetch_ignition(ID, None, None)
        await assisted.fetch_ignition(ID, None, None)
    assert len(server.requests) == 2
    assert not any(b"cookie" in request.lower() for request in server.requests)


# Content that is wrong.


@pytest.mark.parametrize("body", [b"", b"garbage", b'{"ignition":', b"\xff"])
@ensure_deferred
async def test_config_that_is_not_json_is_502(
    standalone: FaultyStandalone, assisted: AssistedService, body: bytes
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(body=body)
    error = await error_of(assisted.fetch_ignition(infra_env_id, None, None))
    assert isinstance(error, UpstreamError)
    assert error.retry_after_seconds


@ensure_deferred
async def test_json_that_is_not_an_ignition_config_is_422(
    standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(body=b'{"ignition":{"version":"2.2.0"}}')
    assert isinstance(await error_of(assisted.fetch_ignition(infra_env_id, None, None)), IgnitionInvalid)


@pytest.mark.parametrize("body", [b"garbage", b"{}", b"\0\x1f", bytes(512), b"<html>"])
@ensure_deferred
async def test_ramdisk_of_unknown_format_is_502(
    standalone: FaultyStandalone, assisted: AssistedService, body: bytes
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=body)
    error = await error_of(assisted.fetch_ramdisk(infra_env_id, None))
    assert isinstance(error, UpstreamError)
    assert f"infra-env {infra_env_id}, {len(body)} bytes, is not an archive" in error.detail
    assert error.retry_after_seconds


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lzma.compress(b"a"), "is xz with CRC64, which the kernel does not read; use xz --check=crc32"),
        (RAMDISK[:-9], "ends within"),
        (write_archive([Member("a", b"")])[:-124], "no cpio header"),
    ],
)
@ensure_deferred
async def test_ramdisk_that_no_kernel_unpacks_is_502(
    standalone: FaultyStandalone, assisted: AssistedService, body: bytes, reason: str
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=body)
    error = await error_of(assisted.fetch_ramdisk(infra_env_id, None))
    assert isinstance(error, UpstreamError)
    assert f"infra-env {infra_env_id}, {len(body)} bytes," in error.detail
    assert reason in error.detail


LIMIT_BYTES = 1 << 20


@async_fixture
async def limited(reactor: EPollReactor, standalone: FaultyStandalone) -> AsyncIterator[AssistedService]:
    client = AssistedService(
        reactor, standalone.base_url, ca_file=standalone.ca_file, ignition_bytes=LIMIT_BYTES
    )
    yield client
    await client.close()


@ensure_deferred
async def test_config_is_limited_in_size(standalone: FaultyStandalone, limited: AssistedService) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(body=config_of(LIMIT_BYTES))
    assert len((await limited.fetch_ignition(infra_env_id, None, None)).config) == LIMIT_BYTES
    standalone.faults[Call.IGNITION] = Fault(body=config_of(LIMIT_BYTES + 1))
    error = await error_of(limited.fetch_ignition(infra_env_id, None, None))
    assert isinstance(error, UpstreamError)
    assert f"larger than {LIMIT_BYTES} bytes" in error.detail


@ensure_deferred
async def test_infra_env_is_limited_in_size(standalone: FaultyStandalone, limited: AssistedService) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.INFRA_ENV] = Fault(body=b"{}" + b" " * infra_env_limit(LIMIT_BYTES))
    error = await error_of(limited.fetch_infra_env(infra_env_id, None))
    assert f"larger than {infra_env_limit(LIMIT_BYTES)} bytes" in error.detail


@ensure_deferred
async def test_ramdisk_is_limited_in_size(standalone: FaultyStandalone, assisted: AssistedService) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    largest = RAMDISK.ljust(RAMDISK_LIMIT_BYTES, b"\0")
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=largest)
    assert await assisted.fetch_ramdisk(infra_env_id, None) == largest
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=largest + b"\0")
    error = await error_of(assisted.fetch_ramdisk(infra_env_id, None))
    assert isinstance(error, UpstreamError)
    assert f"larger than {RAMDISK_LIMIT_BYTES} bytes" in error.detail


@ensure_deferred
async def test_endless_body_is_502(reactor: EPollReactor) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    async with upstream(reactor) as server, client_of(reactor, server, ignition_bytes=1 << 20) as assisted:
        server.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 9
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert "larger than" in error.detail


@ensure_deferred
async def test_content_coding_is_refused_before_decoding(
    standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    bomb = gzip.compress(b" " * (64 * 1024 * 1024), 9)
    standalone.faults[Call.IGNITION] = Fault(body=bomb, fields=(("Content-Encoding", "gzip"),))
    error = await error_of(assisted.fetch_ignition(infra_env_id, None, None))
    assert isinstance(error, UpstreamError)
    assert "content coding" in error.detail


@pytest.mark.parametrize("coding", [b"", b"Identity", b"identity, identity", b"aws-chunked", b"identity \t"])
@ensure_deferred
async def test_content_without_a_coding_is_accepted(reactor: EPollReactor, coding: bytes) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = OK.replace(b"\r\n", b"\r\nContent-Encoding: " + coding + b"\r\n", 1)
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
@ensure_deferred
async def test_interim_responses_are_skipped(reactor: EPollReactor, interim: bytes) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = 2 * (b"HTTP/1.1 " + interim + b"\r\nLink: </x>\r\n\r\n") + OK
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION


@ensure_deferred
async def test_request_accepts_identity_coding_only(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = OK.replace(b"\r\n", b"\r\nContent-Encoding: identity\r\n", 1)
        await assisted.fetch_ignition(ID, None, None)
    (request,) = server.requests
    assert b"\r\nAccept-Encoding: identity\r\n" in request
    assert b"gzip" not in request


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b": 32", b": 33"),  # a byte is missing
        OK.replace(b": 32", b": 31"),  # a byte too many: what is left is not JSON
        OK.replace(b"Content-Length: 32", b"X: y"),  # only the close would mark its end
        OK.replace(b"Content-Length: 32", b"Content-Length: 32\r\nContent-Length: 33"),
        OK.replace(b"Content-Length: 32", b"Content-Length: x"),
        OK.replace(b"Content-Length: 32", b"Transfer-Encoding: chunked"),
        OK.replace(b"Content-Length: 32", b"Transfer-Encoding: gzip"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n" + IGNITION + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"HTTP/1.1 twohundred OK\r\n\r\n",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
@ensure_deferred
async def test_incomplete_http_response_is_502(reactor: EPollReactor, answer: bytes) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer, server.close = answer, True
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert isinstance(error, UpstreamError)
    assert error.retry_after_seconds


@pytest.mark.parametrize("broken", [Break.RESET, Break.GARBAGE, Break.HALF_BODY])
@ensure_deferred
async def test_broken_connection_is_502(
    standalone: FaultyStandalone, assisted: AssistedService, broken: Break
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(broken=broken)
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=RAMDISK, broken=broken)
    for fetching in (
        assisted.fetch_ignition(infra_env_id, None, None),
        assisted.fetch_ramdisk(infra_env_id, None),
    ):
        error = await error_of(fetching)
        assert isinstance(error, UpstreamError)
        assert error.retry_after_seconds
    standalone.faults.clear()
    await assisted.fetch_ignition(infra_env_id, None, None)
    assert await assisted.fetch_ramdisk(infra_env_id, None) is None


@ensure_deferred
async def test_refused_connection_is_502(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server:
        pass
    async with client_of(reactor, server) as assisted:
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert isinstance(error, UpstreamError)
    assert "refuses the connection" in error.detail
    assert error.retry_after_seconds


@ensure_deferred
async def test_idle_connection_closed_by_the_server_is_replaced(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        await assisted.fetch_ignition(ID, None, None)
        (idle,) = server.connections
        idle.abort()
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
