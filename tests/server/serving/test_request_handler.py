from __future__ import annotations

import base64
import bz2
import json
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.lru import ENTRY_BYTES
from image_service.common.concurrency.negative_cache import REFUSED_SECONDS
from image_service.core.errors import Forbidden, NotFound, Unauthorized, UpstreamError, UpstreamTimeout
from image_service.core.formats.newc import write_archive
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.observability.log import describe
from image_service.server.serving import request_handler
from image_service.server.transport.exchanges.exchange import NO_SUBJECT, PreparedResponse, Subject
from tests.server.http.reading import body_of, fields_of, problem_of
from tests.server.serving.asking import TARGET, Service, answers_of
from tests.server.snapshots.doubles import ID, TTL_SECONDS, infra_env_of
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import LoggedFailures

SUBJECT = Subject("/byid/:token", ID, "full-iso")


def token(claims: dict[str, str]) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


@pytest.fixture
def service() -> Iterator[Service]:
    with make_world() as world:
        yield Service(world)


# Probes.


@pytest.mark.parametrize("path", ["/live", "/health", "/base/live", "/base/health", "/health?verbose"])
@pytest.mark.parametrize("overloaded", [False, True])
def test_probes_are_answered_even_when_overloaded(service: Service, path: str, *, overloaded: bool) -> None:
    answer = service.ask(path, overloaded=overloaded)
    assert isinstance(answer, PreparedResponse)
    assert answer.response.status == 200
    assert body_of(answer.response) == b"ok\n"
    assert fields_of(answer.response) == {
        "content-type": "text/plain",
        "content-length": "3",
        "cache-control": "no-store",
    }
    head = service.get(path, "HEAD", overloaded=overloaded)
    assert (head.response.fields, head.response.body) == (answer.response.fields, ())
    assert answer.subject.handler == path.partition("?")[0].removeprefix("/base")
    assert service.upstream_calls == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_is_503_until_images_can_be_served(service: Service, method: str) -> None:
    service.ready = False
    answer = service.get("/health", method)
    assert answer.response.status == 503
    assert answer.response.problem is not None
    assert (answer.response.code, answer.response.problem.detail) == ("unavailable", "no image yet")
    assert fields_of(answer.response)["retry-after"] == "1"
    assert answer.subject.handler == "/health"
    assert service.get("/live", method).response.status == 200
    service.ready = True
    assert service.get("/health", method).response.status == 200


@pytest.mark.parametrize("path", ["/images", "/base/images", "/images?x=y"])
def test_base_image_states_are_shown_before_one_is_ready(service: Service, path: str) -> None:
    service.ready = False
    answer = service.get(path)
    assert answer.response.status == 200
    assert body_of(answer.response) == b'{"images": []}'
    assert fields_of(answer.response) == {
        "content-type": "application/json",
        "content-length": "14",
        "cache-control": "no-store",
    }
    head = service.get(path, "HEAD")
    assert (head.response.fields, head.response.body) == (answer.response.fields, ())
    assert answer.subject.handler == "/images"


# Images.


def test_image_head_and_ranges(service: Service) -> None:
    whole = service.get()
    assert whole.response.status == 200
    assert whole.subject == SUBJECT
    image = body_of(whole.response)
    part = service.get(range="bytes=1000-1999")
    assert part.response.status == 206
    assert body_of(part.response) == image[1000:2000]
    head = service.get(method="HEAD")
    assert (head.response.status, head.response.fields) == (200, whole.response.fields)
    assert service.get(if_none_match=fields_of(whole.response)["etag"]).response.status == 304
    assert service.get(range="bytes=-0").response.status == 416


def test_doubts_about_an_image_go_with_its_content(service: Service) -> None:
    service.world.assisted.initrd = bz2.compress(write_archive([]))
    target = f"/images/{ID}/pxe-initrd?version=4.20&arch=x86_64"
    asked = service.ask(target)
    service.world.threads.work()
    (whole,) = answers_of(asked)
    (doubt,) = whole.warnings
    assert "is bzip2, which kernels without CONFIG_RD_BZIP2 skip" in doubt
    assert service.get(target, range="bytes=0-1").warnings == whole.warnings
    assert service.get(target, "HEAD").warnings == ()
    assert service.get().warnings == ()


def test_second_range_is_answered_at_once_without_upstream_calls(service: Service) -> None:
    service.get(range="bytes=0-1")
    service.world.assisted.held = []
    for offset in range(1000):
        answer = service.ask(range=f"bytes={offset}-{offset + 511}")
        assert isinstance(answer, PreparedResponse), "not even a Deferred"
        assert answer.subject is service.get().subject
    assert service.upstream_calls == 2


def test_other_url_of_the_same_image_needs_no_upstream_call(service: Service) -> None:
    etags = {
        fields_of(service.get(target).response)["etag"]
        for target in (TARGET, f"/base{TARGET}", f"/images/{ID}?version=4.20&type=full", f"{TARGET}?x=y")
    }
    assert len(etags) == 1
    assert service.upstream_calls == 2


