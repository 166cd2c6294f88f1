"""Checks the JSON by which workers report results and progress of jobs. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import InvalidRequest
from image_service.jobs.model import JobError, JobProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.jobs.model import Artifact, Json, Step

ARTIFACT_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
"""Of a file that a worker sends."""

MAX_RESULT_BYTES = 64 * 1024
"""Of a result's JSON: its error goes through the engine, which has a limit for all payloads of a plan."""

_MAX_ERROR_TEXT = 4000
"""Characters of the reason of an error, and of the JSON of its details: lists show them."""

_JSON_NAMES: dict[type, str] = {dict: "an object", str: "a string"}
_FACTS: dict[str, type] = {"provenance": dict, "log": str, "location": str}


@attrs.frozen
class DeclaredArtifact:
    """A file in the result of a worker."""

    name: str
    size: int
    sha256: str


@attrs.frozen
class WorkerResult:
    """The result of a job, as its worker reports it.

    Args:
        facts: further members: ``provenance``, ``log``, and the ``location`` of an upload.
        error: the reason of its failure; None: it succeeded.
    """

    artifacts: tuple[DeclaredArtifact, ...] = ()
    facts: Json = attrs.field(factory=dict, repr=False)
    error: JobError | None = None

    @classmethod
    def parse(cls, document: Json) -> WorkerResult:
        """Check a result's JSON, of which unknown members are dropped; raises InvalidRequest."""
        if len(json.dumps(document)) > MAX_RESULT_BYTES:
            raise InvalidRequest(f"result must have at most {MAX_RESULT_BYTES} bytes")
        facts = {name: document[name] for name in _FACTS if name in document}
        for name, fact in facts.items():
            if not isinstance(fact, _FACTS[name]):
                raise InvalidRequest(f"result.{name} must be {_JSON_NAMES[_FACTS[name]]}")
        error = document.get("job_error")
        if error is not None:
            return cls(facts=facts, error=_parse_error(error))
        artifacts = document.get("artifacts", [])
        if not isinstance(artifacts, list):
            raise InvalidRequest("result.artifacts must be an array")
        declared = tuple(_parse_artifact(number, each) for number, each in enumerate(artifacts))
        if len({each.name for each in declared}) < len(declared):
            raise InvalidRequest("result.artifacts has a name twice")
        return cls(declared, facts)

    def resolve(self, step: Step, uploaded: Iterable[Artifact]) -> list[Artifact]:
        """Return the stored artifacts of a job that succeeded.

        Args:
            step: its argument ``output`` names the artifact that it must have.

        Raises:
            InvalidRequest: a declared artifact was not uploaded, or is another; the output is missing.
        """
        output = step.arguments.get("output")
        if output is not None and output not in {declared.name for declared in self.artifacts}:
            raise InvalidRequest(f"result.artifacts must have {output}")
        stored = {artifact.name: artifact for artifact in uploaded}
        return [_find_stored(declared, stored.get(declared.name)) for declared in self.artifacts]


def parse_progress(document: Json) -> JobProgress | None:
    """Return the progress in a partial result; None: there is none. Raises InvalidRequest."""
    match document.get("progress"):
        case None:
            return None
        case {"done": int(done), "total": int(total), **others} if done >= 0 and total in {
            0,
            max(done, total),
        }:
            return JobProgress(done, total, str(others.get("phase", ""))[:100])
    raise InvalidRequest('partial.progress must be {"done": N, "total": N, "phase": "…"}, done at most total')


def _parse_error(document: object) -> JobError:
    match document:
        case {"id": int(number), "reason": str(reason), **others}:
            details = others.get("details", "")
            is_short = len(json.dumps(details)) <= _MAX_ERROR_TEXT
            return JobError(number, reason[:_MAX_ERROR_TEXT], details if is_short else "")
    raise InvalidRequest('result.job_error must have an integer "id" and a string "reason"')


def _parse_artifact(number: int, document: object) -> DeclaredArtifact:
    match document:
        case {"name": str(name), "size": int(size), "sha256": str(sha256)} if ARTIFACT_NAME.fullmatch(name):
            return DeclaredArtifact(name, size, sha256.lower())
    raise InvalidRequest(
        f'result.artifacts[{number}] must have a "name" of {ARTIFACT_NAME.pattern}, an integer "size" and a'
        ' string "sha256"'
    )


def _find_stored(declared: DeclaredArtifact, stored: Artifact | None) -> Artifact:
    if stored is None:
        raise InvalidRequest(f"artifact {declared.name} was not uploaded by this attempt")
    if (stored.size, stored.sha256) != (declared.size, declared.sha256):
        raise InvalidRequest(
            f"artifact {declared.name} was uploaded with {stored.size} bytes and SHA-256 {stored.sha256}, not"
            f" {declared.size} and {declared.sha256}"
        )
    return stored
