from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from image_service.core.provenance.dsse import load_signing_key, open_bundle
from image_service.jobs.artifacts.provenance import make_provenance, make_sbom
from image_service.jobs.composer.replies import describe_provenance
from image_service.jobs.model import Artifact, ComposePlan, Job, JobState, JobType, Step
from tests.jobs.database.composing import NOW, make_compose

IMAGE = Artifact("disk.vmdk", 10, "11" * 32, "key")
BASE = {"version": "9.6.1-0", "architecture": "x86_64", "platform": "metal", "format": "raw"}
PLAN = ComposePlan((Step("fetch", "fetch-base", BASE), Step("customize", "customize")), "x/y", "disk.vmdk")
FACTS = {
    "fetch": {"base": "rhcos.img", "base_version": "9.6.1-0", "base_sha256": "22" * 32},
    "customize": {"toolkit": "0.1.0", "programs": {"qemu-img": "10.0"}},
}


def finished(**values: Any) -> Any:
    end = NOW + timedelta(seconds=7)
    return make_compose(
        **{
            "plan": PLAN,
            "image": IMAGE,
            "provenance": FACTS,
            "ignition_sha256": "33" * 32,
            "started_at": NOW,
            "finished_at": end,
            **values,
        }
    )


def test_provenance_names_inputs_and_products() -> None:
    job = Job(
        id="j",
        compose_id="c",
        tenant="",
        step="customize",
        type=JobType.CUSTOMIZE,
        architecture="x86_64",
        state=JobState.FINISHED,
    )
    statement: Any = make_provenance(finished(), [job])
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "disk.vmdk", "digest": {"sha256": "11" * 32}}]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    definition, run = (statement["predicate"][name] for name in ("buildDefinition", "runDetails"))
    assert definition["resolvedDependencies"] == [
        {
            "name": "base",
            "uri": "urn:image-service:base:9.6.1-0:x86_64:metal",
            "digest": {"sha256": "22" * 32},
        },
        {"name": "ignition", "digest": {"sha256": "33" * 32}},
    ]
    assert definition["internalParameters"] == {"steps": ["fetch", "customize"]}
    versions = run["builder"]["version"]
    assert (versions["image-toolkit"], versions["qemu-img"]) == ("0.1.0", "10.0")
    assert run["metadata"]["startedOn"] == "2026-11-23T12:00:00Z"
    assert run["metadata"]["finishedOn"] == "2026-11-23T12:00:07Z"
    json.dumps(statement)


@pytest.mark.parametrize("has_key", [False, True])
def test_provenance_is_signed_with_a_key(has_key: bool) -> None:  # noqa: FBT001 - drawn
    key = ed25519.Ed25519PrivateKey.generate()
    signer = load_signing_key(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    document: Any = describe_provenance(finished(), [], signer if has_key else None)
    (statement,) = document["items"]
    opened = [
        json.loads(open_bundle(json.dumps(bundle).encode(), [signer.public]))
        for bundle in document["bundles"]
    ]
    assert opened == ([statement] if has_key else [])


def test_provenance_of_a_composed_image_has_the_digest_that_was_computed() -> None:
    plan = ComposePlan(
        (Step("compose", "check-image", {**BASE, "platform": "", "format": ""}),), None, "live.iso"
    )
    compose = finished(plan=plan, image=None, provenance={"compose": {"sha256": "44" * 32}})
    statement: Any = make_provenance(compose, [])
    assert statement["subject"] == [{"name": "live.iso", "digest": {"sha256": "44" * 32}}]
    (base, _) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert (base["uri"], base["digest"]) == ("urn:image-service:base:9.6.1-0:x86_64:live-iso", {})


def test_provenance_without_facts_is_valid() -> None:
    compose = finished(image=None, provenance={}, ignition_sha256=None, started_at=None, finished_at=None)
    statement: Any = make_provenance(compose, [])
    assert statement["subject"] == []
    assert set(statement["predicate"]["runDetails"]["metadata"]) == {"invocationId"}


def test_sbom_has_the_config_and_the_base() -> None:
    document: Any = make_sbom(finished())
    assert (document["spdxVersion"], document["SPDXID"]) == ("SPDX-2.3", "SPDXRef-DOCUMENT")
    image, base = document["packages"]
    assert image["checksums"] == [{"algorithm": "SHA256", "checksumValue": "11" * 32}]
    assert (base["name"], base["versionInfo"]) == ("rhcos.img", "9.6.1-0")
    (config,) = document["files"]
    assert config["checksums"] == [{"algorithm": "SHA256", "checksumValue": "33" * 32}]
    known = {document["SPDXID"], *(each["SPDXID"] for each in (image, base, config))}
    for relation in document["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= known
    json.dumps(document)


def test_sbom_without_config_has_no_file() -> None:
    document: Any = make_sbom(finished(ignition_sha256=None))
    assert document["files"] == []
    assert [each["relationshipType"] for each in document["relationships"]] == ["DESCRIBES", "DESCENDANT_OF"]
