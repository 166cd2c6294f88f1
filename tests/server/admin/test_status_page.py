"""The files of the status page, and the files that they load; an acceptance test drives it with a browser."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import pytest

import image_service.server.admin
from image_service.server.admin.status_page import page_files
from image_service.server.web_api.messages import ApiRequest
from image_service.server.web_api.router import ApiRouter
from tests.pytwisted import ensure_deferred

STATIC = Path(image_service.server.admin.__file__).with_name("static")
DOCUMENTS = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))
FILES = sorted(file.name for file in STATIC.iterdir())


def references(text: str) -> list[str]:
    """Return the files that a page loads, and the modules that a module imports."""
    return re.findall(r'(?:src|href)="([^"#]+)"', text) + re.findall(r'from "([^"]+)"', text)


@ensure_deferred
@pytest.mark.parametrize("page", ["index.html", "jobs.html", "api.html", "documents.html"])
async def test_page_is_html_with_a_strict_policy(page: str) -> None:
    response = await ApiRouter(page_files(page)).respond(ApiRequest("GET", "/"))
    assert response.content_type == "text/html; charset=utf-8"
    policy = dict(response.fields)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


def test_other_pages_are_not_there() -> None:
    assert {path for path in page_files() if "." not in path} == {"/", "/api", "/documents"}
    assert not [path for path in page_files("jobs.html") if path.endswith(".html")]


@ensure_deferred
async def test_page_of_the_documents_lists_each_by_its_title() -> None:
    router = ApiRouter(page_files())
    page = (await router.respond(ApiRequest("GET", "/documents"))).body.decode()
    listed = dict(re.findall(r'<a href="#([a-z0-9-]+\.md)">(.+)</a>', page))
    assert listed.keys() == {path.name for path in DOCUMENTS} - {"index.md"}
    for name, title in listed.items():
        document = await router.respond(ApiRequest("GET", f"/documents/{name}"))
        assert document.content_type == "text/markdown; charset=utf-8"
        assert document.body.decode().startswith(f"# {unescape(title)}\n")


@pytest.mark.parametrize("name", FILES)
@ensure_deferred
async def test_files_that_a_page_or_module_loads_exist(name: str) -> None:
    is_page = name.endswith(".html")
    router = ApiRouter(page_files(name) if is_page else page_files())
    path = "/" if is_page else f"/static/{name}"
    text = (await router.respond(ApiRequest("GET", path))).body.decode()
    found = {urljoin(path, each) for each in references(text) if not each.startswith("http")}
    for each in found - {"/openapi.json", "/metrics", "/health"}:
        assert (await router.respond(ApiRequest("GET", each))).status == 200


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline(name: str) -> None:
    text = (STATIC / name).read_text().replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|//cdn|@import|innerHTML|\son[a-z]+=|\sstyle=|<style|<script>", text)
