"""Mutations: faults put into the product's code, each of which the simulation has to find.

`python -m tests.simulation.mutations NAME` carries histories out with one of them; the exit status is 1 if
one of them has a fault, which is shortened if `--shorten` follows.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@attrs.frozen
class Mutation:
    """A change of the code of one module.

    Args:
        world: whose histories find it.
    """

    name: str
    kind: str
    module: str
    before: str
    after: str
    world: str = "replicas"

    @property
    def module_name(self) -> str:
        """The module's full name."""
        return f"image_service.{self.module}"

    def apply(self, source: str) -> str:
        """Return the source of the module with the fault; the code must be there once."""
        if source.count(self.before) != 1:
            msg = f"{self.name}: {self.before!r} is {source.count(self.before)} times in {self.module}"
            raise ValueError(msg)
        return source.replace(self.before, self.after)


MUTATIONS = (
    Mutation(
        "claims are granted twice",
        "dropped check",
        "server.snapshots.replicas.claims",
        "            where=sa.or_(CLAIMS.c.expires_at < _CLOCK, CLAIMS.c.holder == insert.excluded.holder),\n",
        "            where=sa.true(),\n",
    ),
    Mutation(
        "claims are not released",
        "lost write",
        "server.snapshots.replicas.outbox",
        "        claims.release(connection, list(self.released))\n",
        "",
    ),
    Mutation(
        "who waits for a claim is not woken",
        "lost wake-up",
        "server.snapshots.replicas.coordination",
        "                free.callback(None)\n",
        "                _ = free\n",
    ),
    Mutation(
        "changes are not announced",
        "lost write",
        "server.snapshots.replicas.outbox",
        "        changes.write(connection, self.changes)\n",
        "",
    ),
    Mutation(
        "a bump stays on its host",
        "lost wake-up",
        "server.snapshots.replicas.coordination",
        "        self._outbox.change(key, counter)\n",
        "",
    ),
    Mutation(
        "a response does not wait for its mount",
        "swapped order",
        "server.snapshots.mounts",
        "        mount.saving = self._coordination.until_visible(saved, *bumped)\n",
        "        mount.saving = None\n",
    ),
    Mutation(
        "a mount is not stored",
        "lost write",
        "server.snapshots.mounts",
        "            self._start_saving(mount, self._save_start(reader, mount.reader, version, inf), mount.reader)\n",
        "            mount.saved_at = now\n",
    ),
    Mutation(
        "a mount that was not stored is taken for stored",
        "dropped check",
        "server.snapshots.mounts",
        "            if not is_known and mount is not None:\n",
        "            if not is_version and mount is not None:\n",
    ),
    Mutation(
        "what others serve a reader is not heard",
        "dropped check",
        "server.snapshots.mounts",
        "        return is_current and self._is_in_progress(mount)\n",
        "        return self._is_in_progress(mount)\n",
    ),
    Mutation(
        "a mount may change its base",
        "dropped check",
        "server.snapshots.resolver",
        "            if base.sha256 == sha256:\n                return base\n",
        "            return base\n",
    ),
    Mutation(
        "images wait without end",
        "dropped limit",
        "server.snapshots.image_finder",
        "        found = Deferred.fromCoroutine(self._get_for_caller(request, request_id))\n        return shielded(found).addTimeout(TIMEOUT_SECONDS, self._clock, _raise_timeout)\n",
        "        return Deferred.fromCoroutine(self._get_for_caller(request, request_id))\n",
    ),
    Mutation(
        "questions of all tokens share a key",
        "dropped field",
        "server.snapshots.storage.snapshot",
        "        return SnapshotKey(self.infra_env_id, self.kind, digest_of(self.credentials))\n",
        "        return SnapshotKey(self.infra_env_id, self.kind, None)\n",
    ),
    Mutation(
        "composed images forget their snapshot",
        "dropped field",
        "server.snapshots.versions",
        "base.architecture, self.snapshot)",
        "base.architecture)",
    ),
    Mutation(
        "answers are valid forever",
        "dropped check",
        "server.snapshots.cache.validation",
        "        is_within_ttl = since <= now < since + self._settings.ttl_seconds\n",
        "        is_within_ttl = since <= now\n",
    ),
    Mutation(
        "refusals are ignored",
        "dropped check",
        "server.snapshots.cache.validation",
        "                await self._cache.refuse(entry, error)\n",
        "                _ = error\n",
    ),
    Mutation(
        "all answers count as equal",
        "dropped check",
        "server.snapshots.cache.validation",
        "        is_same = await self._repository.is_same(snapshot, customization)\n",
        "        is_same = True\n",
    ),
    Mutation(
        "a refused image is never asked for again",
        "lost wake-up",
        "server.snapshots.cache.validation",
        "        if now >= validity.retry_at or (",
        "        if (now >= validity.retry_at and not validity.is_refused) or (",
    ),
    Mutation(
        "an unlocked key is asked for",
        "dropped lock",
        "server.snapshots.cache.validation",
        "            async with self._coordination.lock(entry.snapshot.stored_key) as is_held:\n                current = await self._cache.refresh(entry)\n                if current",
        "            is_held = bool\n            if True:\n                current = await self._cache.refresh(entry)\n                if current",
    ),
    Mutation(
        "first answers are asked without a lock",
        "dropped lock",
        "server.snapshots.snapshots",
        "        async with self._coordination.lock(seal.key) as is_held:\n",
        "        is_held = lambda: True\n        if True:\n",
    ),
    Mutation(
        "an attempt is never over",
        "lost wake-up",
        "common.concurrency.single_flight",
        "lambda result: share(result, self._waiters.pop(key)))",
        "lambda result: share(result, self._waiters[key]))",
    ),
    Mutation(
        "the breaker never closes",
        "lost wake-up",
        "common.concurrency.circuit_breaker",
        "            self._pending -= 1\n",
        "            pass\n",
    ),
    Mutation(
        "readers of all tokens are one",
        "dropped field",
        "core.images.reference",
        "        return self.address, digest_of(self.credentials), self.ref, self.pin\n",
        "        return self.address, None, self.ref, self.pin\n",
    ),
    Mutation(
        "stored instants are read as now",
        "wrong conversion",
        "server.snapshots.storage.stored_time",
        "        return min(stored_at - self.offset(), self._clock.seconds())\n",
        "        return self._clock.seconds()\n",
    ),
    Mutation(
        "stored instants are of the host's clock",
        "wrong clock",
        "common.database.monitor",
        "        return self._clock.seconds() + self._offset\n",
        "        return time.time()\n",
    ),
    Mutation(
        "claims of the dead never expire",
        "dropped check",
        "server.snapshots.replicas.claims",
        "            where=sa.or_(CLAIMS.c.expires_at < _CLOCK, CLAIMS.c.holder == insert.excluded.holder),\n",
        "            where=CLAIMS.c.holder == insert.excluded.holder,\n",
    ),
    Mutation(
        "mounts end at once",
        "dropped check",
        "server.snapshots.mounts",
        "        return mount.responses > 0 or self._clock.seconds() <= mount.read_at + self.window_seconds\n",
        "        return mount.responses > 0\n",
    ),
    Mutation(
        "responses wait for their mount without end",
        "dropped limit",
        "server.snapshots.image_finder",
        "shielded(mount.saving).addTimeout(left_seconds, self._clock, _raise_unsaved)",
        "shielded(mount.saving)",
    ),
    Mutation(
        "refusals are remembered forever",
        "dropped check",
        "common.concurrency.negative_cache",
        "        if error is not None and self._clock.seconds() < until:\n",
        "        if error is not None:\n",
    ),
    Mutation(
        "a batch that fails is dropped",
        "lost write",
        "server.snapshots.replicas.outbox",
        "            batch.put_before(self._next, self._clock.seconds())\n",
        "",
    ),
    Mutation(
        "changes are not read",
        "lost wake-up",
        "server.snapshots.replicas.changes",
        "    return {row.id: row.payload for row in connection.execute(_READ)}\n",
        "    return {}\n",
    ),
    Mutation(
        "a lookup outlives a change",
        "dropped check",
        "server.snapshots.lookups",
        "        if not self._is_unchanged():\n            return None\n        mount.read_at = now\n",
        "        mount.read_at = now\n",
    ),
    Mutation(
        "the state of a download is stored before its bytes",
        "swapped order",
        "server.catalog.download.partial_file",
        "        os.fsync(self._file.fileno())\n",
        "",
        "downloads",
    ),
    Mutation(
        "parts of two versions are combined",
        "dropped check",
        "server.catalog.download.downloader",
        '        is_same = response.field("ETag") == known.etag\n',
        "        is_same = True\n",
        "downloads",
    ),
    Mutation(
        "blocks are trusted after a power failure",
        "dropped check",
        "common.files.block_cache.version_files",
        "        if written != current:\n",
        "        if written > current:\n",
        "blocks",
    ),
    Mutation(
        "digests of blocks are not checked",
        "dropped check",
        "common.files.block_cache.source",
        "        if hashlib.sha256(data).digest() != self.digests[start : start + SHA256_BYTES]:\n",
        "        if not data:\n",
        "blocks",
    ),
    Mutation(
        "blocks that are evicted stay present",
        "lost write",
        "common.files.block_cache.budget",
        "            version.present[granule] = ABSENT\n            version.used[granule] = EVICTED\n",
        "            version.used[granule] = EVICTED\n",
        "blocks",
    ),
    Mutation(
        "blocks are written without regard to the budget",
        "dropped limit",
        "common.files.block_cache.budget",
        "            if self._used_bytes() + count > self.max_bytes * HIGH:\n",
        "            if count > self.max_bytes * HIGH:\n",
        "blocks",
    ),
    Mutation(
        "a compose that has ended goes on",
        "dropped check",
        "jobs.database.composes",
        "    return sa.update(COMPOSES).where(COMPOSES.c.id == compose_id, UNFINISHED)\n",
        "    return sa.update(COMPOSES).where(COMPOSES.c.id == compose_id)\n",
        "jobs",
    ),
    Mutation(
        "composes that nobody has started wait",
        "lost wake-up",
        "jobs.dispatch.upkeep",
        "        for compose_id in await self._in_thread(find):\n",
        "        for compose_id in (await self._in_thread(find))[:0]:\n",
        "jobs",
    ),
    Mutation(
        "permits of killed replicas never expire",
        "dropped check",
        "jobs.database.job_queues",
        "        return PERMITS.c.expires_at.between(now, now + _LONGEST)\n",
        "        return PERMITS.c.expires_at != now\n",
        "jobs",
    ),
    Mutation(
        "composes of a clock that is ahead wait",
        "dropped check",
        "jobs.database.composes",
        "        is_due = (COMPOSES.c.created_at < before) | (COMPOSES.c.created_at > before + _CLOCK_STEP)\n",
        "        is_due = COMPOSES.c.created_at < before\n",
        "jobs",
    ),
    Mutation(
        "composes whose plan is lost do not end",
        "lost wake-up",
        "jobs.dispatch.upkeep",
        "        for compose_id in ids:\n",
        "        for compose_id in ids[:0]:\n",
        "jobs",
    ),
)


