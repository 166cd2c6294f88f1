"""The site: built without a warning, complete, linked right, and without another host."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import attrs
import pytest

from tests.acceptance.browser import Browser, running_browser
from tests.acceptance.clients import missing
from tests.packaging.conftest import CHECKOUT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.package

QUESTIONS = {
    "tutorials/first-boot": ("boot one machine", "qemu-system-x86_64"),
    "standalone": ("change kernel arguments", "infra-env edit my-lab --karg "),
    "tutorials/disconnected": ("serve without internet", "Serve in the site"),
    "links": ("which URL an iDRAC takes", "too long for a BMC (iDRAC"),
    "http": ("answered 503", "- 503 `unavailable`"),
    "operations": ("rotate a certificate", "To rotate a certificate"),
    "from-assisted-image-service": ("move from assisted-image-service", "assisted-image-service"),
    "replicas": ("size PostgreSQL", "`max_connections`"),
    "mounts": ("the stage of a machine", "## Stages"),
    "tutorials/disk-image": ("make a disk image", "compose start"),
}
"""The page that answers each: by which words of the first page link to it, and what it answers."""
ASKED_OTHERWISE = {"answered 503": "503"}
"""The words to search for, where those of the first page are too common."""


@attrs.define
class Page(HTMLParser):
    """What an HTML page links to, and what it loads."""

    anchors: set[str] = attrs.field(factory=set)
    links: set[str] = attrs.field(factory=set)
    loads: set[str] = attrs.field(factory=set)
    text: str = ""

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect."""
        named = {name: value or "" for name, value in attributes}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a":
            self.links.add(named.get("href", ""))
        elif tag != "meta":
            self.loads |= {named[name] for name in ("src", "href", "data", "action") if name in named}

    def handle_data(self, data: str) -> None:
        """Collect."""
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make site` does; return its directory."""
    directory = tmp_path_factory.mktemp("site")
    build(directory)
    return directory / "html"


def build(directory: Path) -> None:
    """Run the command of the Makefile, with a directory in the place of that of the checkout."""
    if not (CHECKOUT / ".cache/site/bin/python").exists():
        missing("the environment of the site (make site)")
    (line,) = re.findall(r"^\t(.* -m sphinx .*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    places = {".cache/site/trees": f"{directory}/trees", "dist/site": f"{directory}/html"}
    command = [places.get(word, word) for word in line.split()]
    built = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Return the pages of the site by their files."""
    pages = {}
    for path in site.rglob("*.html"):
        page = pages[path] = Page()
        page.feed(path.read_text())
        page.close()
    return pages


@pytest.mark.soak
def test_site_is_complete_after_a_build_that_was_ended(site: Path) -> None:
    """Such a build leaves its trees, and no index of the search."""
    index = site / "searchindex.js"
    complete = index.read_text()
    index.unlink()
    build(site.parent)
    assert index.read_text() == complete


def test_links_lead_to_pages_and_headings(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if url.scheme or not link:
                continue
            known = target in pages and (not url.fragment or url.fragment in pages[target].anchors)
            if not (known or (target not in pages and target.is_file())):
                broken.append((path.name, link))
    assert broken == []


def test_pages_load_nothing_from_another_host(pages: dict[Path, Page]) -> None:
    loaded = {urlsplit(each).netloc for page in pages.values() for each in page.loads}
    assert loaded == {""}
    styles = [path.read_text() for page in list(pages)[:1] for path in page.parents[0].rglob("*.css")]
    assert not [url for style in styles for url in re.findall(r"url\(\"?(https?:[^)]*)", style)]


def test_documents_are_pages_in_one_of_the_four_parts(pages: dict[Path, Page]) -> None:
    """Sphinx warns about a document that no table of contents has, and about a name without a document."""
    named = {path.stem for path in pages}
    documents = {path.stem for path in (CHECKOUT / "docs").rglob("*.md")} - {"package"}
    assert documents <= named
    first = next(page for path, page in pages.items() if path.match("html/index.html"))
    assert all(part in first.text for part in ("Tutorials", "How to", "Reference", "Explanation"))


@pytest.mark.parametrize("name", QUESTIONS)
def test_question_is_one_click_from_the_first_page(name: str) -> None:
    question, answer = QUESTIONS[name]
    table = (CHECKOUT / "docs" / "index.md").read_text()
    rows = [line for line in table.splitlines() if f"({name}.md)" in line]
    assert any(question in row for row in rows)
    assert answer in (CHECKOUT / "docs" / f"{name}.md").read_text()


def test_search_in_files_has_the_answer_among_the_first_results(
    pages: dict[Path, Page], tmp_path: Path
) -> None:
    search = next(path for path in pages if path.match("html/search.html")).as_uri()
    with running_browser(tmp_path) as browser:
        for name, (question, _) in QUESTIONS.items():
            browser.open(f"{search}?q={quote(ASKED_OTHERWISE.get(question, question))}")
            wait_for_result(browser, name)


def wait_for_result(browser: Browser, name: str) -> None:
    browser.wait_for(lambda: name in first_results(browser))


def first_results(browser: Browser) -> list[str]:
    """Return the documents that the page of the search has listed by now, the first eight."""
    listed = "#search-results li:nth-child(-n + 8) a"
    links = browser.run("return [...document.querySelectorAll(arguments[0])].map((a) => a.pathname)", listed)
    assert isinstance(links, list)
    return [link.partition("/html/")[2].removesuffix(".html") for link in links]
