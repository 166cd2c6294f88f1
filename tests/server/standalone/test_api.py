"""The API of the stand-in, over real sockets."""

from __future__ import annotations

import base64
import json
import socket
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from twisted.internet.defer import succeed
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs

from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import write_archive
from image_service.server.http.routes import ImageRoute, parse_route
from image_service.server.standalone import service
from image_service.server.standalone.infra_env import MAX_OVERRIDE_BYTES, MAX_RAMDISK_BYTES
from image_service.server.standalone.service import MAX_BODY_BYTES
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.standalone.programs import put_double, put_ksvalidator
from tests.server.standalone.running import BASE_URL, INFRA_ENVS, LOOPBACK, ApiClient, Reply, running
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.standalone.service import Standalone

NOWHERE = f"{INFRA_ENVS}/5a3b1e00-0000-4000-8000-000000000009"
IGNITION = '{"ignition":{"version":"3.2.0"}}'


@async_fixture
async def guarded(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with running(reactor, tmp_path / "guarded", LOOPBACK, "t0ken") as standalone:
        yield ApiClient(reactor, standalone.api_url)


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.rglob("*") if path.is_file()]


def problem(reply: Reply) -> tuple[int, str]:
    assert reply.field("Content-Type") == "application/problem+json"
    assert reply.document["status"] == reply.status
    return reply.status, reply.document["code"]


PRESEED = "d-i a/b string topsecretword\n"


@pytest.fixture
def families(standalone: Standalone) -> dict[str, str]:
    """The families of base images by version."""
    known = {"12": "debian-installer", "40": "anaconda", "other": "generic", "4.20": "coreos"}
    standalone.find_family = lambda version, _: succeed(known.get(version))
    return known


@ensure_deferred
async def test_infra_env_is_registered_changed_and_removed(api: ApiClient) -> None:
    created = await api("POST", INFRA_ENVS, {"name": "a", "openshift_version": "4.20"})
    assert created.status == 201
    infra_env_id = created.document["id"]
    assert str(UUID(infra_env_id)) == infra_env_id
    one = f"{INFRA_ENVS}/{infra_env_id}"
    assert created.field("Location") == one
    shown = await api("GET", one)
    assert (shown.status, shown.document) == (200, created.document)
    changed = await api("PATCH", one, {"name": "b", "image_type": "minimal-iso"})
    assert changed.status == 201
    assert (changed.document["name"], changed.document["type"]) == ("b", "minimal-iso")
    assert (await api("GET", one)).document == changed.document
    for collection in (INFRA_ENVS, f"{INFRA_ENVS}/"):
        assert (await api("GET", collection)).document == [changed.document]
    removed = await api("DELETE", one)
    assert (removed.status, removed.body) == (204, b"")
    assert problem(await api("GET", one)) == (404, "not-found")
    assert (await api("GET", INFRA_ENVS)).document == []


@ensure_deferred
async def test_copy_has_all_but_what_is_changed(api: ApiClient) -> None:
    ramdisk = base64.b64encode(write_archive([])).decode()
    original = await api.register(ignition_config_override=IGNITION, ramdisk=ramdisk, family_config="s3cret")
    copied = await api("POST", f"{INFRA_ENVS}/{original}/copies", {"name": "b", "family_config": None})
    assert copied.status == 201
    first = (await api("GET", f"{INFRA_ENVS}/{original}")).document
    copy = copied.document
    assert copied.field("Location") == f"{INFRA_ENVS}/{copy['id']}"
    assert copy["id"] != original
    assert (copy["name"], first["name"]) == ("b", "a")
    assert (copy["ramdisk_set"], copy["family_config_set"], first["family_config_set"]) == (True, False, True)
    assert copy["ignition_config_override"] == first["ignition_config_override"] == IGNITION
    assert problem(await api("POST", f"{NOWHERE}/copies", {})) == (404, "not-found")
    assert problem(await api("POST", f"{INFRA_ENVS}/{original}/copies", {"id": original}))[0] == 400


@ensure_deferred
@pytest.mark.parametrize(("architecture", "count"), [("x86_64", 8), ("s390x", 7)])
async def test_reply_has_the_urls_of_all_images(api: ApiClient, architecture: str, count: int) -> None:
    infra_env_id = await api.register(cpu_architecture=architecture, openshift_version="4.20+a")
    urls = (await api("GET", f"{INFRA_ENVS}/{infra_env_id}")).document["image_urls"]
    assert len(urls) == count
    refs = {name: parse_route(url.removeprefix(BASE_URL), {}) for name, url in urls.items()}
    assert all(isinstance(route, ImageRoute) for route in refs.values())
    assert all(route.ref.version == "4.20+a" for route in refs.values() if isinstance(route, ImageRoute))


