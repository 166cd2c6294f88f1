"""The page of the jobs role in a browser, over rows in SQLite."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import attrs
import pytest
from selenium.webdriver.common.keys import Keys
from twisted.internet.threads import deferToThread

from image_service.common.concurrency.process_parts import PartsStack
from image_service.jobs.database.tables import open_database
from image_service.jobs.model import ComposeState, ImageType, JobError, JobErrorId
from image_service.server.admin.listener import start_admin
from image_service.server.admin.status_page import page_files
from image_service.settings.admin import AdminSettings
from image_service.settings.parsers import ListenAddress
from image_service.settings.settings import Settings
from tests.acceptance.browser import Browser, running_browser
from tests.acceptance.console import HOSTILE, TOKEN
from tests.acceptance.service import fetch
from tests.app.jobs.composes import JobsStateDouble, composes_api
from tests.jobs.composer.composing import Composer
from tests.jobs.database.composing import Rows, make_artifact, make_compose
from tests.ports import free_port
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

pytestmark = pytest.mark.acceptance


@attrs.frozen
class JobsPage:
    """The page, whose service is in this process: each method is called in a thread."""

    browser: Browser
    url: str

    def wait_for_group(self, *texts: str) -> str:
        """Return the text of the compose that has all of the texts, once it is shown."""
        self.browser.run("document.dispatchEvent(new Event('changed'))")  # the page asks itself every 10 s

        def found() -> list[str]:
            groups = self.browser.texts("#composes .group")
            return [group for group in groups if all(text in group for text in texts)]

        self.browser.wait_for(found)
        return found()[0]

    def sign_in(self) -> None:
        """Open the page, which asks for the token."""
        self.browser.open(f"{self.url}/")
        field = self.browser.find("#login [name=token]")
        self.browser.wait_for(field.is_displayed)
        field.send_keys(TOKEN, Keys.ENTER)
        self.browser.wait_for(self.browser.find("#composes .empty").is_displayed)

    def check_log_and_image(self, compose_id: str) -> None:
        """Look at the log, and follow the link to the image."""
        self.browser.find(f"[aria-label='Log of {compose_id}']").send_keys(Keys.ENTER)
        log = self.browser.find(f"pre[aria-label='Log of {compose_id}']")
        self.browser.wait_for(log.is_displayed)
        assert "convert:\nno log yet" in log.text
        link = self.browser.find(f"[aria-label='Download the image of {compose_id}']")
        image = fetch(str(link.get_attribute("href")), headers={"Authorization": f"Bearer {TOKEN}"})
        assert image.body == compose_id.encode()

    def cancel(self, compose_id: str) -> None:
        """Cancel a compose, after the question."""
        button = f"[aria-label='Cancel {compose_id}']"
        self.browser.run(f'document.querySelector("{button}").click()')
        assert "Its work is lost." in self.browser.driver.switch_to.alert.text
        self.browser.driver.switch_to.alert.accept()
        self.wait_for_group(compose_id, "cancelled")
        assert self.browser.driver.find_elements("css selector", button) == []

    def check_looks(self) -> None:
        """Check that text stays text, and that the page suits each width, scheme and assistive technology."""
        self.browser.check_looks()
        assert self.browser.run("return document.querySelectorAll('main img').length") == 0
        assert self.browser.run("return document.title") == "image-service jobs"


@ensure_deferred
async def test_composes_are_shown_downloaded_and_cancelled(reactor: EPollReactor, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(TOKEN)
    listen, parts, state = ListenAddress("127.0.0.1", free_port()), PartsStack(reactor), JobsStateDouble()
    settings = Settings(admin=AdminSettings(listen=(listen,), token_file=token_file))
    with closing(open_database(None, tmp_path)) as database, running_browser(tmp_path / "profile") as browser:
        composer = Composer(Rows(database))
        apis = [composes_api(composer, state)]
        start_admin(parts, settings, state, apis=apis, files=page_files("jobs.html"))
        page = JobsPage(browser, f"http://127.0.0.1:{listen.port}")
        await deferToThread(page.sign_in)

        hostile, jobs = composer.rows.add(make_compose(tenant=HOSTILE))
        composer.rows.start(jobs["customize"], tenant=HOSTILE)
        await deferToThread(page.wait_for_group, hostile.id, HOSTILE, "customize", "running", "w1")
        error = JobError(JobErrorId.BUILD_FAILED, HOSTILE)
        composer.rows.composes.finish(hostile.id, ComposeState.FAILURE, error=error)
        await deferToThread(page.wait_for_group, hostile.id, "failure", f"\n{HOSTILE}\n")

        done, _ = composer.rows.add()
        image = make_artifact("job", name="disk.vmdk")
        composer.rows.composes.finish(done.id, ComposeState.SUCCESS, image=image)
        await deferToThread(page.wait_for_group, done.id, "success", "Download the image")
        await deferToThread(page.check_log_and_image, done.id)

        pending = composer.compose(ImageType.VSPHERE)
        await deferToThread(page.wait_for_group, pending, "pending", "Cancel")
        await deferToThread(page.cancel, pending)
        assert composer.engine.cancelled == [pending]

        state.impairment = "the job engine does not answer"
        await deferToThread(page.wait_for_group, pending)
        await deferToThread(browser.wait_for, lambda: state.impairment in browser.find("#summary").text)
        await deferToThread(page.check_looks)
        await deferToThread(browser.open, "about:blank")
        await parts.aclose()
