"""Short links and iPXE scripts, requested as a connection does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import Unauthorized
from image_service.core.images.reference import ISOS, Kind
from image_service.server.links.links import LinkRequest
from image_service.server.serving.ipxe_scripts import IpxeScripts
from tests.server.http.reading import body_of, fields_of
from tests.server.links.linking import links_of
from tests.server.serving.asking import Service
from tests.server.snapshots.doubles import BASE_URL, ID, MAX_AGE_SECONDS, TTL_SECONDS, infra_env_of
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import restart, say
from tests.server.snapshots.outcomes import outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.server.transport.exchanges.exchange import PreparedResponse

ISO = f"/byid/{ID}/4.20/x86_64/full.iso"
SCRIPT = f"/images/{ID}/ipxe?version=4.20&arch=x86_64"
ARTIFACTS = f"{BASE_URL}/base/boot-artifacts/4.20/x86_64"
ARGUMENTS = f"coreos.live.rootfs_url={ARTIFACTS}/rootfs.img"


@pytest.fixture
def service() -> Iterator[Service]:
    with make_world() as world:
        say(world)
        yield Service(world)


def link(service: Service, path: str, *, pinned: bool = False, expires_in: int = 86400) -> str:
    """Return the target of a new link to a path."""
    request = LinkRequest(f"{BASE_URL}{path}", expires_in, "", pinned)
    return outcome(service.links.make(request, "192.0.2.1")).url.removeprefix(BASE_URL)


def revoke_all(service: Service) -> None:
    for each in outcome(service.links.list_usable()):
        outcome(service.links.revoke(each.id))


def range_of(service: Service, target: str) -> PreparedResponse:
    prepared = service.get(target, range="bytes=100000-100009")
    prepared.on_end()
    return prepared


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_link_responds_as_its_url(service: Service, method: str, *, pinned: bool) -> None:
    target = link(service, ISO, pinned=pinned)
    direct, linked = (service.get(each, method) for each in (ISO, target))
    assert linked.response.status == 200
    assert fields_of(linked.response) == fields_of(direct.response)
    assert body_of(linked.response) == body_of(direct.response)
    assert (linked.subject.handler, linked.subject.infra_env) == ("/s/:code", ID)


def test_digest_of_a_link_is_its_images(service: Service) -> None:
    target = link(service, ISO)
    assert body_of(service.get(f"{target}.sha256").response) == body_of(service.get(f"{ISO}.sha256").response)


def test_pinned_link_keeps_its_version_for_every_client(service: Service) -> None:
    pinned, following = link(service, ISO, pinned=True), link(service, ISO)
    before = body_of(service.get(pinned).response)
    say(service.world, "changed")
    service.world.clock.advance(TTL_SECONDS)
    after = body_of(service.get(following).response)
    assert after != before
    assert body_of(service.get(pinned).response) == before
    assert body_of(range_of(service, pinned).response) == before[100000:100010]
    assert body_of(service.get(pinned, range="bytes=0-9").response) == before[:10]
    assert service.get(pinned, "HEAD").response.fields == service.get(pinned).response.fields


def test_pinned_link_keeps_its_version_over_a_restart_and_changes(service: Service) -> None:
    pinned = link(service, ISO, pinned=True)
    before = body_of(service.get(pinned).response)
    for text in ("changed", "changed again"):
        say(service.world, text)
        service.world.clock.advance(MAX_AGE_SECONDS)
        assert body_of(service.get(ISO).response) != before
    restart(service.world)
    restarted = Service(service.world)
    restarted.handler = restarted.make_handler(links_of(service.world, service.stored_links))
    assert body_of(restarted.get(pinned).response) == before
    assert body_of(restarted.get(pinned, range="bytes=100000-100009").response) == before[100000:100010]
    service.world.assisted.failures["ignition"] = Unauthorized("the token was revoked")
    service.world.clock.advance(TTL_SECONDS)
    assert restarted.get(pinned).response.status == 401


def test_link_ends_for_mounts_in_progress(service: Service) -> None:
    target = link(service, ISO)
    mounted = range_of(service, target)
    head = service.get(target, "HEAD")
    now = service.world.clock.seconds()
    assert mounted.ranges is not None
    assert head.is_current is not None
    assert mounted.ranges.respond_to_range(0, 9, now) is not None
    assert head.is_current(now)
    revoke_all(service)
    later = now + 1.5
    service.world.clock.advance(1.5)
    assert mounted.ranges.respond_to_range(0, 9, later) is None
    assert not head.is_current(later)
    assert service.get(target).response.status == 410
    assert service.get(target, range="bytes=0-9").response.status == 410


def test_link_is_refused_while_assisted_service_refuses_its_url(service: Service) -> None:
    target = link(service, ISO)
    service.world.assisted.failures["ignition"] = Unauthorized("the token was revoked")
    service.world.clock.advance(TTL_SECONDS)
    assert service.get(target).response.status == 401


def test_unknown_link_is_not_found(service: Service) -> None:
    target = link(service, ISO)
    for wrong in ("/s/aaaaaaaaaaaaaaaa.iso", target.replace(".iso", ".img"), target.replace(".iso", ".exe")):
        assert service.get(wrong).response.status == 404


def test_listener_that_withholds_isos_serves_no_link_to_one(service: Service) -> None:
    target, netboot = link(service, ISO), link(service, SCRIPT)
    withholding = Service(service.world, withheld={*ISOS, Kind.PXE_INITRD})
    withholding.handler = withholding.make_handler(service.links)
    for each in (target, netboot, netboot.replace(".ipxe", ".img"), SCRIPT):
        assert withholding.get(each).response.status == 404
    assert withholding.get(netboot.replace(".ipxe", ".vmlinuz")).response.status == 200


@pytest.mark.parametrize(
    ("query", "repeated"),
    [
        ("", ""),
        ("&image_token=a.b%24%7Bc%7D", "&image_token=a.b%24%7Bc%7D"),
        ("&api_key=k%26v", "&api_key=k%26v"),
    ],
)
def test_script_repeats_the_callers_credentials(service: Service, query: str, repeated: str) -> None:
    service.world.assisted.reported = infra_env_of(["a=1", "b=2"])
    response = service.get(SCRIPT + query).response
    assert response.status == 200
    assert fields_of(response)["cache-control"] == "no-store"
    initrd = f"{BASE_URL}/base/images/{ID}/pxe-initrd?version=4.20&arch=x86_64{repeated}"
    first, second, third, last = body_of(response).decode().splitlines()
    assert (first, last) == ("#!ipxe", "boot")
    assert second == f"initrd --name initrd {initrd}"
    kernel, url, name, arguments = third.split(" ", 3)
    assert (kernel, url, name) == ("kernel", f"{ARTIFACTS}/vmlinuz", "initrd=initrd")
    assert arguments.endswith(f"{ARGUMENTS} a=1 b=2")
    assert "coreos.liveiso" not in arguments


def test_credentials_that_no_url_holds_are_not_repeated(service: Service) -> None:
    response = service.get(SCRIPT, authorization="Bearer secret").response
    assert response.status == 200
    assert b"secret" not in body_of(response)


def test_script_of_a_link_points_at_the_link(service: Service) -> None:
    target = link(service, f"{SCRIPT}&image_token=eyJ.secret")
    code = target.removesuffix(".ipxe")
    script = body_of(service.get(target).response).decode()
    assert f"initrd --name initrd {BASE_URL}/base{code}.img\n" in script
    assert f"kernel {BASE_URL}/base{code}.vmlinuz initrd=initrd " in script
    assert "secret" not in script
    initrd = f"/images/{ID}/pxe-initrd?version=4.20&image_token=eyJ.secret"
    assert body_of(service.get(f"{code}.img").response) == body_of(service.get(initrd).response)
    kernel = "/boot-artifacts/4.20/x86_64/vmlinuz"
    assert body_of(service.get(f"{code}.vmlinuz").response) == body_of(service.get(kernel).response)


@pytest.mark.parametrize("version", ["4.99", ""])
def test_script_of_an_unknown_version_is_an_invalid_request(service: Service, version: str) -> None:
    assert service.get(f"/images/{ID}/ipxe?version={version}").response.status == 400


def test_there_is_no_script_for_machines_without_ipxe(service: Service) -> None:
    assert service.get(f"/images/{ID}/ipxe?version=4.20&arch=s390x").response.status == 404


def test_script_has_no_digest(service: Service) -> None:
    assert service.get(f"{SCRIPT}&digest=sha256").response.status == 404


@pytest.mark.parametrize("infra_env_error", [Unauthorized("no token")])
def test_script_is_refused_as_images_are(service: Service, infra_env_error: Unauthorized) -> None:
    service.world.assisted.failures["infra-env"] = infra_env_error
    assert service.get(SCRIPT).response.status == 401


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("192.0.2.7:8080", "http://192.0.2.7:8080/base"),
        ("[2001:db8::7]", "http://[2001:db8::7]/base"),
        ("a$b", f"{BASE_URL}/base"),
        ("", f"{BASE_URL}/base"),
    ],
)
def test_urls_of_the_plain_listener_are_those_by_which_it_was_reached(
    service: Service, host: str, reached: str
) -> None:
    scripts = IpxeScripts(service.world.images, lambda: f"{BASE_URL}/base", "/base", uses_host=True)
    service.handler = service.make_handler(service.links, scripts)
    script = body_of(service.get(SCRIPT, host=host).response).decode()
    assert f"kernel {reached}/boot-artifacts/4.20/x86_64/vmlinuz" in script
    assert f"rootfs_url={reached}/boot-artifacts/4.20/x86_64/rootfs.img" in script
