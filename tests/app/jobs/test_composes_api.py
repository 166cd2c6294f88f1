"""The composes of all tenants on the administrative listener."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from openapi_spec_validator import validate

from image_service.core.errors import Conflict, NotFound
from image_service.jobs.database.tables import open_database
from image_service.jobs.model import ComposeOrigin, ComposeState, ImageType, JobError, JobErrorId
from image_service.server.admin.admin_api import api_routes
from image_service.server.web_api.messages import ApiRequest, ApiResponse
from image_service.server.web_api.router import ApiRouter
from tests.app.jobs.composes import JobsStateDouble, composes_api
from tests.jobs.composer.composing import Composer, result_of
from tests.jobs.database.composing import Rows, make_artifact, make_compose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = "/api/v1/composes"


@attrs.frozen
class Operator:
    """Sends requests to the API."""

    composer: Composer
    state: JobsStateDouble
    router: ApiRouter

    def ask(self, path: str, method: str = "GET") -> ApiResponse:
        """Return the response to a request."""
        return result_of(self.router.respond(ApiRequest(method, path)))

    def read(self, path: str = PATH) -> Any:
        """Return the JSON at a path."""
        return json.loads(self.ask(path).body)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with closing(open_database(None, tmp_path)) as database:
        composer, state = Composer(Rows(database)), JobsStateDouble()
        yield Operator(composer, state, ApiRouter(api_routes([composes_api(composer, state)])))


def test_compose_is_listed_with_its_jobs(operator: Operator) -> None:
    rows = operator.composer.rows
    compose, jobs = rows.add(make_compose(tenant=""))
    rows.start(jobs["customize"], tenant="")
    (listed,) = operator.read()["composes"]
    assert (listed["id"], listed["tenant"]) == (compose.id, "default")
    assert listed["what"] == "rhcos-4.19 x86_64 vsphere"
    assert (listed["can_be_cancelled"], listed["has_image"]) == (True, False)
    first, second = listed["jobs"]
    assert (first["step"], first["state"], first["attempt"], first["worker"]) == (
        "customize",
        "running",
        1,
        "w1",
    )
    assert (second["step"], second["started_at"]) == ("convert", None)


def test_image_is_downloaded_once_the_compose_has_succeeded(operator: Operator) -> None:
    compose, _ = operator.composer.rows.add()
    with pytest.raises(Conflict, match="the compose is pending, and has no image"):
        operator.ask(f"{PATH}/{compose.id}/image")
    image = make_artifact("job", name="disk.vmdk")
    operator.composer.rows.composes.finish(compose.id, ComposeState.SUCCESS, image=image)
    assert operator.read()["composes"][0]["has_image"]
    assert operator.ask(f"{PATH}/{compose.id}/image").body == compose.id.encode()


def test_compose_is_cancelled_once(operator: Operator) -> None:
    compose_id = operator.composer.compose(ImageType.VSPHERE)
    assert operator.ask(f"{PATH}/{compose_id}/cancellation", "POST").status == 204
    assert operator.composer.engine.cancelled == [compose_id]
    (listed,) = operator.read()["composes"]
    assert (listed["state"], listed["can_be_cancelled"]) == ("cancelled", False)
    with pytest.raises(Conflict, match="the compose has ended"):
        operator.ask(f"{PATH}/{compose_id}/cancellation", "POST")


def test_imports_are_listed_and_left_to_their_api(operator: Operator) -> None:
    compose, _ = operator.composer.rows.add(
        make_compose(origin=ComposeOrigin.IMPORT, distribution="", image_type=None)
    )
    (listed,) = operator.read()["composes"]
    assert (listed["what"], listed["can_be_cancelled"]) == ("import", False)
    (build,) = operator.read(f"{PATH}/{compose.id}/logs")["image_builds"]
    assert [step["step"] for step in build["steps"]] == ["customize", "convert"]
    for path, method in (("cancellation", "POST"), ("image", "GET")):
        with pytest.raises(NotFound, match="there is no such compose"):
            operator.ask(f"{PATH}/{compose.id}/{path}", method)


def test_log_has_each_job(operator: Operator) -> None:
    compose, _ = operator.composer.rows.add()
    (build,) = operator.read(f"{PATH}/{compose.id}/logs")["image_builds"]
    assert [step["step"] for step in build["steps"]] == ["customize", "convert"]


def test_verdict_is_as_bad_as_the_state(operator: Operator) -> None:
    compose, _ = operator.composer.rows.add()
    counts = "composes: 1 pending, 0 building, 0 uploading, 0 registering"
    assert operator.read()["verdict"] == {"level": "good", "text": counts}
    operator.state.impairment = "the job engine does not answer"
    assert operator.read()["verdict"] == {
        "level": "impaired",
        "text": f"the job engine does not answer; {counts}",
    }
    operator.state.reason = "the engine has ended"
    unready = {"verdict": {"level": "failing", "text": "the engine has ended"}, "total": 0, "composes": []}
    assert operator.read() == unready  # which may be without its database
    operator.state.reason = ""
    error = JobError(JobErrorId.BUILD_FAILED, "no room")
    operator.composer.rows.composes.finish(compose.id, ComposeState.FAILURE, error=error)
    assert operator.read()["composes"][0]["reason"] == "no room"


def test_openapi_document_is_valid(operator: Operator) -> None:
    validate(operator.read("/openapi.json"))
