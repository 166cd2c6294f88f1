from __future__ import annotations

import json
from typing import Any

import jwt
import pytest

from image_service.core.errors import Unavailable
from image_service.tools.doctor.requests_seen import ServerView, check_requests, find_infra_env
from image_service.tools.doctor.target import ImageUrl

INFRA_ENV = "5a3b1e00-0000-4000-8000-000000000001"
OTHER = "5a3b1e00-0000-4000-8000-000000000002"
URL = ImageUrl.parse(f"http://h/byid/{INFRA_ENV}/4.19/x86_64/full.iso")
SECRET = "the secret of this test, long enough for a signature"
READING = {
    "infra_env": INFRA_ENV,
    "address": "192.0.2.7",
    "client": "iDRAC",
    "user_agent": "iDRAC9",
    "stage": "kernel",
    "stalled": False,
    "last_read": "2026-11-23T12:00:00Z",
}
REFUSED = {
    "path": f"/byid/{INFRA_ENV}/***",
    "status": 404,
    "reason": "not found",
    "client": "192.0.2.8",
    "time": "2026-11-23T12:00:00Z",
}


def check(
    mounts: list[dict[str, Any]], failures: list[dict[str, Any]], url: ImageUrl = URL
) -> tuple[str, str]:
    outcome = check_requests(url, lambda: ServerView(mounts, failures))
    return str(outcome.status), outcome.detail


def test_mounts_of_the_infra_env_are_shown() -> None:
    status, detail = check([READING, {**READING, "infra_env": OTHER, "address": "192.0.2.9"}], [])
    assert (status, detail) == ("ok", "192.0.2.7 (iDRAC): kernel, last read 2026-11-23T12:00:00Z")


def test_stalled_mounts_and_failures_are_warnings() -> None:
    assert check([{**READING, "stalled": True}], [])[0] == "warn"
    assert check([], [REFUSED]) == ("warn", "192.0.2.8: 404 at 2026-11-23T12:00:00Z, not found")
    assert "aborted" in check([], [{**REFUSED, "status": None}])[1]


def test_own_requests_and_those_of_others_do_not_count() -> None:
    own = {**READING, "user_agent": "image-service-doctor", "address": REFUSED["client"]}
    expected = ("ok", "the service knows of no request for this infra-env")
    others = [{**REFUSED, "path": None, "client": "192.0.2.9"}]
    assert check([own, {**READING, "infra_env": None}], [REFUSED, *others]) == expected


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/byid/{INFRA_ENV.upper()}/4.19/x86_64/full.iso", INFRA_ENV),
        (f"/bytoken/{jwt.encode({'infra_env_id': INFRA_ENV}, SECRET)}/4.19/x86_64/full.iso", INFRA_ENV),
        (f"/bytoken/{jwt.encode({'sub': INFRA_ENV, 'exp': 1}, SECRET)}/4.19/x86_64/full.iso", INFRA_ENV),
        ("/bytoken/a.W10.c/4.19/x86_64/full.iso", None),
        ("/s/0123456789abcdef.iso", None),
    ],
    ids=["path", "local token", "cloud token", "token without claims", "short link"],
)
def test_infra_env_is_found_in_the_url(path: str, found: str | None) -> None:
    assert find_infra_env(ImageUrl.parse(f"http://h{path}")) == found


def test_check_is_skipped_without_an_infra_env_or_a_listener() -> None:
    assert check([], [], ImageUrl.parse("http://h/s/a.iso"))[0] == "skip"
    assert str(check_requests(URL, None).status) == "skip"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"mounts": 1}', b'{"mounts": [1], "failures": []}'])
def test_other_responses_are_refused_and_the_check_is_skipped(content: bytes) -> None:
    with pytest.raises(Unavailable, match="not that of an image service"):
        ServerView.fetch(lambda _: content)
    outcome = check_requests(URL, lambda: ServerView.fetch(lambda _: content))
    assert (str(outcome.status), outcome.detail) == ("skip", "the response is not that of an image service")


def test_both_lists_are_fetched() -> None:
    content = json.dumps({"mounts": [READING], "failures": [REFUSED]}).encode()
    asked: list[str] = []

    def get(path: str) -> bytes:
        asked.append(path)
        return content

    assert ServerView.fetch(get) == ServerView([READING], [REFUSED])
    assert asked == ["/api/v1/mounts", "/api/v1/failures"]
