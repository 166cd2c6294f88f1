from __future__ import annotations

import json

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


@pytest.mark.parametrize(
    ("registry", "why"),
    [("blocked.local", "$"), ("never.local", ", and it has no mirror for images named by tag$")],
)
def test_blocked_registry_is_named(rules: RegistryRules, registry: str, why: str) -> None:
    with pytest.raises(FormatError, match=rf"^registries\.conf blocks {registry}{why}"):
        rules.endpoints(parse_reference(f"{registry}/a:1"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "must be TOML, or YAML of mirror sets: "),
        ("source: a", "must be TOML, or YAML of mirror sets: "),
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
            '[[registry]]\nlocation = "a"\n[[registry.mirror]]\nlocation = "b"\npull-from-mirror = []',
            "one of",
        ),
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


MIRROR_SETS = """# as oc mirror writes them
---
apiVersion: config.openshift.io/v1
kind: ImageDigestMirrorSet
metadata: {name: idms-release-0, creationTimestamp: 2001-99-99}
spec:
  imageDigestMirrors:
  - source: quay.io/openshift-release-dev/ocp-release
    mirrors: [mirror.local:5000/openshift/release-images]
  - source: never.local
    mirrors: [never.local, mirror.local/never]
    mirrorSourcePolicy: NeverContactSource
  - source: "*.example.com"
    mirrors:
    - mirror.local/example
status: {}
---
kind: ImageTagMirrorSet
spec:
  imageTagMirrors:
  - mirrors: [tags.local/release]
    source: quay.io/openshift-release-dev/ocp-release
    mirrorSourcePolicy: AllowContactingSource
  - mirrors: [tags.local/never]
    source: never.local
---
kind: List
items:
- kind: ImageContentSourcePolicy
  spec:
    repositoryDigestMirrors:
    - source: quay.io/openshift-release-dev/ocp-release
      mirrors: [mirror.local:5000/openshift/release-images, old.local/release/]
    - source: unmirrored.local
---
"""


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            f"quay.io/openshift-release-dev/ocp-release{DIGEST}",
            [
                "mirror.local:5000/openshift/release-images",
                "old.local/release",
                "quay.io/openshift-release-dev/ocp-release",
            ],
        ),
        (
            "quay.io/openshift-release-dev/ocp-release:4",
            ["tags.local/release", "quay.io/openshift-release-dev/ocp-release"],
        ),
        (f"never.local/a{DIGEST}", ["mirror.local/never/a"]),
        ("never.local/a:1", ["tags.local/never/a"]),
        (f"a.example.com/b{DIGEST}", ["mirror.local/example/b", "a.example.com/b"]),
        ("a.example.com/b:1", ["a.example.com/b"]),
        (f"unmirrored.local/a{DIGEST}", ["unmirrored.local/a"]),
    ],
)
def test_mirror_sets_of_one_source_are_one_rule(reference: str, expected: list[str]) -> None:
    rules = parse_registries_conf(MIRROR_SETS)
    assert [str(each) for each in rules.endpoints(parse_reference(reference))] == expected


def test_mirror_sets_in_json() -> None:
    spec = {"imageTagMirrors": [{"source": "a", "mirrors": ["b"]}]}
    rules = parse_registries_conf(json.dumps({"kind": "ImageTagMirrorSet", "spec": spec}))
    assert [str(each) for each in rules.endpoints(parse_reference("a/c:1"))] == ["b/c", "a/c"]


TAGS = "kind: ImageTagMirrorSet\nspec: {imageTagMirrors: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kind: [\n\n", "must be YAML or TOML; see line 3, column 1"),
        ("kind: \x01", "must be YAML or TOML"),
        (f"kind: {'[' * 1_000}", "must be YAML or TOML"),
        ("kind: CatalogSource", "document 1: kind must be one of ImageDigestMirrorSet, ImageTagMirrorSet, "),
        (f"{TAGS}[]}}\n---\nkind: []", "document 2: kind must be one of"),
        ("kind: List\nitems:\n- 5", "document 1, item 1: kind must be one of"),
        ("kind: List", "document 1: kind must be one of"),
        ("- kind: ImageTagMirrorSet", "document 1: kind must be one of"),
        ("kind: ImageTagMirrorSet\nspec: 5", "spec.imageTagMirrors must be a list of objects"),
        ("kind: ImageTagMirrorSet\nspec: {imageDigestMirrors: []}", "spec.imageTagMirrors must be a list"),
        (f"{TAGS}[5]}}", "spec.imageTagMirrors must be a list of objects"),
        (f"{TAGS}[{{mirrors: [a]}}]}}", "document 1: each entry must have a source"),
        (f"{TAGS}[{{source: [a]}}]}}", "source must be host"),
        (f"{TAGS}[{{source: 'https://a'}}]}}", "source must be host.*without a scheme"),
        (f"{TAGS}[{{source: a, mirrors: b}}]}}", "source a: mirrors must be a list of host"),
        (f"{TAGS}[{{source: a, mirrors: ['']}}]}}", "source a: mirrors must be a list of host"),
        (f"{TAGS}[{{source: a, mirrors: ['oci://b']}}]}}", "mirror must be host.*without a scheme"),
        (
            f"{TAGS}[{{source: a, mirrorSourcePolicy: Never}}]}}",
            "must be one of AllowContactingSource, Never",
        ),
        (f"{TAGS}[{{source: a, mirrorSourcePolicy: [a]}}]}}", "source a: mirrorSourcePolicy must be one of"),
    ],
)
def test_faults_of_mirror_sets(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_registries_conf(text)


def test_each_object_with_a_fault_is_named() -> None:
    with pytest.raises(ValueError, match="must be one of") as caught:
        parse_registries_conf("kind: A\n---\nkind: B")
    assert [str(each).partition(":")[0] for each in caught.value.args] == ["document 1", "document 2"]
