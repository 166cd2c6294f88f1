"""The address in URLs, which is chosen on the page: in all processes, in images, and after a restart."""

from __future__ import annotations

import json
from itertools import count, islice
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.support.ui import Select

from tests.acceptance.console import running_console
from tests.acceptance.service import fetch
from tests.acceptance.tenants import wait_for
from tests.acceptance.test_mounts import CONFIG, VERSION, running_site
from tests.network_namespace import change_network, running_network
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer
    from tests.acceptance.test_mounts import Site

pytestmark = pytest.mark.acceptance

EVERYWHERE = {"LISTEN_ADDRESS": "0.0.0.0", "TRUSTED_PROXIES": "127.0.0.1"}  # noqa: S104 - a test's own service
"""The service listens on all addresses; a test names its clients in ``X-Forwarded-For``."""
DEFAULT, OTHER = "192.0.2.7", "198.51.100.7"
BEGIN, FURTHER = "bytes=0-65535", "bytes=65536-"


@pytest.fixture
def network() -> Iterator[str]:
    """The name of a network namespace with two addresses, which this thread and its services are in."""
    with running_network(DEFAULT, OTHER) as name:
        yield name


def choose(site: Site, address: str) -> int:
    url, body = f"{site.admin_url}/api/v1/base-address", json.dumps({"address": address}).encode()
    return fetch(url, "PUT", headers={"Content-Type": "application/json"}, body=body).status


def post(site: Site, api: str, url: str) -> int:
    body, fields = json.dumps({"url": url}).encode(), {"Content-Type": "application/json"}
    return fetch(f"{site.admin_url}/api/v1/{api}", "POST", headers=fields, body=body).status


def read(site: Site, path: str, client: str, byte_range: str | None = None) -> Answer:
    fields = {"X-Forwarded-For": client, **({"Range": byte_range} if byte_range else {})}
    return site.service.get_image(path, fields)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("workers", ONE_OR_TWO)
def test_chosen_address_is_in_all_new_images_and_after_a_restart(tmp_path: Path, workers: int) -> None:
    variables = {**EVERYWHERE, "WORKERS": str(workers)}
    with running_site(tmp_path, **variables) as site:
        path = f"/byid/{site.service.register(VERSION, CONFIG)}/{VERSION}/x86_64/minimal.iso"
        first = read(site, path, "192.0.2.1")
        url = f"=http://{OTHER}:".encode()
        assert url not in first.body
        begin = read(site, path, "192.0.2.2", BEGIN)
        assert choose(site, "192.0.2.99") == 400
        assert choose(site, OTHER) == 204
        new = [read(site, path, "192.0.2.3") for _ in range(10)]  # of each process, probably
        assert {each.headers["ETag"] for each in new} == {new[0].headers["ETag"]} != {first.headers["ETag"]}
        assert url in new[0].body
        assert begin.body + read(site, path, "192.0.2.2", FURTHER).body == first.body
    with running_site(tmp_path, **variables) as site:
        assert url in read(site, path, "192.0.2.4").body
        assert begin.body + read(site, path, "192.0.2.2", FURTHER).body == first.body


def test_chosen_address_that_returns_is_used_by_each_process(tmp_path: Path, network: str) -> None:
    variables = {**EVERYWHERE, "WORKERS": "2"}
    with running_site(tmp_path, **variables) as site:
        infra_env = site.service.register(VERSION, CONFIG)
        assert choose(site, OTHER) == 204
    change_network(network, f"address delete {OTHER}/32 dev lo")
    with running_site(tmp_path, **variables) as site:
        site.service.wait_for(f"({OTHER}), which was chosen for URLs, is not an address of this machine now")
        path = f"/byid/{infra_env}/{VERSION}/x86_64/minimal.iso"
        assert f"=http://{DEFAULT}:".encode() in read(site, path, "192.0.2.1").body
        change_network(network, f"address add {OTHER}/32 dev lo")
        clients = (f"198.18.0.{number}" for number in count(1))
        url = f"=http://{OTHER}:".encode()
        wait_for(lambda: all(url in read(site, path, client).body for client in islice(clients, 10)))


@pytest.mark.usefixtures("network")
def test_urls_of_the_former_address_are_checked_and_linked(tmp_path: Path) -> None:
    with running_site(tmp_path, **EVERYWHERE) as site:
        port = site.service.url.rpartition(":")[2]
        path = f"/byid/{site.service.register(VERSION, CONFIG)}/{VERSION}/x86_64/full.iso"
        assert choose(site, OTHER) == 204
        for api, status in (("links", 201), ("examinations", 200)):
            for host, expected in ((DEFAULT, status), (OTHER, status), ("192.0.2.99", 400)):
                assert post(site, api, f"http://{host}:{port}{path}") == expected, (api, host)


@pytest.mark.usefixtures("network")
def test_address_is_chosen_on_the_page(tmp_path: Path) -> None:
    with running_console(tmp_path, **EVERYWHERE) as console:
        console.enter()
        addresses = Select(console.browser.find("#base-address"))
        console.wait_for_text("#service .facts", "URLs begin with http://")
        addresses.select_by_value(OTHER)
        console.wait_for_text("#base-address-told", "URLs and new images have it from now on")
        console.browser.run("document.activeElement.blur()")
        console.wait_for_text("#service .facts", f"URLs begin with http://{OTHER}:")
        console.browser.check_looks()
        console.open()
        console.wait_for_text("#service .facts", f"URLs begin with http://{OTHER}:")
        console.browser.wait_for(
            lambda: Select(console.browser.find("#base-address")).first_selected_option.text.startswith(OTHER)
        )
