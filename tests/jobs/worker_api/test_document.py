"""The OpenAPI document of the worker API, beside upstream's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openapi_spec_validator import validate

from tests.jobs.fixtures import upstream_document
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from tests.jobs.worker_api.conftest import Serving

METHODS = {"get", "post", "patch", "put", "delete"}


def operations(document: Any) -> set[tuple[str, str, str]]:
    """Return path, method and id of each operation."""
    return {
        (path, method, operation["operationId"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


@ensure_deferred
async def test_the_document_is_valid_openapi(serving: Serving) -> None:
    validate(serving.one.documents[0])


@ensure_deferred
async def test_upstream_has_all_operations_but_inputs_and_files_that_are_taken(serving: Serving) -> None:
    upstream = upstream_document("worker-v1.yml")
    if upstream is None:
        pytest.skip("upstream's document is not present")
    ours = operations(serving.one.documents[0])
    assert ours - operations(upstream) == {
        ("/jobs/{token}/inputs/{name}", "get", "GetJobInput"),
        ("/jobs/{token}/artifacts/{name}", "post", "TakeJobArtifact"),
    }
    assert operations(upstream) <= ours


@ensure_deferred
async def test_upstreams_members_are_there(serving: Serving) -> None:
    upstream = upstream_document("worker-v1.yml")
    if upstream is None:
        pytest.skip("upstream's document is not present")
    ours: Any = serving.one.documents[0]
    for name in ("RequestJobRequest", "PostWorkersRequest"):
        theirs = upstream["components"]["schemas"][name]
        schema = ours["components"]["schemas"][name]
        assert set(theirs["properties"]) <= set(schema["properties"])
        assert theirs["required"] == schema["required"]
