"""Mirrors of registries by the rules of ``containers-registries.conf(5)``, version 2, or by mirror sets.

A disconnected site has both already: ``oc mirror`` writes mirror sets, of which OpenShift makes the file of
each node. Names without a registry, aliases and credential helpers are ignored: they are for use by hand.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.common.registry.references import ImageReference

_PULLS = ("all", "digest-only", "tag-only")
_KIND = re.compile(r"""\bkind["']?\s*:""")
_MIRROR_SETS = {
    "ImageDigestMirrorSet": ("imageDigestMirrors", "digest-only"),
    "ImageTagMirrorSet": ("imageTagMirrors", "tag-only"),
    "ImageContentSourcePolicy": ("repositoryDigestMirrors", "digest-only"),
}
_SOURCE_POLICIES = ("AllowContactingSource", "NeverContactSource")


@attrs.frozen
class Endpoint:
    """A repository where an image may be.

    Args:
        registry: host and port.
        is_insecure: its certificate is not verified, and it may speak plain HTTP.
    """

    registry: str
    repository: str
    is_insecure: bool = False

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}"


@attrs.frozen
class _Mirror:
    location: str
    is_insecure: bool
    pulls: str


@attrs.frozen
class _Rule:
    prefix: str
    location: str
    is_insecure: bool
    is_blocked: bool
    mirrors: tuple[_Mirror, ...]

    def matched(self, name: str) -> str | None:
        """Return the part of a name that the prefix stands for; None: it does not match."""
        if self.prefix.startswith("*."):
            suffix = self.prefix[1:]
            before, found, after = name.partition(suffix)
            is_matched = found and before and "/" not in before and after[:1] in {"", "/", ":"}
            return f"{before}{suffix}" if is_matched else None
        return self.prefix if f"{name}/".startswith(f"{self.prefix}/") else None


@attrs.frozen
class RegistryRules:
    """Where images are in the place of where their names say."""

    rules: tuple[_Rule, ...] = ()

    def endpoints(
        self, reference: ImageReference, insecure: frozenset[str] = frozenset()
    ) -> tuple[Endpoint, ...]:
        """Return where an image may be: mirrors in their order, its own repository last.

        Args:
            insecure: registries that are insecure by name, beside those of the rules.

        Raises:
            FormatError: a rule blocks it, and has no mirror for it.
        """
        name = f"{reference.registry}/{reference.repository}"
        matches = [(rule, matched) for rule in self.rules if (matched := rule.matched(name)) is not None]
        if not matches:
            return (Endpoint(reference.registry, reference.repository, reference.registry in insecure),)
        rule, matched = max(matches, key=lambda match: len(match[1]))
        wrong = "tag-only" if reference.digest else "digest-only"
        places = [(each.location, each.is_insecure) for each in rule.mirrors if each.pulls != wrong]
        source = rule.location or matched
        if rule.is_blocked:  # the source alone, not its mirrors
            places = [place for place in places if place[0] != source]
            if not places:
                named = "digest" if reference.digest else "tag"
                why = f", and it has no mirror for images named by {named}" if rule.mirrors else ""
                raise FormatError(f"registries.conf blocks {rule.prefix}{why}")
        else:
            places.append((source, rule.is_insecure))
        found = []
        for location, is_insecure in places:
            registry, _, repository = f"{location}{name[len(matched) :]}".partition("/")
            found.append(Endpoint(registry, repository, is_insecure or registry in insecure))
        return tuple(dict.fromkeys(found))


