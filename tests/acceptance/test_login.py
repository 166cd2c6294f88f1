"""The form that asks for the token of the status page, in a browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest
from selenium.webdriver.support.ui import Select

from tests.acceptance.console import TOKEN, Console, running_console
from tests.acceptance.service import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with running_console(tmp_path_factory.mktemp("site")) as opened:
        yield opened


def test_page_asks_for_the_token_and_shows_nothing_before(console: Console) -> None:
    browser = console.browser
    browser.wait_for(browser.find("#login").is_displayed)
    assert browser.driver.switch_to.active_element == browser.find("#login [name=token]")
    assert browser.texts("#summary") == ["sign in to see the state of the service"]
    assert not browser.find("#service").is_displayed()
    browser.check_looks()
    console.sign_in("token-of-somebody-else")
    console.wait_for_text("#login-problem", "the token is missing or wrong")
    assert browser.find("#login [name=token]").get_property("value") == ""
    assert not browser.find("#service").is_displayed()
    assert b"refused a request from 127.0.0.1: its credentials are wrong" in console.site.service.output


def test_session_shows_the_page_until_it_ends(console: Console) -> None:
    browser = console.browser
    console.sign_in(f" {TOKEN} ")
    console.wait_for_text("#summary", "1 of 1 base image is ready")
    assert not browser.find("#login").is_displayed()
    browser.errors()  # the browser logs the status 401
    console.open()
    console.wait_for_text("#summary", "1 of 1 base image is ready")  # the cookie is enough
    kept = "[document.cookie, {...localStorage}, {...sessionStorage}, document.documentElement.outerHTML]"
    *stored, page = cast("list[object]", browser.run(f"return {kept}"))
    assert stored == ["", {}, {}]
    assert TOKEN not in str(page)
    (cookie,) = browser.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], "expiry" in cookie) == (True, "Strict", False)
    status = f"{console.site.admin_url}/api/v1/status"
    fields = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    assert fetch(status, headers=fields).status == 200
    browser.find("#sign-out").click()  # loads the page anew, without the elements that were found before
    browser.wait_for(lambda: browser.run("return document.getElementById('login')?.hidden === false"))
    assert fetch(status, headers=fields).status == 401
    assert TOKEN.encode() not in console.site.service.output
    assert cookie["value"].encode() not in console.site.service.output


def test_page_asks_again_when_its_session_has_ended(console: Console) -> None:
    browser = console.browser
    console.enter()
    browser.driver.delete_all_cookies()
    browser.run("document.dispatchEvent(new Event('changed'))")  # the page asks by itself every 10 s
    browser.wait_for(browser.find("#login").is_displayed)
    assert not browser.find("#service").is_displayed()
    console.sign_in()
    console.wait_for_text("#summary", "1 of 1 base image is ready")


def test_log_level_is_shown_and_changed(console: Console) -> None:
    browser = console.browser
    console.enter()
    level = Select(browser.find("#log-level"))
    browser.wait_for(lambda: level.first_selected_option.text == "info")
    level.select_by_visible_text("debug")
    console.wait_for_text("#log-level-told", "the log has lines of debug and above")
    status = fetch(f"{console.site.admin_url}/api/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})
    assert json.loads(status.body)["log_level"] == "debug"
    console.site.service.wait_for("(sets the log level to debug)")
    browser.check_looks()


def test_documents_are_shown_without_a_token(console: Console) -> None:
    browser = console.browser
    browser.open(f"{console.site.admin_url}/documents#configuration.md")
    console.wait_for_text("#document h4", "ADMIN_LISTEN")
    console.browser.check_looks()
    browser.run("[...document.querySelectorAll('#documents a')].at(-1).click()")
    console.wait_for_text("#document h2", browser.texts("#documents a")[-1])
    browser.open(f"{console.site.admin_url}/documents")
    console.wait_for_text("#document h2", "Status page and API documents")
    assert "![The page" in browser.find("#document").text  # pictures are not in the package
    browser.run("document.querySelector('#document a[href=\"#mounts.md\"]').click()")
    console.wait_for_text("#document h2", "Mounts: the reads of each client")
    assert browser.find("#documents [aria-current=page]").text.startswith("Mounts")
    browser.run("window.fetch = () => Promise.reject(new Error('no answer'))")
    browser.run("document.querySelector('#documents a').click()")
    console.wait_for_text("main > .problem", "alerts.md cannot be shown: no answer")


def test_api_is_shown_for_people(console: Console) -> None:
    browser = console.browser
    console.enter()
    browser.run("document.querySelector('footer a').click()")
    console.wait_for_text("#operations .group", "PUT /api/v1/log-level", "set the lowest level of the log")
    assert browser.driver.current_url == f"{console.site.admin_url}/api"
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    console.wait_for_text("#operations .group", "GET /api/v1/status", "Reply 200: Status", '"verdict"')
    browser.check_looks()
