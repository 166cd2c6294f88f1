"""The status page of a running service, in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
from itertools import product
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from axe_core_python.selenium import Axe
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.acceptance.browser import LOOKS, WIDTHS, Browser, running_browser
from tests.acceptance.service import ONE_ATTEMPT, SERVE, fetch, os_image, run_service
from tests.acceptance.test_families import DEBIAN, make_iso
from tests.acceptance.test_mounts import CONFIG, VERSION, Site, opened, running_site
from tests.ports import free_port
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.acceptance

ALL_LOOKS = tuple(product(WIDTHS, ("light", "dark")))
STALL_SECONDS = 2
HOSTILE = "<img src=x onerror=document.title='no'>\"'&{{7*7}}"
NAME = "rack 1 <b>&amp;</b>"
TOKEN = "token-of-the-operator"
PERMISSIONS = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}


@attrs.frozen
class Page:
    """The status page of a service, and the service."""

    site: Site
    browser: Browser
    os_images: Path
    infra_env: str

    def image_url(self, file: str) -> str:
        """Return the URL of an image."""
        return f"{self.site.service.url}/byid/{self.infra_env}/{VERSION}/x86_64/{file}"

    def rows(self, section: str) -> list[str]:
        """Return the texts of a table's rows."""
        return self.browser.texts(f"#{section} tbody tr")

    def wait_for_row(self, section: str, *texts: str) -> None:
        """Wait for a row with all of the texts."""
        self.browser.wait_for(lambda: any(all(text in row for text in texts) for row in self.rows(section)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Open the page."""
    directory = tmp_path_factory.mktemp("site")
    os_images = directory / "images.json"
    os_images.write_text(json.dumps([os_image(directory / "live.iso", VERSION)]))
    variables = {
        "OS_IMAGES": f"@{os_images}",
        "MOUNT_STALL_SECONDS": str(STALL_SECONDS),
        **ONE_ATTEMPT,  # a test has an image tried again at once
        "TRUSTED_PROXIES": "127.0.0.1",
    }
    profile = tmp_path_factory.mktemp("profile")
    with running_site(directory, **variables) as site, running_browser(profile) as browser:
        infra_env = site.service.register(VERSION, CONFIG, name=NAME)
        opened_page = Page(site, browser, os_images, infra_env)
        browser.show_as(1600)
        browser.open(f"{site.admin_url}/")
        opened_page.wait_for_row("images", VERSION, "degraded")  # its root file system is none
        yield opened_page
        assert browser.errors() == []


def test_state_of_the_service_is_shown(page: Page) -> None:
    assert "1 of 1 base image is ready" in page.browser.find("#summary").text
    (facts,) = page.browser.texts("#service dl")
    served = f"URLs begin with {page.site.service.url.replace('127.0.0.1', 'localhost')}"
    for text in ("standalone", served, "LISTEN_ADDRESS=0.0.0.0 serves others", "serving processes: 1"):
        assert text in facts


def test_facts_name_the_setting_that_decides_the_address(page: Page) -> None:
    shown = page.browser.run("""
        const { service } = await import(new URL("static/sections.js", location));
        const status = await (await fetch("api/v1/status")).json();
        const elsewhere = "http://images.example.com";
        const setting = "IMAGE_SERVICE_BASE_URL";
        const choice = document.getElementById("base-address-choice");
        return [[status.base_url, setting], [elsewhere, setting], [elsewhere, null]].map(([url, decides]) => {
          const address = { ...status.base_address, decided_by: decides };
          service.draw({ ...status, standalone: false, base_address: address, base_url: url });
          return [document.querySelector("#service dl").textContent, choice.checkVisibility()];
        });
    """)
    own, decided, free = cast("list[tuple[str, bool]]", shown)
    assert "only this machine reaches: IMAGE_SERVICE_BASE_URL chooses another address" in own[0]
    assert "IMAGE_SERVICE_BASE_URL decides that" in decided[0]
    assert [own[1], decided[1], free[1]] == [False, False, True]


def test_replica_that_is_away_is_shown(page: Page) -> None:
    shown = page.browser.run("""
        const { service } = await import(new URL("static/sections.js", location));
        const status = await (await fetch("api/v1/status")).json();
        const own = { host: "a", state: "present", is_own: true, machines: 1, connections: 2 };
        const away = { ...own, host: "b", state: "away", is_own: false, age_seconds: 40 };
        service.draw({ ...status, verdict: { level: "impaired", text: "b is away" }, replicas: [own, away] });
        const [summary, facts] = document.querySelectorAll("#summary, #service dl");
        return [summary.className, summary.textContent, facts.textContent];
    """)
    level, verdict, facts = cast("list[str]", shown)
    assert (level, verdict) == ("warning", "b is away")
    assert "a (this page)" in facts
    assert "away for 40 s" in facts


def test_last_hour_is_shown(page: Page) -> None:
    fetch(page.image_url("full.iso"))
    page.browser.wait_for(lambda: re.search(r"[1-9]\d* request", page.browser.texts("#activity dl")[0]))
    page.browser.wait_for(lambda: "1 at a time at most" in page.browser.texts("#activity dl")[0])
    (shown,) = page.browser.texts("#activity dl")
    assert re.search(r"Sent\n\d[\d.]* [KM]iB", shown)
    assert len(page.browser.driver.find_elements("css selector", "#activity svg[role=img]")) == 3


def test_mount_advances_to_its_end(page: Page) -> None:
    with opened(page.site, page.infra_env, "minimal.iso") as medium:
        medium.read(32768)
        page.wait_for_row("mounts", "qemu", "127.0.0.1", "probed", "in this step for ")
        medium.read_file("images/pxeboot/vmlinuz")
        page.wait_for_row("mounts", "qemu", "kernel, stalled for ")
        medium.read_file("images/pxeboot/initrd.img")
        ignition = medium.find("images/ignition.img")
        medium.read(ignition.offset, ignition.length)
        page.wait_for_row("mounts", "qemu", "ignition, quiet for ")
    steps = page.browser.texts("#mounts .steps li")
    assert steps[:6] == ["probed", "firmware", "boot loader", "kernel", "initrd", "ignition"]
    assert "ignition" in page.browser.texts("#mounts .steps [aria-current=step]")
    labels = "[...document.querySelectorAll('#mounts [aria-label]')].map((each) => each.ariaLabel)"
    shown = str(page.browser.run(f"return {labels}"))
    assert re.search("boot stage: ignition, quiet for .*, 6 of 6", shown)
    assert re.search("rate of the last 5 min: .*/s now, .*/s at most", shown)


def test_machines_are_in_the_group_of_their_infra_env(page: Page) -> None:
    browser, name = page.browser, "rack 2"
    infra_env = page.site.service.register(VERSION, CONFIG, name=name)
    for path, address in (
        (f"/byid/{infra_env}/{VERSION}/x86_64/full.iso", "192.0.2.1"),
        (f"/byid/{infra_env}/{VERSION}/x86_64/minimal.iso", "192.0.2.2"),
        (f"/boot-artifacts/{VERSION}/x86_64/vmlinuz", "192.0.2.2"),
        (f"/boot-artifacts/{VERSION}/x86_64/vmlinuz", "192.0.2.3"),
        (page.image_url("full.iso").removeprefix(page.site.service.url), "192.0.2.1"),
    ):
        assert page.site.service.get_image(path, {"X-Forwarded-For": address}).status == 200
    page.wait_for_row("mounts", "192.0.2.3")

    def groups() -> list[tuple[str, int]]:
        found = browser.run(
            "return [...document.querySelectorAll('#mounts .group')]"
            ".map((each) => [each.querySelector('h3').innerText, each.querySelectorAll('tbody tr').length])"
        )
        return [tuple(each) for each in found]  # type: ignore[attr-defined]

    browser.wait_for(lambda: any(title.startswith(NAME) for title, _ in groups()))
    (second,) = [each for each in groups() if each[0].startswith(name)]
    assert second == (f"{name} 3 done\n{infra_env}", 3)  # with the kernel of a machine of this infra-env
    assert [rows for title, rows in groups() if title.startswith("Boot artifacts")] == [1]
    browser.run(
        "[...document.querySelectorAll('#mounts h3 a')].find((each) => each.text == arguments[0]).click()",
        name,
    )
    browser.wait_for(lambda: [title.split("\n")[-1] for title, _ in groups()] == [infra_env])
    url = browser.driver.current_url
    assert url.endswith(f"#mounts/{infra_env}")
    assert browser.find("#mounts-chosen").text == f"Only {name}. Show all machines"
    browser.open("about:blank")
    browser.open(url)
    page.wait_for_row("mounts", "192.0.2.2")
    assert [title.split("\n")[-1] for title, _ in groups()] == [infra_env]
    browser.find("#mounts-chosen a").send_keys(Keys.ENTER)
    browser.wait_for(lambda: len(groups()) > 1)
    assert not browser.find("#mounts-chosen").is_displayed()


def test_browser_notifies_of_a_machine_that_is_done_while_that_is_wanted(page: Page) -> None:
    browser = page.browser
    browser.run(
        "window.shown = []; window.Notification = class {"
        " static requestPermission = async () => window.permission;"
        " constructor(title, { body }) { window.shown.push([title, body]); } }"
    )

    def download(address: str) -> None:
        path = page.image_url("full.iso").removeprefix(page.site.service.url)
        page.site.service.get_image(path, {"X-Forwarded-For": address, "User-Agent": "curl/8"})
        page.wait_for_row("mounts", address, "done")

    download("192.0.2.51")
    notify = browser.find("#notify")
    browser.run("window.permission = 'denied'")
    notify.send_keys(Keys.SPACE)
    browser.wait_for(lambda: "does not permit" in browser.find("#notify-told").text)
    assert not notify.is_selected()
    browser.run("window.permission = 'granted'")
    notify.send_keys(Keys.SPACE)
    browser.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    download("192.0.2.52")
    browser.run("delete document.hidden")
    browser.wait_for(lambda: browser.run("return window.shown.length"))
    assert browser.run("return window.shown") == [[f"{NAME}: done", "192.0.2.52 (curl)"]]
    notify.send_keys(Keys.SPACE)


def test_filter_finds_a_mount(page: Page) -> None:
    agent = "iPXE/1.21 <script>document.title = 'no'</script>"
    fetch(page.image_url("full.iso"), headers={"User-Agent": agent})
    page.wait_for_row("mounts", "done", agent)  # text of clients stays text
    page.browser.find("#mounts-filter").send_keys("ipxe")
    page.browser.wait_for(lambda: len(page.rows("mounts")) == 1)
    page.browser.find("#mounts-filter").send_keys(Keys.BACKSPACE * 4)
    page.browser.wait_for(lambda: len(page.rows("mounts")) > 1)


def test_failure_is_shown_without_its_secret(page: Page) -> None:
    secret = "s3cr3t-of-the-client"
    agent = f"iDRAC/9 {HOSTILE}"
    for _ in range(2):
        fetch(f"{page.site.service.url}/bytoken/{secret}/9.9/x86_64/full.iso")
    problem = fetch(page.image_url("full.iso").replace(VERSION, "9.9"), headers={"User-Agent": agent})
    group = next_group(page, "base-image-unknown", "Add the version to OS_IMAGES")
    assert "1 since the start of the service" in group
    group = next_group(page, "not-found", "2 since the start of the service")
    for summary in page.browser.driver.find_elements("css selector", "#failures summary"):
        summary.send_keys(Keys.ENTER)
    page.wait_for_row("failures", "404", "127.0.0.1", "/bytoken/***/9.9/x86_64/full.iso")
    page.wait_for_row("failures", "iDRAC/9", HOSTILE, json.loads(problem.body)["id"])
    assert page.browser.run("return document.title") == "image-service"
    assert secret not in page.browser.driver.page_source


def next_group(page: Page, *texts: str) -> str:
    """Wait for a group of failures with all of the texts, and return its text."""

    def found() -> list[str]:
        groups = page.browser.texts("#failures .group")
        return [group for group in groups if all(text in group for text in texts)]

    page.browser.wait_for(found)
    return found()[0]


def test_image_appears_after_a_reload(page: Page) -> None:
    images = json.loads(page.os_images.read_text())
    images.append({**images[0], "version": "4.21", "openshift_version": "4.21", "url": "file:///absent.iso"})
    page.os_images.write_text(json.dumps(images))
    page.site.service.process.send_signal(signal.SIGHUP)
    page.wait_for_row("images", "4.21", "failed for ", "next attempt")


def test_failed_image_is_tried_again_at_once(page: Page, tmp_path: Path) -> None:
    browser, file = page.browser, tmp_path / "late.iso"
    images = json.loads(page.os_images.read_text())
    late = {**images[0], "version": "4.22", "openshift_version": "4.22", "url": file.as_uri()}
    page.os_images.write_text(json.dumps([*images, late]))
    page.site.service.process.send_signal(signal.SIGHUP)
    page.wait_for_row("images", "4.22", "failed for ")
    iso = (page.os_images.parent / "live.iso").read_bytes()
    file.write_bytes(iso)
    browser.find("[aria-label='Try again now: 4.22 x86_64']").send_keys(Keys.ENTER)
    page.wait_for_row("images", "4.22", "degraded for ", "0 clients")
    browser.wait_for(lambda: browser.find("#images-told").text == "4.22 x86_64: the next attempt has begun")
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", PERMISSIONS)
    copy = browser.find("[aria-label='Copy SHA-256 of 4.22 x86_64']")
    copy.send_keys(Keys.ENTER)
    browser.wait_for(lambda: browser.find("#images-told").text == "SHA-256 of 4.22 x86_64: copied")
    copied = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == hashlib.sha256(iso).hexdigest()
    assert browser.driver.switch_to.active_element == copy
    assert page.browser.errors() == []


@pytest.mark.parametrize("width", [WIDTHS[0], *map(soaked, WIDTHS[1:])])
def test_link_is_made_copied_and_revoked_by_keyboard(page: Page, width: int) -> None:
    browser, label = page.browser, f"rack {width}"
    browser.show_as(width)
    browser.find("#link-form [name=url]").send_keys(
        page.image_url("minimal.iso"), Keys.TAB, label, Keys.TAB, Keys.TAB, Keys.SPACE, Keys.ENTER
    )
    browser.wait_for(lambda: browser.find("#link-made").is_displayed())
    url = str(browser.find("#link-url").get_property("value"))
    assert fetch(url, "HEAD").status == 200
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", PERMISSIONS)
    browser.driver.switch_to.active_element.send_keys(Keys.TAB, Keys.ENTER)
    browser.wait_for(lambda: browser.find("#link-copied").text == "copied")
    assert browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == url
    page.wait_for_row("links", label, f"minimal-iso of {NAME}", VERSION, "pinned", "in ", " ago")
    browser.find(f"[aria-label='Revoke {label}']").send_keys(Keys.ENTER)
    browser.driver.switch_to.alert.accept()
    browser.wait_for(lambda: not any(label in row for row in page.rows("links")))
    assert fetch(url, "HEAD").status in {404, 410}
    browser.run("document.getElementById('link-made').hidden = true")


def test_link_that_cannot_be_made_is_explained(page: Page) -> None:
    page.browser.find("#link-form [name=url]").send_keys("http://elsewhere.example.com/x.iso", Keys.ENTER)
    problem = page.browser.find("#link-problem")
    page.browser.wait_for(problem.is_displayed)
    assert "url" in problem.text
    assert page.browser.errors()  # the browser logs the status 400
    page.browser.run("document.getElementById('link-form').reset()")


SECRET = "s3cret-of-the-config"
KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode()


def fill(page: Page, **fields: str) -> None:
    """Write texts into the open form of an infra-env."""
    for name, text in fields.items():
        field = page.browser.find(f"#infra-env-form [name={name}]")
        field.clear()
        field.send_keys(text)


def press(page: Page, label: str) -> None:
    """Press a button of an infra-env's row."""
    page.browser.run("arguments[0].click()", page.browser.find(f"[aria-label={json.dumps(label)}]"))


def open_form(page: Page) -> None:
    """Open the form of a new image, with base images to choose from."""
    page.browser.wait_for(page.browser.find("#new-image").is_displayed)
    page.browser.find("#new-image").send_keys(Keys.ENTER)
    page.browser.wait_for(lambda: VERSION in page.browser.find("#infra-env-form [name=base]").text)


def submitted(page: Page, title: str) -> dict[str, str]:
    """Send the form; return the URLs of the result by their names."""
    page.browser.find("#infra-env-form [type=submit]").send_keys(Keys.ENTER)
    shown = page.browser.find("#infra-env-result-title")
    page.browser.wait_for(lambda: shown.is_displayed() and shown.text == title)
    script = (
        "return [...document.querySelectorAll('#infra-env-urls input')].map((e) => [e.ariaLabel, e.value])"
    )
    return dict(page.browser.run(script))  # type: ignore[call-overload, no-any-return]


def stored_config(page: Page, iso_url: str) -> dict[str, object]:
    """Return the Ignition config of the infra-env of an ISO's URL."""
    config: dict[str, object] = json.loads(page.site.service.ignition_config(iso_url.split("/")[4]))
    return config


def test_image_is_made_changed_copied_and_deleted(page: Page) -> None:
    browser = page.browser
    browser.show_as(1280)
    open_form(page)
    config = json.dumps({"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": f"/{SECRET}"}]}})
    fill(page, name="lab", hostname="worker-1", ssh_keys=KEY, kernel_arguments="console=ttyS0")
    fill(page, config="variant: fcos")
    check = browser.find("#config-check")
    browser.wait_for(lambda: "utane" in check.text)  # it is not installed, or says what is absent
    assert browser.find("#config-language").text == "Butane config"
    fill(page, config='{"ignition":\n}')
    browser.wait_for(lambda: "line 2, column 1" in check.text)
    fill(page, config=config)
    browser.wait_for(lambda: check.text.startswith("valid, ") and "of at most 64.0 MiB" in check.text)
    urls = submitted(page, "Images of lab")
    assert browser.find("#infra-env-urls .examination").value_of_css_property("display") != "none"
    assert urls["Download by curl"] == f"curl -fo full.iso '{urls['ISO']}'"
    for name in ("ISO", "SHA-256 of the ISO", "Minimal ISO", "iPXE script", "Kernel", "Initrd"):
        assert page.site.service.get_image(f"/{urls[name].split('/', 3)[3]}", method="HEAD").status == 200, (
            name
        )
    stored = stored_config(page, urls["ISO"])
    assert SECRET in str(stored)
    assert "data:,worker-1" in str(stored)
    assert KEY in str(stored)
    page.wait_for_row("infra-envs", "lab", "config, 1 SSH key, host name worker-1, 1 kernel argument")
    kept = browser.run(
        "return document.documentElement.outerHTML + JSON.stringify([{...localStorage}, {...sessionStorage}])"
        " + [...document.querySelectorAll('input,textarea')].map((each) => each.value).join()"
    )
    assert SECRET not in str(kept)
    assert SECRET not in page.site.service.output.decode()

    press(page, "Short link to ISO")
    browser.wait_for(lambda: browser.texts("#infra-env-urls .made"))
    link = browser.find("#infra-env-urls .made input").get_property("value")
    assert fetch(str(link), "HEAD").status == 200

    press(page, "Edit lab")
    browser.wait_for(lambda: VERSION in browser.find("#infra-env-form [name=base]").text)
    assert browser.find("#infra-env-form [name=config]").get_property("value") == ""
    fill(page, hostname="worker-2")
    urls = submitted(page, "Images of lab")
    assert SECRET in str(stored_config(page, urls["ISO"]))  # unchanged
    assert "data:,worker-2" in str(stored_config(page, urls["ISO"]))
    press(page, "Edit lab")
    browser.wait_for(lambda: VERSION in browser.find("#infra-env-form [name=base]").text)
    browser.find("#infra-env-form [name=clear]").send_keys(Keys.SPACE)
    urls = submitted(page, "Images of lab")
    assert SECRET not in str(stored_config(page, urls["ISO"]))

    press(page, "Copy lab")
    page.wait_for_row("infra-envs", "Copy of lab", "host name worker-2")
    press(page, "Delete Copy of lab")
    assert "Delete Copy of lab?" in browser.driver.switch_to.alert.text
    browser.driver.switch_to.alert.dismiss()
    page.wait_for_row("infra-envs", "Copy of lab")
    press(page, "Delete Copy of lab")
    browser.driver.switch_to.alert.accept()
    browser.wait_for(lambda: not any("Copy of lab" in row for row in page.rows("infra-envs")))


