"""Caches know clients by the digests of their credentials: no key of any of them leads to a secret."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING

import attrs

from image_service.core.images.reference import (
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    Reader,
)
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.server.snapshots.doubles import REF, VERSION, World, infra_env_of
from tests.server.snapshots.mounting import Client, etag_of, say

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cr3t-of-a-client"
OPEN = attrs.evolve(REF, version=None, architecture=None, kind=None)
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def reachable(*roots: object) -> Iterator[object]:
    """All objects that objects lead to, but code."""
    seen: set[int] = set()
    pending = [each for each in roots if not isinstance(each, CODE)]
    while pending:
        found = pending.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            pending += [each for each in gc.get_referents(found) if not isinstance(each, CODE)]


def clients(world: World) -> list[Client]:
    credentials = [Credentials(scheme, SECRET) for scheme in CredentialScheme]
    refs = (REF, OPEN, ArtifactRef(BootArtifact.KERNEL, VERSION, "x86_64"))
    return [Client(world, credentials=each, ref=ref) for each in credentials for ref in refs]


def test_no_key_of_a_cache_leads_to_a_secret(world: World) -> None:
    world.assisted.reported = infra_env_of((), VERSION)
    for client in clients(world):
        etag = etag_of(client.range())
        client.named(etag)
        client.head()
    world.assisted.held = []
    for client in clients(world):  # work in progress has keys, too
        world.images.get(ImageRequest(attrs.evolve(client, address="192.0.2.7").reader))
    world.clock.advance(61)
    for client in clients(world):
        world.images.get(ImageRequest(client.reader, ReadMode.RESUME)).addErrback(lambda _: None)
    mappings = [each for each in reachable(world.images) if isinstance(each, dict)]
    keys = [key for mapping in mappings for key in mapping if not isinstance(key, str)]
    assert any(isinstance(key, tuple) for key in keys), "they have been found"
    assert not any(isinstance(each, str) and SECRET in each for each in reachable(*keys))
    strings = [key for mapping in mappings for key in mapping if isinstance(key, str)]
    assert not any(SECRET in key for key in strings)
    world.assisted.release()


def test_representations_show_no_secret(world: World) -> None:
    world.assisted.reported = infra_env_of((f"{SECRET}-argument",), VERSION)
    say(world, f"{SECRET}-text")
    client = clients(world)[0]
    composed = client.range()
    snapshot = composed.version.snapshot
    assert snapshot is not None
    world.clock.advance(1)
    client.range()
    shown = [
        composed,
        client.reader,
        client.reader.key,
        ImageRequest(client.reader),
        snapshot,
        snapshot.validity,
    ]
    shown += world.images.mounts.unsaved()
    assert SECRET not in repr(shown)
    assert SECRET not in repr(Reader("192.0.2.1", Credentials(CredentialScheme.API_KEY, SECRET), REF))
