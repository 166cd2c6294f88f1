"""The schemas of the worker API: upstream's, with the additions of this service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.openapi.document import reference
from image_service.jobs.model import JobType

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.jobs.model import Json

ANY_TENANT = "ANY"

# Of base images; each is a label of metrics, so that clients cannot make up others.
_ARCHITECTURES = ("x86_64", "aarch64", "ppc64le", "s390x")

_STRING: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}


def _reply(**members: Json) -> Json:
    """Return the schema of an object with the members that all replies have, and further ones."""
    own = {"type": "object", "properties": members, "required": list(members)}
    return {"allOf": [reference("ObjectReference"), own]} if members else reference("ObjectReference")


WORKER_SCHEMAS: Schemas = {
    "ObjectReference": {
        "type": "object",
        "properties": {"id": _STRING, "kind": _STRING, "href": _STRING},
        "required": ["id", "kind", "href"],
    },
    "Error": _reply(
        code=_STRING,
        reason=_STRING,
        operation_id=_STRING,
        message={**_STRING, "description": "equal to reason"},
        details=_STRING,
    ),
    "StatusResponse": _reply(status=_STRING),
    "RequestJobRequest": {
        "type": "object",
        "properties": {
            "types": {
                "type": "array",
                "items": {**_STRING, "description": f"{', '.join(JobType)}; there are no jobs of others"},
            },
            "arch": _STRING,
            "worker_id": _STRING,
            "tenant": {
                **_STRING,
                "enum": [ANY_TENANT],
                "description": "jobs of all tenants, for workers of the operator",
            },
        },
        "required": ["types", "arch"],
    },
    "RequestJobResponse": _reply(
        type=_STRING,
        location={**_STRING, "description": "of the attempt, for heartbeats, inputs and its end"},
        artifact_location=_STRING,
        compose_id=_STRING,
        args=_OBJECT,
        dynamic_args={"type": "array", "items": _OBJECT, "description": "results of the jobs before it"},
    ),
    "GetJobResponse": _reply(canceled={"type": "boolean"}),
    "UpdateJobRequest": {
        "oneOf": [
            {"type": "object", "properties": {name: _OBJECT}, "required": [name]}
            for name in ("result", "partial")
        ]
    },
    "UpdateJobResponse": _reply(),
    "PostWorkersRequest": {
        "type": "object",
        "properties": {"arch": {**_STRING, "enum": _ARCHITECTURES}},
        "required": ["arch"],
    },
    "PostWorkersResponse": _reply(worker_id={**_STRING, "format": "uuid"}),
}
"""By name, as in upstream's file."""
