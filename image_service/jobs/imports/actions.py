"""The steps of an import that this service carries out: await the upload, and delete it at the end."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.logger import Logger

from image_service.common.transfer.bundle_manifest import BundleManifest, is_bundle
from image_service.common.transfer.client import (
    ObjectAbsent,
    RedirectRefused,
    TransferClient,
    TransferTimes,
)
from image_service.common.transfer.manifest import parse_import_manifest
from image_service.common.transfer.uploaded_parts import (
    check_bundle_part,
    check_part,
    delete_parts,
    read_manifest_text,
)
from image_service.core.errors import BaseImageError, NotFound, TransferFailed, Unavailable, Unprocessable
from image_service.jobs.artifacts.actions import StepResult
from image_service.jobs.database.statements import utc_now
from image_service.jobs.imports.expected_disk import ExpectedDisk
from image_service.jobs.model import JobError, JobErrorId
from image_service.jobs.plans.import_plan import AWAIT_UPLOAD, DELETE_UPLOAD, WAITS_FOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.http.origins import AllowedOrigins
    from image_service.jobs.artifacts.actions import ServerAction
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.model import Compose, Step
    from image_service.jobs.task_model import ImportSource

_log = Logger()

THREADS = 8
"""Looks and deletions at a time; further looks come later."""
MOST_OF_TENANT = THREADS // 2
"""Looks of one tenant at a time: one at a manifest of many parts takes long."""
TIMES = TransferTimes(
    connect_seconds=5, stall_seconds=10, request_seconds=30, least_rate=256 * 1024, outage_seconds=120
)
"""Of looks, which have one attempt, and of deletions."""
_DELETION_SECONDS = 3600  # less than a step may take: an import whose last step fails would lose its images


@attrs.define(eq=False)
class ImportActions:
    """The actions of imports.

    Args:
        in_thread: reads rows and sends requests; it has `THREADS`.
        composes: have the sources of imports.
        allowed: object stores.
        poll_seconds: between two looks for an upload.
        has_bundle_key: image bundles can be decrypted.
        now: in UTC.
    """

    _in_thread: InThread
    _composes: ComposeRepository
    _allowed: AllowedOrigins
    _client: TransferClient
    _poll_seconds: int
    _has_bundle_key: bool
    _now: Callable[[], datetime] = utc_now
    _looking: Counter[str] = attrs.field(factory=Counter, init=False)  # by tenant

    @property
    def by_name(self) -> Mapping[str, ServerAction]:
        """The actions by their names in plans."""
        return {AWAIT_UPLOAD: self.await_upload, DELETE_UPLOAD: self.delete_upload}

    async def await_upload(self, compose: Compose, step: Step) -> StepResult:
        """Look for manifests and parts; once all are there, pin the manifests, whose URLs are checked first.

        Raises:
            Unavailable: the upload is not complete; has the time of the next look.
        """
        if self._looking.total() >= THREADS or self._looking[compose.tenant] >= MOST_OF_TENANT:
            raise self._not_yet()
        self._looking[compose.tenant] += 1
        try:
            await self._in_thread(partial(self._pin, compose, step))
        except (BaseImageError, Unprocessable, RedirectRefused) as error:
            return _refused(step, error.detail)
        except TransferFailed as error:
            if self._now().timestamp() > float(str(step.arguments["expires_at"])):
                return _refused(step, f"the upload was not complete in time: {error.detail}")
            await self._record_wait(compose, step, "" if isinstance(error, ObjectAbsent) else error.detail)
            raise self._not_yet() from None
        finally:
            self._looking[compose.tenant] -= 1
        return StepResult()

    async def delete_upload(self, compose: Compose, _: Step) -> StepResult:
        """Delete the upload from its object store; objects that cannot be deleted are logged."""
        notes = await self._in_thread(partial(self._delete, compose))
        if notes:
            _log.warn(
                "import {compose} leaves {count} objects of its upload; the first: {note}",
                compose=compose.id,
                count=len(notes),
                note=notes[0],
            )
        return StepResult()

    async def _record_wait(self, compose: Compose, step: Step, reason: str) -> None:
        """Record why an upload is awaited, if it is for another reason than before.

        Args:
            reason: for the client; "": it is not there.
        """
        facts = compose.provenance.get(step.name)
        if facts == {WAITS_FOR: reason}:
            return
        if reason or facts is None:
            shown = reason or "it is not there yet"
            _log.info("import {compose} awaits its upload: {reason}", compose=compose.id, reason=shown)
        provenance = {**compose.provenance, step.name: {WAITS_FOR: reason}}
        await self._in_thread(partial(self._composes.set_provenance, compose.id, provenance))

    def _not_yet(self) -> Unavailable:
        return Unavailable("the upload is awaited", retry_after_seconds=self._poll_seconds)

    def _pin(self, compose: Compose, step: Step) -> None:
        """Pin the manifests of an import, unless they are; raises as `_check_upload`."""
        source = self._find_source(compose)
        if source.manifests:
            return
        disks: Any = step.arguments["disks"]
        pairs = zip(source.manifest_urls, map(ExpectedDisk.from_arguments, disks), strict=True)
        manifests = tuple(self._check_upload(url, disk) for url, disk in pairs)
        self._composes.pin_manifests(compose, attrs.evolve(source, manifests=manifests))

    def _check_upload(self, manifest_url: str, disk: ExpectedDisk) -> bytes:
        """Return the manifest of a disk whose upload is complete.

        Raises:
            TransferFailed: the manifest or a part is not there.
            BaseImageError, Unprocessable, RedirectRefused: it can never be imported.
        """
        text = read_manifest_text(self._client, manifest_url)
        manifest = disk.parse_manifest(text, manifest_url, self._allowed, has_bundle_key=self._has_bundle_key)
        # Clients upload in order: most looks need to ask for the last part only.
        if isinstance(manifest, BundleManifest):
            for bundle_part in reversed(manifest.parts):
                check_bundle_part(self._client, manifest_url, bundle_part)
        else:
            for part in reversed(manifest.parts):
                check_part(self._client, part)
        return text

    def _delete(self, compose: Compose) -> list[str]:
        """Delete parts and manifests; return a note for each object that stays. A bundle has no such URLs."""
        texts = [text for text in self._find_source(compose).manifests if not is_bundle(text)]
        deadline = time.monotonic() + _DELETION_SECONDS
        manifests = map(parse_import_manifest, texts)
        return [note for each in manifests for note in delete_parts(each, self._client, deadline)]

    def _find_source(self, compose: Compose) -> ImportSource:
        source = self._composes.import_source(compose)
        if source is None:
            raise NotFound(f"the source of import {compose.id} was erased, because it has ended")
        return source


def _refused(step: Step, reason: str) -> StepResult:
    return StepResult(error=JobError(JobErrorId.INVALID_CUSTOMIZATION, f"step {step.name}: {reason}"))
