"""A role whose clients have tokens, and requests of its tenants."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.acceptance.service import fetch
from tests.jobs.running_role import (
    API,
    JOBS,
    LOCAL,
    RunningRole,
    compose_request,
    needs_disk_programs,
    running_role,
    wait_until,
)
from tests.jobs.tenants.tokens import RSA, key_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.acceptance.service import Answer

_RULES = [
    {"claim": "rh-org-id", "pattern": "^[0-9]+$"},
    {"claim": "sub", "pattern": "^operator$", "operator": True},
]
_CONFIG = b'{"ignition": {"version": "3.3.0"}}'


@contextmanager
def running_with_tenants(
    directory: Path, command: Sequence[str] = JOBS, **variables: str
) -> Iterator[RunningRole]:
    """Run a role that admits tenants named by numbers, and operators."""
    keys, rules = directory / "keys.json", directory / "acl.json"
    keys.write_bytes(key_set(RSA))
    rules.write_text(json.dumps(_RULES))
    variables |= {"JWT_KEYS_FILE": str(keys), "JWT_ACL_FILE": str(rules)}
    with running_role(directory, command, **variables) as running:
        yield running


def token(tenant: str, **claims: object) -> str:
    """Return a token of a tenant."""
    return RSA.token(header=None, **{"rh-org-id": tenant, **claims})


def ask(role: RunningRole, path: str, tenant: str, document: object = None, **claims: object) -> Answer:
    """Send a request of a tenant, a POST if there is a document."""
    fields = {"Authorization": f"Bearer {token(tenant, **claims)}"}
    if document is None:
        return fetch(f"{role.url}{path}", headers=fields)
    fields["Content-Type"] = "application/json"
    return fetch(f"{role.url}{path}", "POST", headers=fields, body=json.dumps(document).encode())


def start(role: RunningRole, tenant: str, image_type: str, target: object = LOCAL) -> str:
    """Start a compose with a config; return its id."""
    document = compose_request(image_type, config=_CONFIG, targets=[target])
    answer = ask(role, f"{API}/compose", tenant, document)
    assert answer.status == 201, answer.body
    return str(json.loads(answer.body)["id"])


def status_of(role: RunningRole, tenant: str, compose_id: str) -> dict[str, Any]:
    """Return the status of a compose."""
    document: dict[str, Any] = json.loads(ask(role, f"{API}/composes/{compose_id}", tenant).body)
    return document


def finish(role: RunningRole, tenant: str, compose_id: str) -> dict[str, Any]:
    """Return the status of a compose that has succeeded."""
    wait_until(lambda: status_of(role, tenant, compose_id)["status"] != "pending", lambda: role.log)
    found = status_of(role, tenant, compose_id)
    if found["status"] == "failure":
        needs_disk_programs()
    assert found["status"] == "success", found
    return found
