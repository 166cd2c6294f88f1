from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from image_service.core.errors import ConfigurationError, UpstreamError
from image_service.server.assisted.client import AssistedService
from image_service.server.standalone.service import SAMPLE_ID, Standalone
from image_service.settings.parsers import ListenAddress
from tests.pytwisted import ensure_deferred
from tests.server.standalone.faults import Break, Call, Fault, FaultyStandalone
from tests.server.standalone.running import INFRA_ENVS, LOOPBACK, ApiClient, running
from tests.server.transport.reactor_turns import turns, until

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor


@ensure_deferred
async def test_restart_keeps_infra_envs_and_authority(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(reactor, tmp_path) as first:
        infra_env_id = await ApiClient(reactor, first.api_url).register(name="kept")
        trusted = first.ca_file.read_bytes()
    async with running(reactor, tmp_path) as second:
        shown = await ApiClient(reactor, second.api_url)("GET", f"{INFRA_ENVS}/{infra_env_id}")
        assert shown.document["name"] == "kept"
        assert second.ca_file.read_bytes() == trusted


@ensure_deferred
async def test_data_directory_is_private(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(reactor, tmp_path / "data"):
        assert (tmp_path / "data" / "standalone").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 - to be refused
def test_listener_beyond_loopback_requires_a_token(reactor: EPollReactor, tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="STANDALONE_TOKEN"):
        Standalone(reactor, tmp_path, ListenAddress(host, 0), None, str)


@ensure_deferred
async def test_listener_with_a_token_accepts_any_host(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(reactor, tmp_path, ListenAddress("0.0.0.0", 0), "t0ken") as standalone:  # noqa: S104 - briefly
        port = standalone.api_url.rpartition(":")[2]
        api = ApiClient(reactor, f"http://127.0.0.1:{port}")
        reply = await api("GET", INFRA_ENVS, Host="images.example.com", Authorization="Bearer t0ken")
        assert reply.status == 200


@ensure_deferred
async def test_api_listens_on_ipv6(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(reactor, tmp_path, ListenAddress("::1", 0)) as standalone:
        assert standalone.api_url.startswith("http://[::1]:")
        assert await deferToThread(_status, standalone.api_url + INFRA_ENVS) == 200


def _status(url: str) -> int:
    with urllib.request.urlopen(url) as reply:  # noqa: S310 - http; treq takes no IPv6 address
        return int(reply.status)


@ensure_deferred
async def test_occupied_port_is_an_error_and_leaves_no_listener(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        standalone = Standalone(
            reactor, tmp_path, ListenAddress("127.0.0.1", taken.getsockname()[1]), None, str
        )
        with pytest.raises(ConfigurationError, match="STANDALONE_LISTEN"):
            await standalone.start()


@ensure_deferred
async def test_stop_does_not_wait_for_clients(reactor: EPollReactor, tmp_path: Path) -> None:
    standalone = FaultyStandalone(reactor, tmp_path, LOOPBACK, None, str)
    await standalone.start()
    standalone.faults[Call.INFRA_ENV] = Fault(broken=Break.HANG)
    assisted = AssistedService(reactor, standalone.base_url, ca_file=standalone.ca_file)
    asked = Deferred.fromCoroutine(assisted.fetch_infra_env(SAMPLE_ID, None))
    while not standalone.calls[SAMPLE_ID, Call.INFRA_ENV]:
        await deferLater(reactor, 0.005)
    await standalone.stop()
    with pytest.raises(UpstreamError):
        await asked
    await assisted.close()


@ensure_deferred
async def test_stop_is_idempotent_and_allowed_before_start(reactor: EPollReactor, tmp_path: Path) -> None:
    standalone = Standalone(reactor, tmp_path, LOOPBACK, None, str)
    await standalone.stop()
    await standalone.start()
    await standalone.stop()
    await standalone.stop()


@ensure_deferred
async def test_start_and_stop_leak_no_descriptor(reactor: EPollReactor, tmp_path: Path) -> None:
    async def start_and_stop() -> None:
        async with running(reactor, tmp_path) as standalone:
            await ApiClient(reactor, standalone.api_url)("GET", INFRA_ENVS)
        await turns(reactor)

    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    await start_and_stop()
    before, times = count(), 3
    for _ in range(times):
        await start_and_stop()
    # Fewer than one for each start: what an earlier test has left may connect meanwhile.
    await until(reactor, lambda: count() < before + times)


# The sample.


@ensure_deferred
async def test_first_start_registers_the_sample(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(reactor, tmp_path) as standalone:
        assert await standalone.ensure_sample("4.20", "aarch64") == SAMPLE_ID
        api = ApiClient(reactor, standalone.api_url)
        shown = (await api("GET", f"{INFRA_ENVS}/{SAMPLE_ID}")).document
        assert (shown["openshift_version"], shown["cpu_architecture"]) == ("4.20", "aarch64")
        await api("PATCH", f"{INFRA_ENVS}/{SAMPLE_ID}", {"name": "mine"})
    async with running(reactor, tmp_path) as standalone:
        assert await standalone.ensure_sample("4.21") == SAMPLE_ID
        (shown,) = (await ApiClient(reactor, standalone.api_url)("GET", INFRA_ENVS)).document
        assert (shown["name"], shown["openshift_version"]) == ("mine", "4.20")


@ensure_deferred
async def test_removed_sample_is_not_registered_again(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(reactor, tmp_path) as standalone:
        api = ApiClient(reactor, standalone.api_url)
        await api.register()
        assert await standalone.ensure_sample("4.20") is None
        assert len((await api("GET", INFRA_ENVS)).document) == 1
