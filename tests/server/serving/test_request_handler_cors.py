"""OPTIONS, and the fields by which a page of another origin may read an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import Forbidden
from image_service.server.http.cors import Cors
from image_service.server.transport.exchanges.exchange import NO_SUBJECT, PreparedResponse
from tests.server.http.reading import body_of
from tests.server.serving.asking import TARGET, Service, answers_of
from tests.server.snapshots.doubles import ID
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.server.http.response import Response
    from tests.server.snapshots.doubles import World

CONSOLE = "https://console.example.com"
PREFLIGHT = {
    "origin": CONSOLE,
    "access_control_request_method": "GET",
    "access_control_request_headers": "range",
}


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        yield made


@pytest.fixture
def service(world: World) -> Service:
    return Service(world, cors=Cors((CONSOLE,)))


def values_of(response: Response, name: str) -> list[str]:
    """The values of a field, of which there may be several."""
    lines = [line.split(": ", 1) for line in response.fields.decode("latin-1").splitlines()]
    return [value for found, value in lines if found.lower() == name]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_base_image_states_have_cors_fields(service: Service, method: str) -> None:
    answer = service.get("/images", method, origin=CONSOLE)
    assert values_of(answer.response, "access-control-allow-origin") == [CONSOLE]
    other = service.get("/images", method, origin="https://evil.example")
    assert values_of(other.response, "access-control-allow-origin") == []


# OPTIONS.


@pytest.mark.parametrize("target", [TARGET, "*", "/", "/nothing", "/live"])
@pytest.mark.parametrize("overloaded", [False, True])
def test_preflight_of_an_allowed_origin_is_204_for_any_target(
    service: Service, target: str, *, overloaded: bool
) -> None:
    """In a crowd too: the page is to hear the 503 of what it asks for, and when to come back."""
    answer = service.ask(target, "OPTIONS", overloaded=overloaded, **PREFLIGHT)
    assert isinstance(answer, PreparedResponse)
    assert (answer.response.status, answer.response.body, answer.subject) == (204, (), NO_SUBJECT)
    assert values_of(answer.response, "access-control-allow-origin") == [CONSOLE]
    assert values_of(answer.response, "access-control-allow-methods") == ["GET, HEAD"]
    (allowed,) = values_of(answer.response, "access-control-allow-headers")
    assert {"Range", "If-Range", "Authorization"} <= set(allowed.split(", "))
    assert values_of(answer.response, "vary") == ["Origin"]
    assert values_of(answer.response, "content-length") == []
    assert service.upstream_calls == 0


def test_preflight_of_another_origin_grants_nothing(service: Service) -> None:
    answer = service.get(TARGET, "OPTIONS", **{**PREFLIGHT, "origin": "https://evil.example"})
    assert (answer.response.status, answer.response.fields) == (204, b"Vary: Origin\r\n")


@pytest.mark.parametrize("target", [TARGET, "*", "/nothing"])
@pytest.mark.parametrize("overloaded", [False, True])
@pytest.mark.parametrize("fields", [{}, PREFLIGHT])
def test_options_without_cors_lists_the_methods(
    world: World, target: str, fields: dict[str, str], *, overloaded: bool
) -> None:
    answer = Service(world).get(target, "OPTIONS", overloaded=overloaded, **fields)
    assert (answer.response.status, answer.response.body) == (204, ())
    assert answer.response.fields == b"Allow: GET, HEAD, OPTIONS\r\n"


def test_options_that_is_no_preflight_lists_the_methods(service: Service) -> None:
    answer = service.get(TARGET, "OPTIONS", origin=CONSOLE)
    assert answer.response.status == 204
    assert values_of(answer.response, "allow") == ["GET, HEAD, OPTIONS"]
    assert values_of(answer.response, "access-control-allow-origin") == [CONSOLE]
    assert values_of(answer.response, "access-control-allow-methods") == []


def test_options_is_not_confused_with_a_cached_image(service: Service) -> None:
    assert service.get().response.status == 200
    assert service.get(method="OPTIONS").response.status == 204
    assert service.get(method="OPTIONS", **PREFLIGHT).response.status == 204


# Every answer.

ANSWERS: list[tuple[str, str, dict[str, str], int]] = [
    (TARGET, "GET", {}, 200),
    (TARGET, "HEAD", {}, 200),
    (TARGET, "GET", {"range": "bytes=0-1"}, 206),
    (TARGET, "GET", {"range": "bytes=0-1,5-6"}, 206),
    (TARGET, "GET", {"if_none_match": "*"}, 304),
    (TARGET, "GET", {"if_match": '"x"'}, 412),
    (TARGET, "GET", {"range": "bytes=-0"}, 416),
    ("/nothing", "GET", {}, 404),
    ("/nothing", "HEAD", {}, 404),
    (f"/images/{ID}?type=x&version=4.20", "GET", {}, 400),
    (f"/byid/{ID}/9.99/x86_64/full.iso", "GET", {}, 404),
    ("/boot-artifacts/9.99/x86_64/rootfs.img", "HEAD", {}, 404),
    ("/boot-artifacts/4.20/x86_64/rootfs.img", "GET", {}, 200),
    (f"{TARGET}.sha256", "GET", {}, 200),
    ("/live", "GET", {}, 200),
    ("/health", "GET", {}, 200),
]


@pytest.mark.parametrize(("target", "method", "fields", "status"), ANSWERS)
def test_every_response_to_an_allowed_origin_has_cors_fields(
    service: Service, target: str, method: str, fields: dict[str, str], status: int
) -> None:
    """The first answer is waited for, the next is there at once; and it is the one for everybody else."""
    plain = Service(service.world).get(target, method, x_request_id="r-1", **fields).response
    for _ in range(2):
        response = service.get(target, method, origin=CONSOLE, x_request_id="r-1", **fields).response
        assert response.status == status
        assert response.fields.startswith(plain.fields)
        assert body_of(response) == body_of(plain)
        assert values_of(response, "access-control-allow-origin") == [CONSOLE]
        assert "Origin" in values_of(response, "vary")
        (exposed,) = values_of(response, "access-control-expose-headers")
        assert {
            "Content-Length",
            "Content-Range",
            "Content-Disposition",
            "ETag",
            "Accept-Ranges",
            "Repr-Digest",
        } <= set(exposed.split(", "))


@pytest.mark.parametrize(("target", "method", "fields", "status"), ANSWERS)
def test_response_to_another_origin_has_vary_only(
    service: Service, target: str, method: str, fields: dict[str, str], status: int
) -> None:
    for origin in ({}, {"origin": "https://evil.example"}):
        response = service.get(target, method, **fields, **origin).response
        assert response.status == status
        assert b"Access-Control" not in response.fields
        assert values_of(response, "vary")[-1] == "Origin"


def test_refusals_have_cors_fields(service: Service) -> None:
    service.ready = False
    refused = [service.get("/health", origin=CONSOLE), service.get(overloaded=True, origin=CONSOLE)]
    service.world.assisted.failures["ignition"] = Forbidden("no")
    refused.append(service.get(origin=CONSOLE))
    assert [answer.response.status for answer in refused] == [503, 503, 403]
    for answer in refused:
        assert values_of(answer.response, "access-control-allow-origin") == [CONSOLE]


def test_cors_keeps_subject_and_end_of_a_delayed_response(service: Service) -> None:
    service.world.assisted.held = []
    waiting = answers_of(service.ask(origin=CONSOLE))
    service.world.assisted.release()
    (answer,) = waiting
    assert (answer.subject.infra_env, answer.subject.kind) == (ID, "full-iso")
    assert answer.on_end is not PreparedResponse(answer.response).on_end


def test_responses_without_cors_have_no_cors_fields(world: World) -> None:
    service = Service(world)
    for target, method, fields, _ in ANSWERS:
        response = service.get(target, method, origin=CONSOLE, **fields).response
        assert b"Access-Control" not in response.fields
        assert "Origin" not in values_of(response, "vary")