@ensure_deferred
@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("12", {"kernel", "initrd", "ipxe_script"}),
        ("40", {"kernel", "initrd", "ipxe_script", "rootfs", "config_iso"}),
        ("other", set()),
        ("4.20", {"kernel", "initrd", "ipxe_script", "rootfs", "minimal_iso", "minimal_iso_sha256"}),
    ],
)
@pytest.mark.usefixtures("families")
async def test_urls_are_those_of_images_that_the_family_has(
    api: ApiClient, version: str, names: set[str]
) -> None:
    one = f"{INFRA_ENVS}/{await api.register(openshift_version=version)}"
    replies = [
        await api("GET", one),
        await api("PATCH", one, {"name": "b"}),
        await api("POST", f"{one}/copies", {}),
    ]
    documents = [*(reply.document for reply in replies), *(await api("GET", INFRA_ENVS)).document]
    assert len(documents) == 5
    for document in documents:
        assert document["image_urls"].keys() == names | {"iso", "iso_sha256"}


@ensure_deferred
async def test_discovery_config_has_a_later_date_after_each_change(api: ApiClient) -> None:
    infra_env_id = await api.register(ignition_config_override=IGNITION)
    path = f"{INFRA_ENVS}/{infra_env_id}/downloads/files?file_name=discovery.ign"
    dates = []
    for _ in range(3):
        reply = await api("GET", path)
        assert (reply.status, reply.document) == (200, json.loads(IGNITION))
        dates.append(parsedate_to_datetime(str(reply.field("Last-Modified"))))
        await api("PATCH", f"{INFRA_ENVS}/{infra_env_id}", {"name": "b"})
    assert dates == sorted(set(dates)), "every change has a later date"
    for kind in ("full-iso", "minimal-iso", "disconnected-iso"):
        assert (await api("GET", f"{path}&discovery_iso_type={kind}")).status == 200


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?file_name=",
        "?file_name=other.ign",
        "?file_name=discovery.ign&discovery_iso_type=a",
        "?file_name=discovery.ign&discovery_iso_type=pxe-initrd",
    ],
)
@ensure_deferred
async def test_unknown_file_is_400(api: ApiClient, query: str) -> None:
    infra_env_id = await api.register()
    reply = await api("GET", f"{INFRA_ENVS}/{infra_env_id}/downloads/files{query}")
    assert problem(reply) == (400, "parameter-invalid")


@ensure_deferred
async def test_ramdisk_is_fetched(api: ApiClient) -> None:
    infra_env_id = await api.register()
    path = f"{INFRA_ENVS}/{infra_env_id}/downloads/minimal-initrd"
    none = await api("GET", path)
    assert (none.status, none.body) == (204, b"")
    await api(
        "PATCH", f"{INFRA_ENVS}/{infra_env_id}", {"network_keyfiles": {"a.nmconnection": "[connection]\n"}}
    )
    some = await api("GET", path)
    assert (some.status, some.field("Content-Type")) == (200, "application/octet-stream")
    (name,) = read_members(some.body)
    assert name == "etc/coreos-firstboot-network/a.nmconnection"


@pytest.mark.parametrize("override_bytes", [1000, soaked(MAX_OVERRIDE_BYTES)])
@ensure_deferred
async def test_own_ramdisk_replaces_that_of_keyfiles(api: ApiClient, override_bytes: int) -> None:
    infra_env_id = await api.register(network_keyfiles={"a.nmconnection": ""})
    one, largest = f"{INFRA_ENVS}/{infra_env_id}", write_archive([]).ljust(MAX_RAMDISK_BYTES, b"\0")
    override = IGNITION.ljust(override_bytes)
    fields = {"ramdisk": base64.b64encode(largest).decode(), "ignition_config_override": override}
    set_ = await api("PATCH", one, fields)
    assert (set_.status, set_.document["ramdisk_set"]) == (201, True)
    got = await api("GET", f"{one}/downloads/minimal-initrd")
    assert got.body == largest
    cleared = await api("PATCH", one, {"ramdisk": None})
    assert cleared.document["ramdisk_set"] is False
    (name,) = read_members((await api("GET", f"{one}/downloads/minimal-initrd")).body)
    assert name == "etc/coreos-firstboot-network/a.nmconnection"