@pytest.mark.parametrize("width", [360, soaked(1280)])
def test_hostile_strings_stay_text_and_the_form_fits(page: Page, width: int) -> None:
    browser, name = page.browser, f"{width} {HOSTILE}"
    browser.show_as(width)
    open_form(page)
    fill(page, name=name, kernel_arguments=f"a={HOSTILE.replace(' ', '')}")
    assert browser.needs_no_scroll_bar()
    violations = Axe().run(browser.driver, options={"runOnly": ["wcag2a", "wcag2aa"]})["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == []
    fill(page, kernel_arguments="a=1")
    submitted(page, f"Images of {name}")
    page.wait_for_row("infra-envs", name)
    assert browser.needs_no_scroll_bar()
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    assert browser.run("return document.title") == "image-service"


def test_refused_image_keeps_the_form_and_says_why(page: Page) -> None:
    open_form(page)
    fill(page, name="refused", config=f'{{"{SECRET}"')
    page.browser.find("#infra-env-form [type=submit]").send_keys(Keys.ENTER)
    problem = page.browser.find("#infra-env-problem")
    page.browser.wait_for(problem.is_displayed)
    assert "is not JSON" in problem.text
    assert SECRET not in problem.text + page.site.service.output.decode()
    assert page.browser.errors()  # the browser logs the status 400
    page.browser.find("#infra-env-cancel").send_keys(Keys.ENTER)
    assert page.browser.find("#infra-env-form [name=config]").get_property("value") == ""


def test_form_asks_for_the_config_of_the_base_images_family(page: Page, tmp_path: Path) -> None:
    images = json.loads(page.os_images.read_text())
    page.os_images.write_text(json.dumps([*images, os_image(make_iso(tmp_path, DEBIAN), DEBIAN)]))
    page.site.service.process.send_signal(signal.SIGHUP)
    browser = page.browser
    browser.open(f"{page.site.admin_url}/")
    page.wait_for_row("images", DEBIAN, "ready")
    open_form(page)
    Select(browser.find("#infra-env-form [name=base]")).select_by_visible_text(f"{DEBIAN} x86_64")
    fill(page, name="preseeded", config=f"d-i a/b strng {SECRET}")
    check = browser.find("#config-check")
    browser.wait_for(lambda: "line 1, column 9 of the preseed file" in check.text)
    assert browser.find("#config-language").text == "Preseed file"
    fill(page, config=f"d-i a/b string {SECRET}")
    browser.wait_for(lambda: check.text.startswith("valid, "))
    urls = submitted(page, "Images of preseeded")
    assert page.site.service.get_image(f"/{urls['ISO'].split('/', 3)[3]}", method="HEAD").status == 200
    assert SECRET not in page.site.service.output.decode()


def test_first_tab_stop_skips_to_the_machines(page: Page) -> None:
    page.browser.open(f"{page.site.admin_url}/")
    page.browser.find("body").send_keys(Keys.TAB)
    link = page.browser.driver.switch_to.active_element
    assert (link.text, link.is_displayed()) == ("Skip to the machines", True)
    link.send_keys(Keys.ENTER)
    assert page.browser.driver.current_url.endswith("#mounts")


@pytest.mark.parametrize("looks", [pytest.param(LOOKS, id="extremes"), soaked(ALL_LOOKS, id="all")])
def test_page_fits_its_width_and_suits_assistive_technology(
    page: Page, looks: Sequence[tuple[int, str]]
) -> None:
    fetch(page.image_url("full.iso"))
    fetch(f"{page.site.service.url}/nowhere")
    page.browser.wait_for(lambda: page.rows("mounts") and page.rows("failures"))
    page.browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.browser.check_looks(looks)


def test_outage_is_shown_until_it_ends(page: Page) -> None:
    page.browser.driver.execute_cdp_cmd("Network.enable", {})
    reload = "document.dispatchEvent(new Event('changed'))"  # the page does so by itself every 10 s
    outage = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", outage)
    page.browser.run(reload)
    problem = page.browser.find("#mounts > .problem")
    page.browser.wait_for(problem.is_displayed)
    assert problem.text == "api/v1/mounts: the service does not respond"
    assert page.rows("mounts")  # the rows stay
    page.browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**outage, "offline": False})
    page.browser.run(reload)
    page.browser.wait_for(lambda: not problem.is_displayed())
    page.browser.errors()  # the browser logs requests that failed


def test_page_needs_a_token_where_the_stand_in_needs_one(page: Page, tmp_path: Path) -> None:
    port = free_port()
    variables = {"ADMIN_LISTEN": f"127.0.0.1:{port}", "STANDALONE_TOKEN": TOKEN}
    with run_service(tmp_path, [], command=(*SERVE, "--standalone"), environment=variables):
        page.browser.open(f"http://127.0.0.1:{port}/")
        place = page.browser.find("#infra-envs-elsewhere")
        page.browser.wait_for(lambda: "ADMIN_TOKEN_FILE" in place.text)
        assert not page.browser.find("#new-image").is_displayed()
        made = fetch(
            f"http://127.0.0.1:{port}/api/v1/infra-envs",
            "POST",
            headers={"Content-Type": "application/json"},
            body=b'{"name": "a", "openshift_version": "4.20"}',
        )
        assert made.status == 405
        page.browser.open("about:blank")


def test_page_for_browsers_shows_its_style(page: Page) -> None:
    page.browser.open(f"{page.site.service.url}/")
    assert page.browser.find("h1").text == "image-service"
    assert page.browser.find("body").value_of_css_property("max-width") == "672px"
    assert Axe().run(page.browser.driver)["violations"] == []
