"""The form of a new image in a browser: static networks, tables of machines, sizes and QR codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from tests.acceptance.clients import needs_client
from tests.acceptance.console import HOSTILE, Console, running_console
from tests.acceptance.service import INFRA_ENVS
from tests.acceptance.test_mounts import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

SECRET = "s3cret-of-the-network"
MACS = ("52:54:00:00:00:01", "52:54:00:00:00:02")
STATE = f"interfaces:\n- name: eth0\n  type: ethernet\n  description: {SECRET}\n"
NETWORKS = json.dumps(
    [
        {"network_yaml": STATE, "mac_interface_map": [{"mac_address": mac, "logical_nic_name": "eth0"}]}
        for mac in MACS
    ]
)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with running_console(tmp_path_factory.mktemp("site")) as opened:
        opened.sign_in()
        opened.wait_for_text("#images tbody tr", VERSION)
        yield opened


def write(console: Console, name: str, text: str) -> None:
    """Write a text into a field of the form at once, as pasting does."""
    field = console.browser.find(f"#infra-env-form [name={name}]")
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    console.browser.run(script, field, text)


def open_form(console: Console) -> None:
    console.browser.find("#new-image").send_keys(Keys.ENTER)
    console.browser.wait_for(lambda: VERSION in console.browser.find("#infra-env-form [name=base]").text)


def submit(console: Console, title: str) -> None:
    """Send the form, and wait for its result."""
    console.browser.find("#infra-env-form [type=submit]").send_keys(Keys.ENTER)
    console.wait_for_text("#infra-env-result-title", title)


def rows(console: Console) -> list[str]:
    return console.browser.texts("#infra-env-rows tbody tr")


@pytest.mark.soak  # nmstatectl is a client of `make deps ARGS=soak`
def test_static_networks_are_checked_while_one_types_and_shown_again(console: Console) -> None:
    needs_client("nmstatectl")
    browser = console.browser
    open_form(console)
    write(console, "name", "networks")
    write(console, "networks", f"- {SECRET}\n- [")
    console.wait_for_text("#networks-check", "line 2, column 4 is not YAML")
    write(console, "networks", NETWORKS.replace("52:54", "52-54"))
    console.wait_for_text("#networks-check", "mac_address, such as 52:54:00:12:34:56")
    write(console, "networks", NETWORKS)
    console.wait_for_text("#networks-check", "valid, ", "of at most 512 KiB")
    submit(console, "Images of networks")
    console.wait_for_text("#infra-envs > table tbody tr", "networks", "2 static networks")
    (stored,) = [
        each
        for each in json.loads(console.site.service.ask_api(INFRA_ENVS).body)
        if each["name"] == "networks"
    ]
    assert len(json.loads(stored["static_network_config"])) == len(MACS)
    kept = browser.run(
        "return document.documentElement.outerHTML + document.forms[1].elements.networks.value"
    )
    assert SECRET not in str(kept)
    assert SECRET not in console.site.service.output.decode()
    console.press("Edit networks")
    browser.wait_for(browser.find("#infra-env-form").is_displayed)
    assert not browser.find("#infra-env-many").is_displayed()
    browser.wait_for(lambda: VERSION in browser.find("#infra-env-form [name=base]").text)
    write(console, "hostname", "worker-9")
    submit(console, "Images of networks")
    console.wait_for_text("#infra-envs > table tbody tr", "host name worker-9", "2 static networks")


def test_sizes_and_qr_codes_are_shown(console: Console) -> None:
    browser = console.browser
    open_form(console)
    write(console, "name", "sizes")
    submit(console, "Images of sizes")
    for name in ("ISO", "Kernel", "Initrd", "Root file system"):
        console.wait_for_text("#infra-env-urls .label", f"{name}\n", "iB")
    url = str(browser.find("#infra-env-urls [aria-label=ISO]").get_property("value"))
    answer = console.site.service.get_image(f"/{url.split('/', 3)[3]}", method="HEAD")
    shown = next(each for each in browser.texts("#infra-env-urls .label") if each.startswith("ISO\n"))
    assert shown == f"ISO\n{int(answer.headers['Content-Length']) / 1024**2:.1f} MiB"
    console.press("Short link to ISO")
    browser.wait_for(lambda: browser.texts("#infra-env-urls .made"))
    code = browser.find("[aria-label='QR code of short link to ISO']")
    code.send_keys(Keys.ENTER)
    drawn = "#infra-env-urls svg[role=img]"
    browser.wait_for(lambda: browser.run(f"return document.querySelectorAll('{drawn}').length"))
    size = browser.find(drawn).size
    assert size["width"] == size["height"] >= 150  # a phone reads it from a screen
    assert browser.find(f"{drawn} rect").value_of_css_property("fill") == "rgb(255, 255, 255)"
    browser.check_looks()
    code.send_keys(Keys.ENTER)
    assert browser.run(f"return document.querySelectorAll('{drawn}').length") == 0
    console.press("Check ISO")
    console.wait_for_text(
        "#infra-env-urls .examination", "a machine will not boot", "boot-records: no boot record"
    )
    browser.check_looks()


def test_result_lists_the_chosen_kinds(console: Console) -> None:
    browser = console.browser
    open_form(console)
    write(console, "name", "kinds")
    kinds = ("iso", "minimal", "ipxe", "kernel")
    boxes = [browser.find(f"#infra-env-kinds [value^={kind}]") for kind in kinds]
    assert all(box.is_selected() for box in boxes)
    for box in boxes:
        box.send_keys(Keys.SPACE)
    console.browser.check_looks()
    browser.find("#infra-env-form [type=submit]").send_keys(Keys.ENTER)
    console.wait_for_text("#infra-env-problem", "choose at least one of what the result lists")
    for box in boxes[1:3]:
        box.send_keys(Keys.SPACE)
    submit(console, "Images of kinds")
    shown = [label.split("\n")[0] for label in browser.texts("#infra-env-urls .label")]
    commands = ["Download by curl", "Boot by Redfish"]
    assert shown == ["Minimal ISO", "SHA-256 of the minimal ISO", "iPXE script", *commands]
    open_form(console)
    assert all(box.is_selected() for box in boxes)
    write(console, "table", "name")
    assert not boxes[0].is_displayed()


def test_table_makes_many_images_and_says_what_is_wrong_with_others(console: Console, tmp_path: Path) -> None:
    browser = console.browser
    open_form(console)
    browser.run("document.getElementById('infra-env-many').open = true")
    write(console, "table", "name,colour\n")
    console.wait_for_text("#table-check", "the first line must name columns", "not 'colour'")
    config, broken = tmp_path / "a.ign", tmp_path / "broken.ign"
    config.write_text(json.dumps({"ignition": {"version": "3.2.0"}, "a": SECRET}))
    broken.write_text(f'{{"{SECRET}"')
    hostile = HOSTILE.replace('"', '""')
    lines = [
        "name,ignition,hostname",
        f'"{hostile}",a.ign,worker-1',
        "rack-2,broken.ign,",
        "rack-3,c.ign,",
        "rack-4,,",
    ]
    write(console, "table", "\n".join(lines))
    console.wait_for_text("#table-check", "valid, ")
    browser.find("#infra-env-form [name=table_files]").send_keys(f"{config}\n{broken}")
    write(console, "kernel_arguments", "console=ttyS0")
    submit(console, "2 of 4 images were made")
    found = rows(console)
    assert [row.split()[0] for row in found] == ["2", "3", "4", "5"]
    assert HOSTILE in found[0]
    assert "not made" in found[1]
    assert "it ends too early" in found[1]
    assert "the file 'c.ign' is not among those that were given" in found[2]
    iso = str(browser.find("#infra-env-rows tr:last-child input").get_property("value"))
    assert console.site.service.get_image(f"/{iso.split('/', 3)[3]}", method="HEAD").status == 200
    console.wait_for_text("#infra-envs > table tbody tr", "rack-4", "1 kernel argument")
    browser.check_looks()
    console.check_no_injection()
    assert SECRET not in browser.driver.page_source
    assert SECRET not in console.site.service.output.decode()