@ensure_deferred
async def test_pull_secret_is_accepted_and_not_stored(api: ApiClient, tmp_path: Path) -> None:
    with capturedLogs() as events:
        infra_env_id = await api.register(pull_secret="s3cret-pull", name="to-be-found")
        changed = await api("PATCH", f"{INFRA_ENVS}/{infra_env_id}", {"pull_secret": "s3cret-pull"})
    assert changed.status == 201
    assert b"s3cret-pull" not in changed.body
    assert infra_env_id in repr(events)
    assert "s3cret-pull" not in repr(events)
    files = contents(tmp_path)
    assert any(b"to-be-found" in content for content in files)
    assert not any(b"s3cret-pull" in content for content in files)


@pytest.mark.parametrize(("image_type", "file"), [("full-iso", "full.iso"), ("minimal-iso", "minimal.iso")])
@ensure_deferred
async def test_image_url_has_the_current_base_url(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, image_type: str, file: str
) -> None:
    infra_env_id = await api.register(image_type=image_type, cpu_architecture="aarch64")
    reply = await api("GET", f"{INFRA_ENVS}/{infra_env_id}/downloads/image-url")
    url = f"{BASE_URL}/byid/{infra_env_id}/4.20/aarch64/{file}"
    assert reply.document["url"] == url
    assert (await api("GET", f"{INFRA_ENVS}/{infra_env_id}")).document["download_url"] == url
    monkeypatch.setattr("tests.server.standalone.running.BASE_URL", "https://other.test")
    reply = await api("GET", f"{INFRA_ENVS}/{infra_env_id}/downloads/image-url")
    assert reply.document["url"].startswith("https://other.test/byid/")


@ensure_deferred
@pytest.mark.parametrize(
    ("version", "config", "code", "reason"),
    [
        (
            "12",
            PRESEED + "d-i a/b strng topsecretword",
            "config-invalid",
            "line 2, column 9 of the preseed file",
        ),
        ("12", IGNITION, "customization-invalid", "whose config is a preseed file"),
        ("40", "text\n%post\ntopsecretword", "config-invalid", "the section %post in line 2"),
        ("other", "topsecretword", "customization-invalid", "give files, arguments, an initrd"),
        (
            "4.20",
            PRESEED,
            "config-invalid",
            "the base image 4.20 (x86_64) is of CoreOS, whose config is Ignition",
        ),
    ],
)
@pytest.mark.usefixtures("families")
async def test_config_that_its_family_would_not_read_is_refused_at_once(
    api: ApiClient, version: str, config: str, code: str, reason: str
) -> None:
    document = {"name": "a", "openshift_version": version, "family_config": config}
    refused = await api("POST", INFRA_ENVS, document)
    assert problem(refused) == (422, code)
    assert reason in refused.document["detail"]
    assert "topsecretword" not in refused.body.decode()
    assert (await api("GET", INFRA_ENVS)).document == []
    one = f"{INFRA_ENVS}/{await api.register(openshift_version=version)}"
    for method, path in (("PATCH", one), ("POST", f"{one}/copies")):
        assert (await api(method, path, {"family_config": config})).status == 422
    assert [each["family_config_set"] for each in (await api("GET", INFRA_ENVS)).document] == [False]


