"""The schemas of the worker API: upstream's, with the additions of this service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.openapi.document import TEXT, reference
from image_service.common.programs.isolation import ISOLATIONS
from image_service.jobs.model import JobType

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.jobs.model import Json

# Of base images; each is a label of metrics, so that clients cannot make up others.
_ARCHITECTURES = ("x86_64", "aarch64", "ppc64le", "s390x")

_OBJECT: Json = {"type": "object"}


def _reply(**members: Json) -> Json:
    """Return the schema of an object with the members that all replies have, and further ones."""
    own = {"type": "object", "properties": members, "required": list(members)}
    return {"allOf": [reference("ObjectReference"), own]} if members else reference("ObjectReference")


WORKER_SCHEMAS: Schemas = {
    "ObjectReference": {
        "type": "object",
        "properties": {"id": TEXT, "kind": TEXT, "href": TEXT},
        "required": ["id", "kind", "href"],
    },
    "Error": _reply(
        code=TEXT,
        reason=TEXT,
        operation_id=TEXT,
        message={**TEXT, "description": "equal to reason"},
        details=TEXT,
    ),
    "StatusResponse": _reply(status=TEXT),
    "RequestJobRequest": {
        "type": "object",
        "properties": {
            "types": {
                "type": "array",
                "items": {**TEXT, "description": f"{', '.join(JobType)}; there are no jobs of others"},
            },
            "arch": TEXT,
            "worker_id": TEXT,
            "tenant": {
                **TEXT,
                "enum": ["ANY"],
                "description": "jobs of all tenants, for workers of the operator",
            },
        },
        "required": ["types", "arch"],
    },
    "RequestJobResponse": _reply(
        type=TEXT,
        location={**TEXT, "description": "of the attempt, for heartbeats, inputs and its end"},
        artifact_location=TEXT,
        compose_id=TEXT,
        args=_OBJECT,
        dynamic_args={"type": "array", "items": _OBJECT, "description": "results of the jobs before it"},
        takes_files={"type": "boolean", "description": "the worker may name its files: TakeJobArtifact"},
    ),
    "GetJobResponse": _reply(canceled={"type": "boolean"}),
    "UpdateJobRequest": {
        "oneOf": [
            {"type": "object", "properties": {name: _OBJECT}, "required": [name]}
            for name in ("result", "partial")
        ]
    },
    "UpdateJobResponse": _reply(),
    "TakeJobArtifactRequest": {
        "type": "object",
        "properties": {
            "path": {**TEXT, "pattern": "^/[^\\x00]*$", "description": "on the machine of the server"},
            "sha256": {**TEXT, "pattern": "^[0-9a-f]{64}$"},
        },
        "required": ["path", "sha256"],
    },
    "TakeJobArtifactResponse": {
        "type": "object",
        "properties": {"taken": {"type": "boolean"}},
        "required": ["taken"],
    },
    "PostWorkersRequest": {
        "type": "object",
        "properties": {
            "arch": {**TEXT, "enum": _ARCHITECTURES},
            "isolation": {
                **TEXT,
                "enum": ISOLATIONS,
                "description": "what keeps the programs of the worker from its host",
            },
        },
        "required": ["arch"],
    },
    "PostWorkersResponse": _reply(worker_id={**TEXT, "format": "uuid"}),
}
"""By name, as in upstream's file."""
