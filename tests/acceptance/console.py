"""The status page of a service that needs a token, in a browser: for all tests of a module."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
from selenium.webdriver.common.keys import Keys

from tests.acceptance.browser import Browser, running_browser
from tests.acceptance.test_mounts import Site, running_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "token-of-the-operator"
HOSTILE = "<img src=x onerror=document.title='no'>\"'&{{7*7}}"


@attrs.frozen
class Console:
    """The page, and the service."""

    site: Site
    browser: Browser

    def open(self) -> None:
        """Load the page."""
        self.browser.open(f"{self.site.admin_url}/")

    def sign_in(self, token: str = TOKEN) -> None:
        """Write a token into the form, and send it."""
        field = self.browser.find("#login [name=token]")
        self.browser.wait_for(field.is_displayed)
        field.send_keys(token, Keys.ENTER)

    def enter(self) -> None:
        """Load the page, and sign in if it asks for the token."""
        self.open()
        ready, login = "base image is ready", self.browser.find("#login")
        self.browser.wait_for(lambda: login.is_displayed() or ready in self.browser.find("#summary").text)
        if login.is_displayed():
            self.sign_in()
            self.wait_for_text("#summary", ready)

    def press(self, label: str) -> None:
        """Press a button by its name, wherever the page is scrolled to."""
        self.browser.run("arguments[0].click()", self.browser.find(f"[aria-label={json.dumps(label)}]"))

    def wait_for_text(self, selector: str, *texts: str) -> None:
        """Wait for an element with all of the texts."""
        self.browser.wait_for(
            lambda: any(all(text in shown for text in texts) for shown in self.browser.texts(selector))
        )

    def check_no_injection(self) -> None:
        """Check that `HOSTILE` has stayed text."""
        assert self.browser.run("return document.title").startswith("image-service")  # type: ignore[attr-defined]
        assert self.browser.run("return document.querySelectorAll('main img').length") == 0


@contextmanager
def running_console(directory: Path, **variables: str) -> Iterator[Console]:
    """Run a service and a browser that has loaded its page, which asks for the token."""
    token_file, profile = directory / "token", directory / "profile"
    token_file.touch(mode=0o600)
    token_file.write_text(TOKEN)
    with (
        running_site(directory, ADMIN_TOKEN_FILE=str(token_file), **variables) as site,
        running_browser(profile) as browser,
    ):
        console = Console(site, browser)
        browser.show_as(1280)
        console.open()
        yield console