@ensure_deferred
@pytest.mark.slow
@pytest.mark.usefixtures("families")
async def test_config_that_the_program_of_its_family_does_not_accept_is_refused(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = {"name": "a", "openshift_version": "40", "family_config": "text\ntopsecretword\n"}
    with monkeypatch.context() as patched:
        put_ksvalidator(patched)
        refused = await api("POST", INFRA_ENVS, document)
        assert problem(refused) == (422, "config-invalid")
        detail = "ksvalidator does not accept the kickstart file: line 2: Unknown command: …"
        assert refused.document["detail"] == detail
        assert (await api("POST", INFRA_ENVS, {**document, "family_config": "text\n"})).status == 201
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        assert (await api("POST", INFRA_ENVS, document)).status == 201
    put_double(monkeypatch, tmp_path, "ksvalidator", "exit 1")
    assert (await api("POST", INFRA_ENVS, document)).status == 201


@ensure_deferred
async def test_config_is_checked_by_the_family_of_the_base_image_that_is_set(
    api: ApiClient, families: dict[str, str]
) -> None:
    one = f"{INFRA_ENVS}/{await api.register(openshift_version='12', family_config=PRESEED)}"
    assert (await api("PATCH", one, {"openshift_version": "4.20"})).status == 422
    assert (await api("PATCH", one, {"openshift_version": "4.20", "family_config": ""})).status == 201
    assert (await api("PATCH", one, {"openshift_version": "unknown", "family_config": PRESEED})).status == 201
    families["unknown"] = "anaconda"
    assert (await api("PATCH", one, {"name": "b"})).status == 201  # neither of both is new
    assert (await api("PATCH", one, {"family_config": "%post"})).status == 422


@pytest.mark.parametrize(
    ("attributes", "path", "content_type"),
    [
        ({}, "files?file_name=discovery.ign", "application/json"),
        ({"family_config": "x"}, "files?file_name=discovery.ign", "application/octet-stream"),
        ({"family_config": ""}, "files?file_name=discovery.ign", "application/octet-stream"),
        (
            {"network_keyfiles": {"a.nmconnection": ""}},
            "minimal-initrd",
            "application/octet-stream",
        ),
        ({}, "image-url", "application/json"),
    ],
)
@ensure_deferred
async def test_openapi_document_has_the_type_of_each_download(
    api: ApiClient, attributes: dict[str, Any], path: str, content_type: str
) -> None:
    reply = await api("GET", f"{INFRA_ENVS}/{await api.register(**attributes)}/downloads/{path}")
    assert (reply.status, reply.field("Content-Type")) == (200, content_type)
    document = (await api("GET", "/openapi.json")).document
    operation = document["paths"][f"{INFRA_ENVS}/{{infra_env_id}}/downloads/{path.partition('?')[0]}"]["get"]
    assert content_type in operation["responses"]["200"]["content"]


@ensure_deferred
async def test_wrong_fields_are_400_with_their_names(api: ApiClient) -> None:
    reply = await api("POST", INFRA_ENVS, {"name": "a", "cluster_id": "x"})
    assert problem(reply) == (400, "parameter-invalid")
    assert "'cluster_id' is not a field" in reply.document["detail"]
    assert "openshift_version is required" in reply.document["detail"]
    infra_env_id = await api.register()
    reply = await api("PATCH", f"{INFRA_ENVS}/{infra_env_id}", {"cpu_architecture": "vax"})
    assert problem(reply) == (400, "parameter-invalid")
    reply = await api("POST", INFRA_ENVS, body=b"{", Content_Type="application/json")
    assert problem(reply) == (400, "request-invalid")
    assert len((await api("GET", INFRA_ENVS)).document) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/assisted-install/v2/clusters"),
        ("GET", f"{INFRA_ENVS}/A"),
        ("GET", NOWHERE.upper()),
        ("GET", f"{NOWHERE}/downloads"),
        ("GET", f"{INFRA_ENVS}/%35a3b1e00-0000-4000-8000-000000000009"),
        ("GET", NOWHERE),
        ("DELETE", NOWHERE),
        ("GET", f"{NOWHERE}/downloads/files?file_name=discovery.ign"),
        ("GET", f"{NOWHERE}/downloads/minimal-initrd"),
        ("GET", f"{NOWHERE}/downloads/image-url"),
    ],
)
@ensure_deferred
async def test_unknown_resource_is_404(api: ApiClient, method: str, path: str) -> None:
    assert problem(await api(method, path)) == (404, "not-found")
    if method == "GET" and path == NOWHERE:
        assert problem(await api("PATCH", path, {"name": "b"})) == (404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", INFRA_ENVS, "GET, POST, HEAD"),
        ("OPTIONS", INFRA_ENVS, "GET, POST, HEAD"),
        ("POST", NOWHERE, "GET, PATCH, DELETE, HEAD"),
        ("PUT", NOWHERE, "GET, PATCH, DELETE, HEAD"),
        ("POST", f"{NOWHERE}/downloads/files", "GET, HEAD"),
    ],
)
@ensure_deferred
async def test_unsupported_method_is_405_with_allow(
    api: ApiClient, method: str, path: str, allow: str
) -> None:
    reply = await api(method, path, body=b"{}", Content_Type="application/json")
    assert problem(reply) == (405, "method-not-allowed")
    assert reply.field("Allow") == allow


