"""The inputs of an image: in-toto provenance, and an SBOM of the additions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service import __version__
from image_service.server.http.dates import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from image_service.jobs.model import Compose, Job, Json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

_URN = "urn:image-service"
_IMAGE, _BASE, _CONFIG = "SPDXRef-Image", "SPDXRef-Base", "SPDXRef-Ignition"
_NO_ASSERTION = "NOASSERTION"


def make_provenance(compose: Compose, jobs: Sequence[Job]) -> Json:
    """Return an in-toto statement with SLSA provenance (version 1) of the products of a compose.

    Its subjects are the finished image, if its digest is known, and the stored artifacts of jobs.

    Args:
        compose: whose request has no secrets in it.
    """
    facts = _base_facts(compose)
    image = compose.image
    digests = {artifact.name: artifact.sha256 for job in jobs for artifact in job.artifacts}
    if image_sha256 := image.sha256 if image else facts.get("sha256"):
        digests[compose.plan.file_name] = str(image_sha256)
    dependencies = [{"name": "base", "uri": _base_uri(compose), "digest": _digest(facts.get("base_sha256"))}]
    if compose.ignition_sha256 is not None:
        dependencies.append({"name": "ignition", "digest": _digest(compose.ignition_sha256)})
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": _digest(sha256)} for name, sha256 in digests.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{_URN}:compose:v1",
                "externalParameters": {"request": compose.request},
                "internalParameters": {"steps": [step.name for step in compose.plan.steps]},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {
                    "id": _URN,
                    "version": {"image-service": __version__, **_program_versions(compose.provenance)},
                },
                "metadata": {
                    "invocationId": compose.id,
                    **_date("startedOn", compose.started_at),
                    **_date("finishedOn", compose.finished_at),
                },
            },
        },
    }


def make_sbom(compose: Compose) -> Json:
    """Return the SPDX 2.3 document of the addition of a compose to its base image: an Ignition config."""
    facts = _base_facts(compose)
    image_sha256 = compose.image.sha256 if compose.image else facts.get("sha256")
    packages = [
        _package(_IMAGE, compose.plan.file_name, compose.id, image_sha256),
        _package(
            _BASE, str(facts.get("base", "base image")), facts.get("base_version"), facts.get("base_sha256")
        ),
    ]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", _IMAGE), (_IMAGE, "DESCENDANT_OF", _BASE)]
    files = []
    if compose.ignition_sha256 is not None:
        relations.append((_IMAGE, "CONTAINS", _CONFIG))
        files.append(
            {
                "SPDXID": _CONFIG,
                "fileName": "./config.ign",
                "checksums": _checksums(compose.ignition_sha256),
                "copyrightText": _NO_ASSERTION,
                "licenseConcluded": _NO_ASSERTION,
            }
        )
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": compose.plan.file_name,
        "documentNamespace": f"{_URN}:sbom:{compose.id}",
        "creationInfo": {
            "created": format_rfc3339(compose.finished_at or compose.created_at),
            "creators": [f"Tool: image-service-{__version__}"],
        },
        "packages": packages,
        "files": files,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }


def _base_facts(compose: Compose) -> Mapping[str, object]:
    """Return the facts that the first step, which prepares the base, has reported."""
    facts = compose.provenance.get(compose.plan.steps[0].name)
    return facts if isinstance(facts, dict) else {}


def _base_uri(compose: Compose) -> str:
    arguments = compose.plan.steps[0].arguments
    if "image" in arguments:
        return f"{_URN}:image:{arguments['image']}"
    kind = arguments.get("platform") or "live-iso"
    return f"{_URN}:base:{arguments['version']}:{arguments['architecture']}:{kind}"


def _program_versions(provenance: Json) -> dict[str, str]:
    """Return the versions of the toolkit and of the programs that jobs have reported."""
    return {
        name: str(version)
        for facts in provenance.values()
        if isinstance(facts, dict)
        for name, version in _versions_in(facts)
    }


def _versions_in(facts: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    if "toolkit" in facts:
        yield "image-toolkit", facts["toolkit"]
    programs = facts.get("programs")
    if isinstance(programs, dict):
        yield from programs.items()


def _package(identifier: str, name: str, version: object, sha256: object) -> dict[str, object]:
    return {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": str(version or _NO_ASSERTION),
        "downloadLocation": _NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": _NO_ASSERTION,
        "licenseDeclared": _NO_ASSERTION,
        "copyrightText": _NO_ASSERTION,
        "checksums": _checksums(sha256),
    }


def _checksums(sha256: object) -> list[dict[str, object]]:
    return [{"algorithm": "SHA256", "checksumValue": sha256}] if sha256 else []


def _digest(sha256: object) -> dict[str, object]:
    return {"sha256": sha256} if sha256 else {}


def _date(name: str, date: datetime | None) -> dict[str, str]:
    return {name: format_rfc3339(date)} if date else {}