class _MutatingLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, mutation: Mutation) -> None:
        super().__init__(name, path)
        self._mutation = mutation

    def get_data(self, path: str) -> bytes:
        """Return the mutated source; nothing is found in place of compiled code."""
        if path != self.path:
            raise FileNotFoundError(path)
        return self._mutation.apply(Path(path).read_text()).encode()

    def set_data(self, *_: object, **__: object) -> None:
        """Keep no compiled code."""


class MutatingFinder(MetaPathFinder):
    """Finds the module of a mutation, mutated."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `MetaPathFinder.find_spec`."""
        if fullname != self._mutation.module_name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _MutatingLoader(fullname, spec.origin, self._mutation)
        return spec


def main() -> None:
    """Carry out histories with the mutation that is named."""
    (mutation,) = (mutation for mutation in MUTATIONS if mutation.name == sys.argv[1])
    sys.meta_path.insert(0, MutatingFinder(mutation))
    from tests.simulation.__main__ import carry_out  # noqa: PLC0415 - after the finder
    from tests.simulation.kinds import KINDS  # noqa: PLC0415 - same

    numbers = {mutation.world: KINDS[mutation.world].number}
    carry_out(0, numbers, is_quiet="--shorten" not in sys.argv, processes=1)


if __name__ == "__main__":
    main()
