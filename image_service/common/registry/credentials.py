"""Credentials of registries: ``containers-auth.json(5)``, Docker's ``config.json``, pull secrets: one form.

An entry is for a registry, or for the repositories below a prefix; the longest prefix counts.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DOCKER_HOSTS = {"index.docker.io", "registry-1.docker.io"}


@attrs.frozen
class RegistryCredentials:
    """User and password, or a token to get others with.

    Args:
        identity_token: empty: there is a password.
    """

    user: str = attrs.field(repr=False)
    password: str = attrs.field(repr=False)
    identity_token: str = attrs.field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of Authorization."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


@attrs.frozen
class CredentialStore:
    """The credentials of several files.

    Args:
        by_prefix: ``HOST[:PORT]`` or ``HOST[:PORT]/PATH``.
    """

    by_prefix: Mapping[str, RegistryCredentials] = attrs.field(factory=dict, repr=False)

    @classmethod
    def merge(cls, stores: Iterable[CredentialStore]) -> CredentialStore:
        """Return all entries; of those for one prefix, the first."""
        merged: dict[str, RegistryCredentials] = {}
        for store in stores:
            merged = {**store.by_prefix, **merged}
        return cls(merged)

    def find(self, registry: str, repository: str) -> RegistryCredentials | None:
        """Return the credentials for a repository; None: there are none."""
        parts = [normalize_host(registry), *repository.split("/")]
        for count in range(len(parts), 0, -1):
            if found := self.by_prefix.get("/".join(parts[:count])):
                return found
        return None


def normalize_host(host: str) -> str:
    """Return the name of a registry that all its names stand for."""
    host = host.lower().removesuffix(":443")
    return "docker.io" if host in _DOCKER_HOSTS else host


def parse_auth_file(text: str) -> CredentialStore:
    """Return the credentials in a file.

    Raises:
        ValueError: it is not such a file; one argument per fault, none with a credential.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("must be JSON") from None
    members = document if isinstance(document, dict) else {}
    auths = members.get("auths")
    if type(auths) is not dict:
        hint = ""
        if {"credsStore", "credHelpers"} & members.keys():
            hint = "; credentials in the store of a helper program are not read: log in with --authfile"
        raise ValueError(f'must be a JSON object with the member "auths"{hint}')
    found, faults = {}, []
    for name, entry in auths.items():
        prefix = re.sub(r"^https?://", "", name).removesuffix("/")
        prefix = re.sub(r"/v[12]$", "", prefix)
        host, slash, path = prefix.partition("/")
        try:
            credentials = _parse_entry(entry)
        except ValueError as error:
            faults.append(f"the entry for {prefix:.100} {error}")
            continue
        if credentials is not None:
            found[f"{normalize_host(host)}{slash}{path}"] = credentials
    if faults:
        raise ValueError(*faults)
    return CredentialStore(found)


def _parse_entry(entry: object) -> RegistryCredentials | None:
    """Return the credentials of an entry; None: it has none, as where a helper program keeps them."""
    if type(entry) is not dict:
        raise ValueError("must be an object")
    members = {name: entry.get(name) or "" for name in ("auth", "username", "password", "identitytoken")}
    if not all(isinstance(member, str) for member in members.values()):
        raise ValueError("must have strings alone")
    user, password = members["username"], members["password"]
    if members["auth"]:
        try:
            user, colon, password = base64.b64decode(members["auth"], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise ValueError('must have "auth": user:password in base64')
        password = password.rstrip("\0")
    if not (user or members["identitytoken"]):
        return None
    return RegistryCredentials(user, password, members["identitytoken"])
