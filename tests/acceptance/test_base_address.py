"""The address in URLs, which is chosen on the page: in all processes, in images, and after a restart."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.support.ui import Select

from image_service.common.http.default_route import find_default_address
from image_service.common.http.own_addresses import find_own_addresses
from tests.acceptance.console import running_console
from tests.acceptance.service import fetch
from tests.acceptance.test_mounts import CONFIG, VERSION, running_site
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.service import Answer
    from tests.acceptance.test_mounts import Site

pytestmark = pytest.mark.acceptance

EVERYWHERE = {"LISTEN_ADDRESS": "0.0.0.0", "TRUSTED_PROXIES": "127.0.0.1"}  # noqa: S104 - a test's own service
"""The service listens on all addresses; a test names its clients in ``X-Forwarded-For``."""
BEGIN, FURTHER = "bytes=0-65535", "bytes=65536-"


@pytest.fixture
def other_address() -> str:
    """An address of this machine that is not that of its default route."""
    default = find_default_address(socket.AF_INET)
    found = (str(each.address) for each in find_own_addresses(socket.AF_INET) if each.address != default)
    return next(found, None) or pytest.skip("a choice needs two addresses of IPv4")


def choose(site: Site, address: str) -> int:
    url, body = f"{site.admin_url}/api/v1/base-address", json.dumps({"address": address}).encode()
    return fetch(url, "PUT", headers={"Content-Type": "application/json"}, body=body).status


def read(site: Site, path: str, client: str, byte_range: str | None = None) -> Answer:
    fields = {"X-Forwarded-For": client, **({"Range": byte_range} if byte_range else {})}
    return site.service.get_image(path, fields)


@pytest.mark.parametrize("workers", ONE_OR_TWO)
def test_chosen_address_is_in_all_new_images_and_after_a_restart(
    tmp_path: Path, other_address: str, workers: int
) -> None:
    variables = {**EVERYWHERE, "WORKERS": str(workers)}
    with running_site(tmp_path, **variables) as site:
        path = f"/byid/{site.service.register(VERSION, CONFIG)}/{VERSION}/x86_64/minimal.iso"
        first = read(site, path, "192.0.2.1")
        url = f"=http://{other_address}:".encode()
        assert url not in first.body
        begin = read(site, path, "192.0.2.2", BEGIN)
        assert choose(site, "192.0.2.99") == 400
        assert choose(site, other_address) == 204
        new = [read(site, path, "192.0.2.3") for _ in range(10)]  # of each process, probably
        assert {each.headers["ETag"] for each in new} == {new[0].headers["ETag"]} != {first.headers["ETag"]}
        assert url in new[0].body
        assert begin.body + read(site, path, "192.0.2.2", FURTHER).body == first.body
    with running_site(tmp_path, **variables) as site:
        assert url in read(site, path, "192.0.2.4").body
        assert begin.body + read(site, path, "192.0.2.2", FURTHER).body == first.body


def test_address_is_chosen_on_the_page(tmp_path: Path, other_address: str) -> None:
    with running_console(tmp_path, **EVERYWHERE) as console:
        console.enter()
        addresses = Select(console.browser.find("#base-address"))
        console.wait_for_text("#service .facts", "URLs begin with http://")
        addresses.select_by_value(other_address)
        console.wait_for_text("#base-address-told", "URLs and new images have it from now on")
        console.browser.run("document.activeElement.blur()")
        console.wait_for_text("#service .facts", f"URLs begin with http://{other_address}:")
        console.browser.check_looks()
        console.open()
        console.wait_for_text("#service .facts", f"URLs begin with http://{other_address}:")
        console.browser.wait_for(
            lambda: Select(console.browser.find("#base-address")).first_selected_option.text.startswith(
                other_address
            )
        )