def parse_registries_conf(text: str) -> RegistryRules:
    """Return the rules of a file: ``registries.conf``, or mirror sets in YAML or JSON.

    Raises:
        ValueError: it is not such a file; one argument per fault.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if _KIND.search(text):
            return _parse_mirror_sets(text)
        raise ValueError(f"must be TOML, or YAML of mirror sets: {error}") from None
    if "registries" in document:
        raise ValueError("must be in version 2 of the format, with [[registry]], not [registries.search]")
    entries = document.get("registry", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("registry must be a list of tables: [[registry]]")
    rules, faults = [], []
    for entry in entries:
        try:
            rules.append(_parse_rule(entry))
        except ValueError as error:
            faults.append(f"registry {entry.get('prefix') or entry.get('location')!s:.100}: {error}")
    if faults:
        raise ValueError(*faults)
    return RegistryRules(tuple(rules))


def _parse_rule(entry: Mapping[str, Any]) -> _Rule:
    location, prefix = _place(entry, "location"), _place(entry, "prefix")
    if not (prefix or location):
        raise ValueError("must have a prefix or a location")
    if prefix.startswith("*.") and location:
        raise ValueError("must have no location beside a prefix that begins with *.")
    only_digests = _flag(entry, "mirror-by-digest-only")
    mirrors = entry.get("mirror", [])
    if not isinstance(mirrors, list) or not all(isinstance(mirror, dict) for mirror in mirrors):
        raise ValueError("mirror must be a list of tables: [[registry.mirror]]")
    return _Rule(
        prefix or location,
        location,
        _flag(entry, "insecure"),
        _flag(entry, "blocked"),
        tuple(_parse_mirror(mirror, only_digests=only_digests) for mirror in mirrors),
    )


def _parse_mirror(entry: Mapping[str, Any], *, only_digests: bool) -> _Mirror:
    location = _place(entry, "location")
    if not location:
        raise ValueError("each mirror must have a location")
    pulls = entry.get("pull-from-mirror", "all")
    if pulls not in _PULLS:
        raise ValueError(f"pull-from-mirror must be one of {', '.join(_PULLS)}")
    return _Mirror(location, _flag(entry, "insecure"), "digest-only" if only_digests else pulls)


def _parse_mirror_sets(text: str) -> RegistryRules:
    """Return one rule per source: its mirrors in the order of the file, whichever set they are in."""
    rules: dict[str, _Rule] = {}
    faults = []
    for name, document in _read_objects(text):
        try:
            for rule in _parse_mirror_set(document):
                known = rules.get(rule.prefix, rule)
                rules[rule.prefix] = attrs.evolve(
                    rule,
                    is_blocked=known.is_blocked or rule.is_blocked,
                    mirrors=tuple(dict.fromkeys((*known.mirrors, *rule.mirrors))),
                )
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise ValueError(*faults)
    return RegistryRules(tuple(rules.values()))


def _read_objects(text: str) -> Iterator[tuple[str, object]]:
    """Yield the objects of a file, and of the lists in it, with names for faults; each scalar is a text.

    The parser is the one in Python: the one in C follows nested lists until its stack ends.
    """
    import yaml  # noqa: PLC0415 - slow to import, and few have mirror sets

    try:
        documents = list(yaml.load_all(text, yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"; see line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"must be YAML or TOML{place}") from None
    except (yaml.YAMLError, RecursionError):
        raise ValueError("must be YAML or TOML") from None
    for number, document in enumerate(documents, 1):
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        items = document.get("items") if is_list else None
        if isinstance(items, list):
            yield from ((f"document {number}, item {index}", item) for index, item in enumerate(items, 1))
        elif document:
            yield f"document {number}", document


def _parse_mirror_set(document: object) -> Iterator[_Rule]:
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(document, dict) or kind not in tuple(_MIRROR_SETS):
        raise ValueError(f"kind must be one of {', '.join(_MIRROR_SETS)}")
    member, pulls = _MIRROR_SETS[kind]
    spec = document.get("spec")
    entries = spec.get(member) if isinstance(spec, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"spec.{member} must be a list of objects")
    return (_parse_source(entry, pulls) for entry in entries)


def _parse_source(entry: Mapping[str, Any], pulls: str) -> _Rule:
    source = _place(entry, "source")
    if not source:
        raise ValueError("each entry must have a source")
    mirrors = entry.get("mirrors") or []
    places = [_place({"mirror": each}, "mirror") for each in mirrors] if isinstance(mirrors, list) else [""]
    if not all(places):
        raise ValueError(f"source {source:.100}: mirrors must be a list of host[:port][/path]")
    policy = entry.get("mirrorSourcePolicy") or "AllowContactingSource"
    if policy not in _SOURCE_POLICIES:
        raise ValueError(
            f"source {source:.100}: mirrorSourcePolicy must be one of {', '.join(_SOURCE_POLICIES)}"
        )
    return _Rule(
        prefix=source,
        location="",
        is_insecure=False,
        is_blocked=policy == "NeverContactSource",
        mirrors=tuple(_Mirror(place, is_insecure=False, pulls=pulls) for place in places),
    )


def _place(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str) or "://" in value or "@" in value:
        raise ValueError(f"{name} must be host[:port][/path], without a scheme")
    return value.rstrip("/")


def _flag(entry: Mapping[str, Any], name: str) -> bool:
    value = entry.get(name, False)
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false")
    return value
