"""Tenants against each other, on every operation of the composer API."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from image_service.core.errors import ImageServiceError
from image_service.jobs.api.front import ApiFront
from image_service.jobs.composer.errors import BASE_PATH
from image_service.jobs.model import Artifact, ComposeState, ImageType
from image_service.jobs.principal import Principal
from image_service.server.web_api.messages import ApiRequest
from tests.jobs.composer.composing import ORG_1, ORG_2, Composer, compose_request, result_of
from tests.jobs.tenants.test_authenticator import authenticator
from tests.jobs.tenants.tokens import RSA, STRANGER

if TYPE_CHECKING:
    from image_service.server.web_api.operations import ApiOperation

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
PUBLIC = {"getErrorList", "getError", "getOpenapi"}
IMAGE = Artifact("disk.vmdk", 7, "ab" * 32, "jobs/a/1/disk.vmdk")


def on_one_compose(composer: Composer) -> list[ApiOperation]:
    return [each for each in composer.api.operations if "{compose_id}" in each.path]


@pytest.mark.parametrize("state", ComposeState)
def test_foreign_compose_looks_like_an_unknown_one(composer: Composer, state: ComposeState) -> None:
    compose_id = composer.compose(ImageType.VSPHERE)
    if state.is_final:
        composer.rows.composes.finish(compose_id, state, image=IMAGE)
    else:
        composer.rows.composes.set_state(compose_id, state)
    operations = on_one_compose(composer)
    assert len(operations) > 5
    for operation in operations:
        paths = [operation.path.replace("{compose_id}", each) for each in (compose_id, UNKNOWN_ID)]
        foreign, unknown = (composer(operation.method, path, principal=ORG_2) for path in paths)
        assert (foreign.status, foreign.document["id"]) == (404, "15")
        assert foreign.body.replace(compose_id.encode(), UNKNOWN_ID.encode()) == unknown.body
        assert foreign.fields == unknown.fields
        assert "job does not exist" in foreign.document["details"]  # composer-cli asks elsewhere only then
    assert composer("GET", f"/composes/{compose_id}", principal=ORG_1).status == 200
    assert composer.engine.cancelled == []


def test_operator_sees_its_own_tenant_only(composer: Composer) -> None:
    compose_id = composer.compose()
    operator = Principal(is_operator=True)
    assert composer("GET", f"/composes/{compose_id}", principal=operator).status == 404
    assert composer("GET", "/composes/", principal=operator).document == []


def send(composer: Composer, operation: ApiOperation, token: str | None) -> tuple[int, Any]:
    """Return the status and the document of the reply to a request over TCP."""
    path = BASE_PATH + re.sub(r"\{[a-z_]+\}", "15", operation.path)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    request = ApiRequest(operation.method, path, headers=headers, client="192.0.2.1")
    try:
        response = result_of(ApiFront(authenticator(), [composer.api]).respond(request))
    except ImageServiceError as error:
        response = composer.api.render_error(error)
    return response.status, json.loads(response.body)


@pytest.mark.parametrize("token", [None, STRANGER.token()], ids=["none", "stranger"])
def test_every_operation_but_documents_needs_a_token(composer: Composer, token: str | None) -> None:
    for operation in composer.api.operations:
        status, document = send(composer, operation, token)
        if operation.id in PUBLIC:
            assert status == 200
        else:
            assert (status, document["code"]) == (401, "IMAGE-BUILDER-COMPOSER-401")


def test_token_without_a_tenant_is_refused_by_its_number(composer: Composer) -> None:
    claims: dict[str, Any] = {"rh-org-id": 42}  # a number is not a name
    status, document = send(composer, on_one_compose(composer)[0], RSA.token(**claims))
    assert (status, document["id"]) == (400, "28")


def test_limit_of_one_tenant_is_not_that_of_another(composer: Composer) -> None:
    limited = Composer(composer.rows, max_queued=1)
    limited.compose()
    assert limited("POST", "/compose", compose_request()).status == 429
    assert limited("POST", "/compose", compose_request(), ORG_2).status == 201
