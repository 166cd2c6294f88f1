"""The page for browsers, and the OpenAPI document."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from openapi_spec_validator import validate

from image_service.core.errors import ImageServiceError
from image_service.server.http.routes import parse_route
from image_service.server.serving.landing_page import PAGE_FIELDS, render_landing_page
from image_service.server.serving.openapi import render_openapi
from tests.server.serving.asking import Service
from tests.server.snapshots.doubles import ID
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.snapshots.doubles import World

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
EXAMPLES = {
    "infra_env": ID,
    "cluster": ID,
    "version": "4.20",
    "arch": "x86_64",
    "artifact": "kernel",
    "stream": "stable",
    "document": "stable.json",
}
FILES = {"/boot-artifacts/{version}/{arch}/{file}": "vmlinuz"}
TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps({'sub': ID}).encode()).decode().rstrip('=')}.x"


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        yield made


def document(base_path: str = "") -> dict[str, Any]:
    described: dict[str, Any] = json.loads(render_openapi(base_path))
    return described


@pytest.mark.parametrize("target", ["/", "/base/", "/?x"])
def test_browser_gets_a_page(world: World, target: str) -> None:
    service = Service(world)
    response = service.get(target, accept=BROWSER).response
    assert response.status == 200
    fields = dict(response.field_lines)
    assert fields["Content-Type"] == "text/html; charset=utf-8"
    assert fields["Vary"] == "Accept"


@pytest.mark.parametrize("accept", [{}, {"accept": "*/*"}, {"accept": "application/json"}], ids=str)
def test_other_clients_get_a_problem(world: World, accept: dict[str, str]) -> None:
    response = Service(world).get("/", **accept).response
    assert (response.status, response.code) == (404, "not-found")


def test_head_of_the_page_has_its_fields(world: World) -> None:
    service = Service(world)
    head, whole = (service.get("/", method, accept=BROWSER).response for method in ("HEAD", "GET"))
    assert head.fields == whole.fields
    assert (head.length, whole.length) == (0, len(render_landing_page("/base")))


def test_page_links_below_the_base_path_and_policy_allows_its_style() -> None:
    page = render_landing_page("/base").decode()
    assert re.findall(r'href="([^"]+)"', page) == ["/base/openapi.json", "/base/health"]
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in dict(PAGE_FIELDS)["Content-Security-Policy"]


def test_openapi_document_is_valid_and_served(world: World) -> None:
    validate(document())
    response = Service(world).get("/openapi.json").response
    assert response.status == 200
    assert ("Content-Type", "application/json") in response.field_lines
    assert [server["url"] for server in document("/base")["servers"]] == ["/base", "/"]


@pytest.mark.parametrize("path", sorted(document()["paths"]))
def test_each_documented_path_is_a_route(path: str) -> None:
    operation = document()["paths"][path]["get"]
    names = {"file": FILES.get(path, "full.iso"), "token": TOKEN, "api_key": TOKEN, **EXAMPLES}
    target = re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[1]), path)
    required = {
        each["name"]: each["schema"].get("enum", ["4.20"])[0]
        for each in operation.get("parameters", ())
        if each["in"] == "query" and each["required"]
    }
    query = "&".join(f"{name}={value}" for name, value in required.items())
    parse_route(f"{target}?{query}", {})
    if required:
        with pytest.raises(ImageServiceError):
            parse_route(target, {})