@ensure_deferred
async def test_head_has_the_fields_of_get(api: ApiClient) -> None:
    infra_env_id = await api.register(ignition_config_override=IGNITION)
    path = f"{INFRA_ENVS}/{infra_env_id}/downloads/files?file_name=discovery.ign"
    got, head = await api("GET", path), await api("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.field("Content-Length") == str(len(got.body))
    for name in ("Content-Type", "Last-Modified", "Cache-Control"):
        assert head.field(name) == got.field(name) is not None


@ensure_deferred
async def test_responses_are_no_store_without_server_and_cookie(api: ApiClient) -> None:
    reply = await api("GET", INFRA_ENVS)
    assert reply.field("Cache-Control") == "no-store"
    assert reply.field("Server") is None
    assert reply.field("Set-Cookie") is None


# What a web page could make a browser send.


@ensure_deferred
async def test_requests_of_other_origins_are_refused(api: ApiClient) -> None:
    form = await api(
        "POST", INFRA_ENVS, body=b'{"name":"a","openshift_version":"4"}', Content_Type="text/plain"
    )
    assert problem(form) == (415, "content-type-unsupported")
    document = {"name": "a", "openshift_version": "4"}
    foreign = await api("POST", INFRA_ENVS, document, Origin="http://evil.test")
    assert problem(foreign) == (403, "forbidden")
    rebound = await api("GET", INFRA_ENVS, Host="evil.test")
    assert problem(rebound) == (421, "host-misdirected")
    preflight = await api(
        "OPTIONS", INFRA_ENVS, Origin="http://evil.test", Access_Control_Request_Method="POST"
    )
    assert preflight.status == 403
    for reply in (form, foreign, rebound, preflight):
        assert reply.field("Access-Control-Allow-Origin") is None
    assert (await api("GET", INFRA_ENVS)).document == []


@ensure_deferred
async def test_every_request_needs_the_token(guarded: ApiClient) -> None:
    for method, path in (("GET", INFRA_ENVS), ("GET", NOWHERE), ("GET", "/"), ("DELETE", NOWHERE)):
        reply = await guarded(method, path)
        assert problem(reply) == (401, "unauthorized")
        assert reply.field("WWW-Authenticate") == 'Bearer realm="image-service"'
    assert (await guarded("GET", INFRA_ENVS, Authorization="Bearer wrong")).status == 401
    assert (await guarded("GET", INFRA_ENVS, Authorization="Bearer t0ken")).status == 200


# What a client could do to the process.


def test_limit_of_the_body_lets_the_largest_fields_pass() -> None:
    escaped_override_bytes, ramdisk_in_base64_bytes = 2 * MAX_OVERRIDE_BYTES, 4 * MAX_RAMDISK_BYTES // 3
    assert escaped_override_bytes + ramdisk_in_base64_bytes + 64 * 1024 < MAX_BODY_BYTES


@pytest.mark.parametrize("limit_bytes", [1024 * 1024, soaked(MAX_BODY_BYTES)])
@ensure_deferred
async def test_body_above_the_limit_is_413(
    reactor: EPollReactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    monkeypatch.setattr(service, "MAX_BODY_BYTES", limit_bytes)
    fields = {"Content_Type": "application/json"}
    async with running(reactor, tmp_path) as standalone:
        api = ApiClient(reactor, standalone.api_url)
        for size in (limit_bytes + 1, 3 * limit_bytes):
            reply = await api("POST", INFRA_ENVS, body=b" " * size, **fields)
            assert problem(reply) == (413, "content-not-accepted")
        largest = json.dumps({"name": "a", "openshift_version": "4"}).encode().ljust(limit_bytes)
        assert (await api("POST", INFRA_ENVS, body=largest, **fields)).status == 201


@ensure_deferred
async def test_too_many_parameters_are_400(api: ApiClient) -> None:
    reply = await api("GET", f"{INFRA_ENVS}?" + "&".join(f"a{number}=1" for number in range(17)))
    assert problem(reply) == (400, "request-invalid")


@ensure_deferred
async def test_missing_host_is_400(standalone: Standalone) -> None:
    port = int(standalone.api_url.rpartition(":")[2])

    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"GET {INFRA_ENVS} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    reply: bytes = await deferToThread(talk)
    assert reply.startswith(b"HTTP/1.1 400 ")


@ensure_deferred
async def test_disconnect_during_a_request_leaves_nothing_behind(
    standalone: Standalone, api: ApiClient
) -> None:
    port = int(standalone.api_url.rpartition(":")[2])
    document = json.dumps({"name": "left", "openshift_version": "4"})
    head = f"POST {INFRA_ENVS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    def leave(request: str) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request.encode())

    await deferToThread(leave, f"{head}Content-Length: 1000\r\n\r\n{document}")
    await deferToThread(leave, f"{head}Content-Length: {len(document)}\r\n\r\n{document}")
    names: list[Any] = [document["name"] for document in (await api("GET", INFRA_ENVS)).document]
    assert names in ([], ["left"]), "a whole request may have been served, half of one never"
