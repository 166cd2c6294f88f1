from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from image_service.app.jobs.ec2 import build_ec2_api
from image_service.files.reloaded import prepare_changed
from image_service.jobs.ec2.errors import SignatureRefused
from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.settings.jobs.role import JobsRoleSettings
from tests.jobs.ec2.signing import CREDENTIAL, signed_request

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.jobs.ec2.api import Ec2Api
    from image_service.settings.jobs.ec2 import Ec2Credential

NEW = attrs.evolve(CREDENTIAL, access_key="NEW", secret_key="another-secret-key")


def write(path: Path, credential: Ec2Credential) -> None:
    path.write_text(json.dumps([attrs.asdict(credential)]))
    path.chmod(0o600)


def build(tmp_path: Path, **variables: str) -> Ec2Api | None:
    settings = JobsRoleSettings.from_environment({"DATA_DIR": str(tmp_path), **variables})
    return build_ec2_api(settings, {}, JobsMetrics())


def is_known(api: Ec2Api, credential: Ec2Credential) -> bool:
    """Return True if the API accepts signatures of an access key."""
    request = signed_request({}, at=datetime.now(UTC), credential=credential)
    outcome: list[Any] = []
    Deferred.fromCoroutine(api.respond(request)).addBoth(outcome.append)
    return not (hasattr(outcome[0], "check") and outcome[0].check(SignatureRefused))


@pytest.mark.parametrize("variables", [{}, {"JOBS_APIS": "composer,worker"}], ids=["no-keys", "other-apis"])
def test_the_api_is_served_only_with_access_keys(variables: dict[str, str], tmp_path: Path) -> None:
    assert build(tmp_path, **variables) is None


def test_changed_access_keys_are_in_force_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write(path, CREDENTIAL)
    api = build(tmp_path, EC2_CREDENTIALS_FILE=str(path))
    assert api is not None
    assert (is_known(api, CREDENTIAL), is_known(api, NEW)) == (True, False)
    write(path, NEW)
    prepare_changed()()
    assert (is_known(api, CREDENTIAL), is_known(api, NEW)) == (False, True)