def test_concurrent_requests_share_one_upstream_call(service: Service) -> None:
    service.world.assisted.held = []
    asked = [service.ask() for _ in range(200)]
    answers = [answers_of(deferred) for deferred in asked]
    service.world.assisted.release()
    assert [answer[0].response.status for answer in answers] == [200] * 200
    assert service.upstream_calls == 2


def test_cached_image_is_revalidated_after_the_ttl(service: Service) -> None:
    first = service.get()
    service.world.clock.advance(TTL_SECONDS - 1)
    service.get()
    assert service.upstream_calls == 2
    service.world.clock.advance(1)
    second = service.get()
    assert service.upstream_calls == 4
    assert second.response.fields == first.response.fields
    assert isinstance(service.ask(), PreparedResponse)
    assert service.upstream_calls == 4


def test_revoked_client_is_refused_after_the_ttl(service: Service) -> None:
    service.get()
    service.world.clock.advance(TTL_SECONDS)
    service.world.assisted.failures["infra-env"] = Forbidden("no longer")
    for _ in range(2):
        assert service.get().response.status == 403


CREDENTIALS = [
    ("", None, None),
    ("?api_key=K", None, Credentials(CredentialScheme.API_KEY, "K")),
    ("?api_key=L", None, Credentials(CredentialScheme.API_KEY, "L")),
    ("?image_token=K", None, Credentials(CredentialScheme.IMAGE_TOKEN, "K")),
    ("", "K", Credentials(CredentialScheme.AUTHORIZATION, "K")),
    ("", "L", Credentials(CredentialScheme.AUTHORIZATION, "L")),
]


def test_image_is_served_only_to_its_credentials(service: Service) -> None:
    for query, authorization, expected in CREDENTIALS * 2:
        fields = {} if authorization is None else {"authorization": authorization}
        assert service.get(TARGET + query, **fields).response.status == 200
        assert expected in [call[3] for call in service.world.assisted.calls]
    assert service.upstream_calls == 2 * len(CREDENTIALS)


def test_cached_image_is_not_served_to_a_refused_client(service: Service) -> None:
    assert service.get(authorization="good").response.status == 200
    error = Unauthorized("no", fields=(("WWW-Authenticate", "Bearer"),))
    service.world.assisted.failures["ignition"] = error
    for fields in ({"authorization": "bad"}, {}):
        answer = service.get(**fields)
        assert answer.response.status == 401
        assert fields_of(answer.response)["www-authenticate"] == "Bearer"
    assert service.get(authorization="good").response.status == 200


# Refusals.


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/", 404, "not-found"),
        (f"/byid/{ID}/9.99/x86_64/full.iso", 404, "base-image-unknown"),
        (f"/byid/{ID}/4.20/x86_64/other.iso", 404, "not-found"),
        (f"/images/{ID}?version=9.99&type=x", 400, "parameter-invalid"),
        (f"/images/{ID}?type=full", 400, "parameter-invalid"),
        ("/bytoken/x/4.20/x86_64/full.iso", 404, "not-found"),
    ],
)
def test_refusal_is_problem_details(
    service: Service, method: str, target: str, status: int, code: str
) -> None:
    answer = service.get(target, method)
    assert (answer.response.status, answer.response.code) == (status, code)
    if method == "GET":
        assert problem_of(answer.response)["code"] == code
    else:
        assert answer.response.body == ()
    assert service.upstream_calls == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Forbidden("not yours"), 403),
        (UpstreamError("garbage", retry_after_seconds=5), 502),
        (UpstreamTimeout("late", retry_after_seconds=5), 504),
    ],
)
def test_upstream_failure_is_reported_and_not_cached(service: Service, error: Exception, status: int) -> None:
    service.world.assisted.failures["ignition"] = error
    for _ in range(2):
        answer = service.get()
        assert answer.response.status == status
        assert answer.subject == SUBJECT
        assert problem_of(answer.response)["detail"] == str(error)
    service.world.assisted.failures.clear()
    service.world.clock.advance(REFUSED_SECONDS)
    assert service.get().response.status == 200


def test_customization_that_does_not_fit_is_422_with_both_sizes(service: Service) -> None:
    service.world.assisted.reported = infra_env_of(("x" * 5000,))
    asked = service.ask()
    service.world.threads.work()
    (answer,) = answers_of(asked)
    assert answer.response.status == 422
    assert problem_of(answer.response)["code"] == "kernel-arguments-too-large"


def test_unexpected_error_is_500_and_logged(service: Service, logged_failures: LoggedFailures) -> None:
    service.world.assisted.failures["infra-env"] = KeyError("s3cr3t of the inside")
    answer = service.get()
    assert answer.response.status == 500
    assert problem_of(answer.response)["code"] == "internal-error"
    assert b"s3cr3t" not in body_of(answer.response)
    assert len(logged_failures.flush(KeyError)) == 1
    service.world.assisted.failures.clear()
    assert service.get().response.status == 200


