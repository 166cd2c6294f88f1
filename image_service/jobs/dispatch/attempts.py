"""Attempts that workers have: heartbeats, files, inputs and ends, each by its token."""

from __future__ import annotations

import stat
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.common.concurrency.single_flight import shielded
from image_service.core.errors import (
    BudgetExceeded,
    Forbidden,
    InvalidRequest,
    JobNotRunning,
    JobTokenUnknown,
    NotFound,
    RowNotAuthentic,
)
from image_service.jobs.dispatch.results import ARTIFACT_NAME, WorkerResult
from image_service.jobs.model import Artifact, JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.objects.store import ObjectStorage, StoredObject
    from image_service.jobs.artifacts.contents import Content, Contents
    from image_service.jobs.dispatch.rows import DispatchRows
    from image_service.jobs.dispatch.tokens import JobToken, JobTokens
    from image_service.jobs.dispatch.upload_slots import UploadSlots
    from image_service.jobs.engine.engine import Engine
    from image_service.jobs.model import Compose, Job, JobProgress
    from image_service.jobs.principal import Principal
    from image_service.server.web_api.request_content import RequestContent

_UNKNOWN = "no present attempt of a job has this token"
_log = Logger()


@attrs.frozen(eq=False)
class ArtifactUploads:
    """Stores the files of workers. A thread is used while bytes are written, not while they are received.

    Args:
        in_thread: runs writes, which may take long, in other threads than those of the rows.
        slots: of the files that are received at a time.
        scratch: the directory in which the built-in worker makes its files.
    """

    _storage: ObjectStorage
    _in_thread: InThread
    slots: UploadSlots
    _scratch: Path

    async def size_of(self, path: Path) -> int:
        """Return the size of a file of the built-in worker; InvalidRequest: it has no such file."""

        def examine() -> int:
            with suppress(OSError, RuntimeError):  # the latter: links in a circle
                found = path.lstat()
                is_inside = path.resolve(strict=True).is_relative_to(self._scratch.resolve())
                if is_inside and stat.S_ISREG(found.st_mode):
                    return found.st_size
            raise InvalidRequest(f"the scratch of the built-in worker has no regular file {path}")

        return await self._in_thread(examine)

    async def link(self, key: str, path: Path, sha256: str) -> StoredObject | None:
        """Store a file of the built-in worker by its path; None: the store cannot link it."""
        return await self._in_thread(partial(self._storage.link_file, key, path, sha256))

    async def store(self, key: str, content: RequestContent, size: int | None, allowed: int) -> StoredObject:
        """Store content while it is received.

        Args:
            size: in bytes; None: not known.
            allowed: bytes that it may have.

        Raises:
            BudgetExceeded: it has more.
        """
        writer = await self._in_thread(partial(self._storage.begin, key, size))
        try:
            while chunk := await _read(content, allowed):
                allowed -= len(chunk)
                await self._in_thread(partial(writer.write, chunk))
            return await self._in_thread(writer.complete)
        except Exception:
            await self._in_thread(writer.abort)
            raise


