"""A headless Chromium, driven by its driver."""

from __future__ import annotations

import base64
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
from axe_core_python.selenium import Axe
from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

WIDTHS = (360, 800, 1280, 1920)
LOOKS = ((360, "dark"), (1920, "light"))
"""Widths and color schemes in which assistive technology looks at a page: the extremes, and each scheme."""
_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.2  # each look at the page takes the browser's time, too
_OPTIONS = (
    "--headless=new",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-extensions",
    "--no-first-run",
    "--force-device-scale-factor=1",
)


@attrs.frozen
class Browser:
    """A browser with one page."""

    driver: Chrome

    def open(self, url: str) -> None:
        """Load a page, and wait for its scripts' first work."""
        self.driver.get(url)

    def show_as(self, width: int, height: int = 1000, scheme: str = "light") -> None:
        """Give the page a size in CSS pixels, and the user's colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts that elements show; of a page that changes meanwhile, from one moment."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"
        texts: list[str] = self.driver.execute_script(script, selector)
        return texts

    def run(self, script: str, *arguments: object) -> object:
        """Return the result of a function's body."""
        result: object = self.driver.execute_script(script, *arguments)
        return result

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; fail with the page's text and the errors in the console."""
        try:
            WebDriverWait(self.driver, _TIMEOUT_SECONDS, _POLL_SECONDS).until(lambda _: condition())
        except TimeoutException:
            pytest.fail("\n".join([*self.texts("body"), *self.errors()]))

    def errors(self) -> list[str]:
        """Return the errors in the console since the last call, such as violations of the policy."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def needs_no_scroll_bar(self) -> bool:
        """Return True if the page is as wide as what a vertical scroll bar leaves."""
        root = "document.documentElement"
        return bool(self.run(f"return {root}.scrollWidth <= {root}.clientWidth"))

    def check_looks(self, looks: Iterable[tuple[int, str]] = LOOKS) -> None:
        """Check that no width needs a scroll bar, and that the page suits assistive technology."""
        for width in WIDTHS:
            self.show_as(width)
            assert self.needs_no_scroll_bar(), width
        for width, scheme in looks:
            self.show_as(width, scheme=scheme)
            violations = Axe().run(self.driver)["violations"]
            found = [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations]
            assert found == [], (width, scheme)

    def save_screenshot(self, file: Path, selector: str = "html", margin: int = 0) -> None:
        """Write a picture of an element, and a margin around it, in the format of the file's suffix."""
        self.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        self.run("scrollTo({ top: 0, behavior: 'instant' })")
        script = "return arguments[0].getBoundingClientRect().toJSON()"
        box: dict[str, float] = self.driver.execute_script(script, self.find(selector))
        clip = {name: box[name] - margin for name in ("x", "y")}
        clip |= {name: box[name] + 2 * margin for name in ("width", "height")}
        options = {
            "format": file.suffix.removeprefix("."),
            "clip": {**clip, "scale": 1},
            "captureBeyondViewport": True,
        }
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def running_browser(directory: Path) -> Iterator[Browser]:
    """Run a browser until the block ends.

    Args:
        directory: for its profile; an empty one.
    """
    options = ChromeOptions()
    options.binary_location = needs_client("chromium")
    for option in (*_OPTIONS, f"--user-data-dir={directory}"):
        options.add_argument(option)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # it refuses to run as root otherwise
    options.accept_insecure_certs = True
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(needs_client("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