def test_image_is_503_with_retry_after_when_overloaded(service: Service) -> None:
    """Even a known one: what is scarce is connections, and this one is about to be closed."""
    assert service.get().response.status == 200
    for target in (TARGET, f"/images/{ID}?version=4.20&type=full"):
        answer = service.ask(target, overloaded=True)
        assert isinstance(answer, PreparedResponse)
        assert answer.response.status == 503
        assert fields_of(answer.response)["retry-after"] == "5"
        assert answer.subject.infra_env == ID
    assert service.get("/nothing", overloaded=True).response.status == 404
    assert service.get().response.status == 200
    assert service.upstream_calls == 2


# What is left to the infra-env is named by what it was made as.


def test_subject_has_the_kind_that_was_served(service: Service) -> None:
    service.world.assisted.reported = infra_env_of((), "4.20")
    answer = service.get(f"/clusters/{ID}/downloads/image")
    assert answer.subject == Subject("/clusters/:clusterID/downloads/image", ID, "full-iso")
    service.world.assisted.failures["infra-env"] = NotFound("no")
    service.world.clock.advance(TTL_SECONDS)
    answer = service.get(f"/clusters/{ID}/downloads/image")
    assert answer.subject == Subject("/clusters/:clusterID/downloads/image", ID, "")


# Bounds and silence.


@pytest.fixture
def known_limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_handler, "ROUTES_BYTES", request.param * ENTRY_BYTES)


@pytest.mark.parametrize("known_limit", [3], indirect=True)
@pytest.mark.usefixtures("known_limit")
def test_number_of_cached_routes_is_bounded(service: Service) -> None:
    targets = [f"{TARGET}?{number}" for number in range(4)]
    for target in targets[:3]:
        service.get(target)
    assert isinstance(service.ask(targets[0]), PreparedResponse)
    service.get(targets[3])
    known = [isinstance(service.ask(targets[number]), PreparedResponse) for number in (0, 2, 3, 1)]
    assert known == [True, True, True, False]
    assert service.upstream_calls == 2


@pytest.mark.parametrize("known_limit", [8], indirect=True)
@pytest.mark.usefixtures("known_limit")
def test_credentials_count_toward_the_bound_of_cached_routes(service: Service) -> None:
    for number in range(20):
        service.get(TARGET, authorization=f"Bearer {number}".ljust(3 * ENTRY_BYTES, "x"))
        assert service.handler.routes_bytes <= 8 * ENTRY_BYTES
    assert service.handler.routes_bytes > 6 * ENTRY_BYTES


@pytest.mark.parametrize("known_limit", [2], indirect=True)
@pytest.mark.usefixtures("known_limit")
def test_least_recently_used_route_is_evicted(service: Service) -> None:
    service.get(f"{TARGET}?0")
    service.get(f"{TARGET}?1")
    service.world.clock.advance(TTL_SECONDS)
    service.get(f"{TARGET}?0")
    service.get(f"{TARGET}?2")
    assert isinstance(service.ask(f"{TARGET}?0"), PreparedResponse)


def test_no_response_shows_a_secret(service: Service, logged_failures: LoggedFailures) -> None:
    """Neither of what a client sent, nor of what was made for it."""
    service.world.assisted.config = b'{"ignition": {"version": "3.2.0"}, "pull": "s3cr3t"}'
    service.world.assisted.failures["infra-env"] = NotFound("no")
    signed = f"{token({'sub': ID, 'x': 's3cr3t'})}s3cr3t"
    for target in (
        f"{TARGET}?api_key=s3cr3t",
        f"{TARGET}?image_token=s3cr3t",
        f"/byapikey/{signed}/4.20/x86_64/full.iso",
        f"/bytoken/{signed}/4.20/x86_64/full.iso",
        f"/bytoken/{signed}/4.20/x86_64/s3cr3t.iso",
    ):
        for fails in (True, False):
            if not fails:
                service.world.assisted.failures.clear()
            answer = service.get(target, authorization="Bearer s3cr3t")
            assert "s3cr3t" not in f"{answer!r} {fields_of(answer.response)}"
            assert answer.response.status < 500
            if answer.response.status >= 400:
                assert b"s3cr3t" not in body_of(answer.response)
    assert logged_failures.failures == []


def test_log_line_of_an_unexpected_error_has_the_infra_env_and_no_credential(
    service: Service, logged_failures: LoggedFailures
) -> None:
    service.world.assisted.failures["ignition"] = RuntimeError("odd")
    service.get(f"{TARGET}?api_key=s3cr3t", authorization="Bearer s3cr3t")
    (failure,) = logged_failures.flush(RuntimeError)
    assert "s3cr3t" not in json.dumps(describe({"log_failure": failure}))


def test_response_without_a_route_has_no_subject(service: Service) -> None:
    assert service.get("/nothing").subject == NO_SUBJECT == Subject("", "", "")


def test_weak_etag_names_no_superseded_version(service: Service) -> None:
    etag = fields_of(service.get().response)["etag"]
    service.world.assisted.config = b'{"ignition": {"version": "3.3.0"}}'
    service.world.clock.advance(TTL_SECONDS)
    part = service.get(range="bytes=0-1", if_range=etag)
    assert (part.response.status, fields_of(part.response)["etag"]) == (206, etag)
    whole = service.get(range="bytes=0-1", if_range=f"W/{etag}")
    assert whole.response.status == 200
    assert fields_of(whole.response)["etag"] != etag