@attrs.frozen(eq=False)
class WorkerAttempts:
    """The attempts that workers have.

    Each method takes the text of a token, and raises:

        JobTokenMalformed: it is not a token.
        JobTokenUnknown: its attempt is of another tenant, or not the present one.
        EngineUnavailable, StoreFailed: engine or rows do not answer.
    """

    _rows: DispatchRows
    _engine: Engine
    _contents: Contents
    _tokens: JobTokens
    _uploads: ArtifactUploads

    async def beat(self, principal: Principal, text: str, progress: JobProgress | None = None) -> bool:
        """Record a heartbeat of an attempt, with its progress; True: it is cancelled, and has to stop."""
        token = self._read(principal, text)
        is_present = await self._engine.heartbeat(token.engine_token)
        try:
            await self._find_running(token)
        except JobNotRunning:
            return True
        if not is_present:
            raise JobTokenUnknown(_UNKNOWN)
        if progress is not None:
            await self._rows.call(self._rows.jobs.record_progress, token.job_id, token.attempt, progress)
        return False

    async def finish(self, principal: Principal, text: str, result: WorkerResult) -> None:
        """End an attempt: its report becomes the result of the job if the engine accepts the end.

        Raises:
            InvalidRequest: a declared artifact was not uploaded, or is another.
            JobNotRunning: the job is cancelled.
        """
        token = self._read(principal, text)
        job = await self._find_running(token)
        error, accepted = result.error, list[Artifact]()
        if error is None:
            uploaded = await self._rows.call(self._rows.objects.find_artifacts, job.id, job.attempt)
            accepted = result.resolve((await self._find_compose(job, token)).step_of(job.id), uploaded)
        else:
            error = attrs.evolve(error, reason=f"step {job.step}: {error.reason}")
        report = job.id, job.attempt, accepted, result.facts
        if not await self._rows.call(self._rows.jobs.record_report, *report):
            raise JobTokenUnknown(_UNKNOWN)
        if not await self._engine.complete(token.engine_token, error):
            raise JobTokenUnknown(_UNKNOWN)
        _log.info(
            "job {job} of compose {compose} has ended: {step} {outcome}",
            job=job.id,
            compose=job.compose_id,
            step=job.step,
            outcome="failed" if error else "succeeded",
        )

    async def add_artifact(
        self, principal: Principal, text: str, name: str, content: RequestContent, size: int | None = None
    ) -> None:
        """Store a file of an attempt, which becomes an artifact when the attempt ends with it.

        Args:
            size: bytes of the content; None: not known.

        Raises:
            BudgetExceeded: the tenant has no room for it.
            InvalidRequest: the name is invalid, or the content ends too early, or came too slowly.
            Unavailable: the attempt sends too many files at a time.
            JobNotRunning: the job is cancelled.
            StoreFull: the object store has no room for it.
            StoreFailed: the object store does not answer.
        """
        job = await self._find_sender(principal, text, name)
        async with self._uploads.slots.slot(job.tenant, f"{job.id}/{job.attempt}", content):
            await self._store(
                job, name, size, lambda key, allowed: self._uploads.store(key, content, size, allowed)
            )

    async def take_artifact(
        self, principal: Principal, text: str, name: str, path: Path, sha256: str
    ) -> bool:
        """Store a file of the built-in worker, as `add_artifact` stores content.

        Args:
            path: of a file in the worker's scratch, which the worker does not change any more.
            sha256: of the file, lower-case hex; it is not checked.

        Returns:
            False: the store cannot link it; the worker has to send its content.

        Raises:
            Forbidden: the worker is another one.
            InvalidRequest: there is no such file in the scratch.
        """
        if not principal.is_built_in:
            raise Forbidden("only files of the built-in worker are taken; send the content by PUT")
        job = await self._find_sender(principal, text, name)
        size = await self._uploads.size_of(path)
        return await self._store(job, name, size, lambda key, _: self._uploads.link(key, path, sha256))

    async def open_input(self, principal: Principal, text: str, name: str) -> Content:
        """Open an input of a job; raises also as ``Contents.open_input``, and NotFound for other names."""
        token = self._read(principal, text)
        job = await self._find_running(token)
        compose = await self._find_compose(job, token)
        inputs = compose.step_of(job.id).inputs
        source = inputs.get(name)
        if source is None:
            raise NotFound(f"the job has no such input; its inputs are {', '.join(inputs) or 'none'}")
        return await self._contents.open_input(compose, source)

    def _read(self, principal: Principal, text: str) -> JobToken:
        token = self._tokens.read(text)
        if principal.is_operator or principal.tenant == token.tenant:
            return token
        raise JobTokenUnknown(_UNKNOWN)

    async def _find_sender(self, principal: Principal, text: str, name: str) -> Job:
        """Return the job of an artifact."""
        token = self._read(principal, text)
        if not ARTIFACT_NAME.fullmatch(name):
            raise InvalidRequest(f"the name of an artifact must be {ARTIFACT_NAME.pattern}")
        return await self._find_running(token)

    async def _find_running(self, token: JobToken) -> Job:
        try:
            job = await self._rows.call(self._rows.jobs.find, token.job_id)
        except RowNotAuthentic as error:  # the worker has to stop
            raise JobNotRunning(error.detail) from None
        if job is None or job.tenant != token.tenant:
            raise JobTokenUnknown(_UNKNOWN)
        if job.state is JobState.CANCELLED:
            await self._rows.call(self._rows.jobs.record_stop, token.job_id, token.attempt)
            raise JobNotRunning("the job is cancelled")
        if job.state is not JobState.RUNNING or job.attempt != token.attempt:
            raise JobTokenUnknown(_UNKNOWN)
        return job

    async def _find_compose(self, job: Job, token: JobToken) -> Compose:
        compose = await self._rows.call(self._rows.composes.find, job.compose_id, token.tenant)
        if compose is None:
            raise JobTokenUnknown(_UNKNOWN)
        return compose

    async def _store(
        self,
        job: Job,
        name: str,
        size: int | None,
        store: Callable[[str, int], Awaitable[StoredObject | None]],
    ) -> bool:
        """Store a file and its row; return False if `store` has stored nothing.

        Each upload has a key of its own, because an abandoned upload may end after its repetition.

        Args:
            store: stores the file; its arguments are the key, and the bytes that the file may have.
        """
        key = f"jobs/{job.id}/{job.attempt}/{uuid4().hex}/{name}"
        objects = self._rows.objects

        async def record() -> bool:
            allowed = await self._rows.call(objects.announce_object, key, job, size)
            try:
                stored = await store(key, allowed)
            except Exception:
                await self._rows.call(objects.give_back, job, allowed)
                raise
            if stored is None:
                await self._rows.call(objects.give_back, job, allowed)
                await self._rows.call(objects.forget_discarded, [key])
                return False
            await self._rows.call(objects.give_back, job, allowed - stored.kept_bytes)
            artifact = Artifact(name, stored.size, stored.sha256, stored.key)
            row = job.id, job.attempt, artifact, stored.kept_bytes
            if not await self._rows.call(objects.add_artifact, *row):
                raise JobTokenUnknown(_UNKNOWN)
            return True

        # The client may disconnect meanwhile: bytes that are stored must have a row.
        return await shielded(Deferred.fromCoroutine(record()))


async def _read(content: RequestContent, allowed: int) -> bytes:
    """Return the next bytes, at most those that are allowed."""
    chunk = await content.read()
    if len(chunk) > allowed:
        raise BudgetExceeded("JOBS_MAX_BYTES: the artifact has more bytes than its compose has reserved")
    return chunk
