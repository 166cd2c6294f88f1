from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.web.test.requesthelper import DummyChannel

from image_service.management.resource import MAX_BODY_BYTES, BoundedRequest
from tests.pytwisted import ensure_deferred
from tests.standalone.running import INFRA_ENVS, ApiClient

if TYPE_CHECKING:
    from image_service.standalone.service import Standalone
    from tests.conftest import LoggedFailures

CHUNK = b"x" * 65_536


@pytest.mark.parametrize("length", [None, 300 * 1024 * 1024])
def test_a_body_takes_no_more_memory_than_its_limit(length: int | None) -> None:
    request = BoundedRequest(DummyChannel())  # type: ignore[no-untyped-call]
    request.gotLength(length)
    for _ in range(300 * 1024 * 1024 // len(CHUNK)):
        request.handleContentChunk(CHUNK)
    assert MAX_BODY_BYTES < len(request.body.getvalue()) <= MAX_BODY_BYTES + len(CHUNK)


@ensure_deferred
async def test_a_fault_of_ours_is_a_500_that_tells_nothing_and_is_logged(
    standalone: Standalone, api: ApiClient, logged_failures: LoggedFailures
) -> None:
    def fault() -> str:
        raise ZeroDivisionError("s3cret")

    infra_env_id = await api.register()
    assert standalone._running is not None
    standalone._running.api._image_service_base_url = fault
    reply = await api("GET", f"{INFRA_ENVS}/{infra_env_id}")
    assert (reply.status, reply.document["code"]) == (500, "internal-error")
    assert b"s3cret" not in reply.body
    assert len(logged_failures.flush(ZeroDivisionError)) == 1
