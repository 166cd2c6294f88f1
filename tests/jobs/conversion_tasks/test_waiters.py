"""The waiters of botocore against the operations, through a listener."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import WaiterError
from twisted.internet.defer import maybeDeferred
from twisted.internet.threads import deferToThread

from image_service.jobs.api.front import ApiFront
from image_service.jobs.ec2.ec2_api import Ec2Api
from image_service.jobs.ec2.signatures import SignatureVerifier
from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.jobs.model import ComposeState, JobError
from image_service.jobs.tenants.authenticator import OpenAuthenticator
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.resource import ApiSite
from image_service.settings.jobs.ec2 import Ec2Credential
from tests.jobs.conversion_tasks.operating import BASE_DISK, export
from tests.jobs.ec2_clients import EC2_KEY, EC2_SECRET, ec2_client
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor

    from tests.jobs.conversion_tasks.operating import Operating

CREDENTIAL = Ec2Credential(EC2_KEY, EC2_SECRET, "1", ("*",), ("*",))


@asynccontextmanager
async def serving(reactor: EPollReactor, operating: Operating) -> AsyncIterator[str]:
    """Serve the operations; yield the URL."""
    verifier = SignatureVerifier(lambda: {CREDENTIAL.access_key: CREDENTIAL})
    api = Ec2Api(verifier, operating.operations.handlers, JobsMetrics())
    front = ApiFront(OpenAuthenticator("worker"), (), api)
    site = ApiSite(front.resource(RequestGuard()), reactor, 2**20)
    port = reactor.listenTCP(0, site, interface="127.0.0.1")
    try:
        yield f"http://127.0.0.1:{port.getHost().port}"
    finally:
        await maybeDeferred(port.stopListening)


def wait(url: str, waiter: str, **ids: list[str]) -> str:
    """Wait once; return the state that the waiter has seen last if it failed, else ''."""
    with closing(ec2_client(url)) as client:
        try:
            client.get_waiter(waiter).wait(**ids, WaiterConfig={"Delay": 0, "MaxAttempts": 2})
        except WaiterError as error:
            response: dict[str, Any] = error.last_response
            (task,) = response.get("ConversionTasks") or response["ExportTasks"]
            return f"{task['State']}: {re.split('[.:]', error.kwargs['reason'])[0]}"
    return ""


@pytest.mark.parametrize(
    ("end", "completed", "cancelled"),
    [
        (None, "active: Max attempts exceeded", "active: Max attempts exceeded"),
        (ComposeState.SUCCESS, "", "completed: Max attempts exceeded"),
        (ComposeState.FAILURE, "cancelled: Waiter encountered a terminal failure state", ""),
        (ComposeState.CANCELLED, "cancelled: Waiter encountered a terminal failure state", ""),
    ],
    ids=["active", "success", "failure", "cancelled"],
)
@ensure_deferred
async def test_waiters_of_imports(
    reactor: EPollReactor,
    operating: Operating,
    end: ComposeState | None,
    completed: str,
    cancelled: str,
) -> None:
    task_id = operating.import_volume()["ConversionTaskId"]
    if end is not None:
        operating.rows.composes.finish(operating.record(task_id).compose.id, end, error=JobError(10, "no"))
    async with serving(reactor, operating) as url:
        ids = {"ConversionTaskIds": [task_id]}
        assert await deferToThread(wait, url, "conversion_task_completed", **ids) == completed
        assert await deferToThread(wait, url, "conversion_task_cancelled", **ids) == cancelled


@ensure_deferred
async def test_waiter_of_imports_fails_while_the_task_is_cancelling(
    reactor: EPollReactor, operating: Operating
) -> None:
    task_id = operating.import_volume()["ConversionTaskId"]
    record = operating.record(task_id)
    operating.rows.start(record.jobs[0].id)
    operating.rows.clock.advance(1)
    operating.rows.composes.finish(record.compose.id, ComposeState.CANCELLED)
    async with serving(reactor, operating) as url:
        found = await deferToThread(wait, url, "conversion_task_completed", ConversionTaskIds=[task_id])
    assert found == "cancelling: Waiter encountered a terminal failure state"


@ensure_deferred
async def test_waiters_of_exports(reactor: EPollReactor, operating: Operating) -> None:
    answer = operating.call("CreateInstanceExportTask", export(BASE_DISK.instance_alias))["ExportTask"]
    ids = {"ExportTaskIds": [answer["ExportTaskId"]]}
    async with serving(reactor, operating) as url:
        found = await deferToThread(wait, url, "export_task_completed", **ids)
        assert found == "active: Max attempts exceeded"
        compose_id = operating.record(answer["ExportTaskId"]).compose.id
        operating.rows.composes.finish(compose_id, ComposeState.SUCCESS)
        assert await deferToThread(wait, url, "export_task_completed", **ids) == ""
