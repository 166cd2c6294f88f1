"""The listener for image-service: its responses, and the counters and faults of the test double."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest
from twisted.internet.threads import deferToThread

from image_service.core.images.reference import Credentials, CredentialScheme, Kind
from image_service.server.assisted.client import AssistedService
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.standalone.faults import Call, Fault, FaultyStandalone
from tests.server.standalone.running import INFRA_ENVS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.standalone.running import ApiClient


@async_fixture
async def assisted(reactor: EPollReactor, standalone: FaultyStandalone) -> AsyncIterator[AssistedService]:
    client = AssistedService(reactor, standalone.base_url, ca_file=standalone.ca_file)
    yield client
    await client.close()


async def request(
    standalone: FaultyStandalone, path: str, method: str = "GET", data: bytes | None = None, **fields: str
) -> tuple[int, dict[str, str], bytes]:
    """Ask with a client that we did not write, over TLS verified by the standard library."""

    def talk() -> tuple[int, dict[str, str], bytes]:
        context = ssl.create_default_context(cafile=str(standalone.ca_file))
        asked = urllib.request.Request(standalone.base_url + path, data, fields, method=method)  # noqa: S310 - https
        try:
            with urllib.request.urlopen(asked, context=context) as reply:  # noqa: S310 - https
                return reply.status, dict(reply.headers), reply.read()
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    return await deferToThread(talk)


def ignition_of(infra_env_id: str) -> str:
    return f"{INFRA_ENVS}/{infra_env_id}/downloads/files?file_name=discovery.ign"


@ensure_deferred
async def test_service_listener_has_only_downloads(standalone: FaultyStandalone, api: ApiClient) -> None:
    infra_env_id = await api.register()
    one = f"{INFRA_ENVS}/{infra_env_id}"
    for path, expected in (
        (one, 200),
        (ignition_of(infra_env_id), 200),
        (f"{one}/downloads/minimal-initrd", 204),
    ):
        assert (await request(standalone, path))[0] == expected
    for method, path in (
        ("GET", INFRA_ENVS),
        ("GET", f"{one}/downloads/image-url"),
        ("DELETE", one),
        ("PATCH", one),
        ("POST", INFRA_ENVS),
    ):
        data = b"{}" if method in {"PATCH", "POST"} else None
        status, _, _ = await request(standalone, path, method, data, **{"Content-Type": "application/json"})
        assert status == 404
    assert (await api("GET", one)).status == 200


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"Host": "evil.test"}, 421),
        ({"Origin": "https://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost"}, 200),
    ],
)
@ensure_deferred
async def test_service_listener_refuses_other_origins(
    standalone: FaultyStandalone, api: ApiClient, fields: dict[str, str], expected: int
) -> None:
    infra_env_id = await api.register()
    status, _, _ = await request(standalone, f"{INFRA_ENVS}/{infra_env_id}", "GET", None, **fields)
    assert status == expected


@ensure_deferred
async def test_calls_are_counted_by_infra_env_and_kind(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService
) -> None:
    first, second = await api.register(), await api.register()
    for _ in range(3):
        await assisted.fetch_ignition(first, Kind.FULL_ISO, None)
    await assisted.fetch_infra_env(first, None)
    await assisted.fetch_infra_env(second, None)
    await assisted.fetch_ramdisk(second, None)
    assert standalone.calls == {
        (first, Call.IGNITION): 3,
        (first, Call.INFRA_ENV): 1,
        (second, Call.INFRA_ENV): 1,
        (second, Call.RAMDISK): 1,
    }
    await api("GET", ignition_of(first))
    assert standalone.calls[first, Call.IGNITION] == 3, "people are not counted"


@ensure_deferred
async def test_each_config_has_a_new_token_and_the_same_date(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService
) -> None:
    infra_env_id = await api.register()
    standalone.faults[Call.IGNITION] = Fault(sign_token=True)
    fetched = [await assisted.fetch_ignition(infra_env_id, None, None) for _ in range(3)]
    assert len({ignition.config for ignition in fetched}) == 3
    assert len({ignition.modified for ignition in fetched}) == 1
    (unit,) = json.loads(fetched[0].config)["systemd"]["units"]
    assert "PULL_SECRET_TOKEN=" in unit["contents"]


@ensure_deferred
async def test_signed_token_is_in_the_agents_unit_beside_the_override(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService
) -> None:
    units = [{"name": "b.service"}, {"name": "agent.service", "enabled": True}]
    override = {"ignition": {"version": "3.4.0"}, "systemd": {"units": units}}
    infra_env_id = await api.register(ignition_config_override=json.dumps(override))
    standalone.faults[Call.IGNITION] = Fault(sign_token=True)
    served = json.loads((await assisted.fetch_ignition(infra_env_id, None, None)).config)
    agent, other = served["systemd"]["units"]
    assert "PULL_SECRET_TOKEN=" in agent["contents"]
    assert agent["enabled"] is True
    assert other == {"name": "b.service"}


@ensure_deferred
async def test_token_is_signed_into_configs_only(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService
) -> None:
    infra_env_id = await api.register(network_keyfiles={"a.nmconnection": ""})
    asked = (assisted.fetch_infra_env, assisted.fetch_ramdisk)
    before = [await ask(infra_env_id, None) for ask in asked]
    standalone.faults |= dict.fromkeys(Call, Fault(sign_token=True))
    assert [await ask(infra_env_id, None) for ask in asked] == before


@ensure_deferred
async def test_last_modified_can_be_omitted(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService
) -> None:
    infra_env_id = await api.register()
    assert (await assisted.fetch_ignition(infra_env_id, None, None)).modified is not None
    standalone.faults[Call.IGNITION] = Fault(last_modified=False)
    assert (await assisted.fetch_ignition(infra_env_id, None, None)).modified is None


@ensure_deferred
async def test_status_fields_and_body_are_those_of_the_fault(
    standalone: FaultyStandalone, api: ApiClient
) -> None:
    infra_env_id = await api.register()
    standalone.faults[Call.IGNITION] = Fault(status=503, fields=(("Retry-After", "7"),), body=b"later")
    status, headers, body = await request(standalone, ignition_of(infra_env_id))
    assert (status, headers["Retry-After"], body) == (503, "7", b"later")
    one = f"{INFRA_ENVS}/{infra_env_id}"
    assert (await request(standalone, one))[0] == 200, "other calls go well"
    assert (await request(standalone, f"{one}/downloads/minimal-initrd"))[0] == 204, "same"
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=b"anything")
    status, _, body = await request(standalone, f"{one}/downloads/minimal-initrd")
    assert (status, body) == (200, b"anything")


@ensure_deferred
async def test_delayed_response_is_unchanged(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService
) -> None:
    infra_env_id = await api.register()
    at_once = await assisted.fetch_ignition(infra_env_id, None, None)
    standalone.faults |= dict.fromkeys(Call, Fault(delay_seconds=0.01))
    assert await assisted.fetch_ignition(infra_env_id, None, None) == at_once


@pytest.mark.parametrize("scheme", CredentialScheme)
@ensure_deferred
async def test_credentials_can_be_required(
    standalone: FaultyStandalone, api: ApiClient, assisted: AssistedService, scheme: CredentialScheme
) -> None:
    infra_env_id = await api.register()
    standalone.faults[Call.INFRA_ENV] = Fault(credentials=Credentials(scheme, "right"))
    await assisted.fetch_infra_env(infra_env_id, Credentials(scheme, "right"))
    status, headers, _ = await request(standalone, f"{INFRA_ENVS}/{infra_env_id}")
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
