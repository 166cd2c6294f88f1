from __future__ import annotations

import pytest

from image_service.common.registry.mirrors import RegistryRules, parse_registries_conf
from image_service.common.registry.references import parse_reference
from image_service.core.errors import FormatError

DIGEST = f"@sha256:{'0' * 64}"
CONF = """
unqualified-search-registries = ["docker.io"]
[[registry]]
location = "quay.io/openshift-release-dev"
mirror-by-digest-only = true
[[registry.mirror]]
location = "mirror.local:5000/ocp"
[[registry.mirror]]
location = "other.local/ocp"
insecure = true

[[registry]]
prefix = "quay.io/openshift-release-dev/tags"
location = "tags.local/t"
[[registry.mirror]]
location = "tags-mirror.local"
pull-from-mirror = "tag-only"

[[registry]]
prefix = "*.example.com"
[[registry.mirror]]
location = "mirror.local/example"

[[registry]]
location = "plain.local:5000"
insecure = true

[[registry]]
location = "blocked.local"
blocked = true

[[registry]]
location = "never.local"
blocked = true
[[registry.mirror]]
location = "never.local"
[[registry.mirror]]
location = "mirror.local/never"
pull-from-mirror = "digest-only"
"""


@pytest.fixture(scope="module")
def rules() -> RegistryRules:
    """Those of CONF."""
    return parse_registries_conf(CONF)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("elsewhere/a:t", ["elsewhere/a"]),
        (
            f"quay.io/openshift-release-dev/ocp{DIGEST}",
            ["mirror.local:5000/ocp/ocp", "other.local/ocp/ocp!", "quay.io/openshift-release-dev/ocp"],
        ),
        ("quay.io/openshift-release-dev/ocp:4", ["quay.io/openshift-release-dev/ocp"]),
        ("quay.io/openshift-release-dev2/ocp:4", ["quay.io/openshift-release-dev2/ocp"]),
        ("quay.io/openshift-release-dev/tags/a:1", ["tags-mirror.local/a", "tags.local/t/a"]),
        (f"quay.io/openshift-release-dev/tags/a{DIGEST}", ["tags.local/t/a"]),
        ("a.example.com/b:1", ["mirror.local/example/b", "a.example.com/b"]),
        ("a.b.example.com:5000/b:1", ["mirror.local/example:5000/b", "a.b.example.com:5000/b"]),
        ("example.com/b:1", ["example.com/b"]),
        ("evil-example.com/b:1", ["evil-example.com/b"]),
        ("plain.local:5000/a:1", ["plain.local:5000/a!"]),
        ("plain.local/a:1", ["plain.local/a"]),
        ("named.local/a:1", ["named.local/a!"]),
        (f"never.local/a{DIGEST}", ["mirror.local/never/a"]),
    ],
)
def test_endpoints_in_order(rules: RegistryRules, reference: str, expected: list[str]) -> None:
    found = rules.endpoints(parse_reference(reference), frozenset({"named.local"}))
    assert [f"{each}{'!' * each.is_insecure}" for each in found] == expected


@pytest.mark.parametrize("registry", ["blocked.local", "never.local"])
def test_blocked_registry_is_named(rules: RegistryRules, registry: str) -> None:
    with pytest.raises(FormatError, match=rf"registries\.conf blocks {registry}"):
        rules.endpoints(parse_reference(f"{registry}/a:1"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "must be TOML"),
        ("[registries.search]\nregistries = []", "version 2"),
        ("registry = 5", "list of tables"),
        ("[[registry]]", "must have a prefix or a location"),
        ('[[registry]]\nlocation = "https://a"', "without a scheme"),
        ('[[registry]]\nlocation = "user:pw@a"', "without a scheme"),
        ('[[registry]]\nlocation = "a"\ninsecure = "yes"', "insecure must be true or false"),
        ('[[registry]]\nlocation = "a"\nmirror = 1', "list of tables"),
        ('[[registry]]\nlocation = "a"\n[[registry.mirror]]', "registry a: each mirror must have a location"),
        ('[[registry]]\nprefix = "*.a"\nlocation = "b"', "no location beside"),
        (
            '[[registry]]\nlocation = "a"\n[[registry.mirror]]\nlocation = "b"\npull-from-mirror = "x"',
            "must be one of all, digest-only, tag-only",
        ),
    ],
)
def test_faults(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_registries_conf(text)


def test_empty_file_has_no_rules() -> None:
    assert parse_registries_conf("") == RegistryRules()
