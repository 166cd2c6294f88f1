"""Gets the inputs of a job, from the server or from the cache."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO

import attrs

from image_service.common.http.errors import HttpError
from image_service.core.errors import NoRoom, TransferFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.jobs.worker.calls import JobInput
    from image_service.jobs.worker.input_cache import InputCache
    from image_service.jobs.worker.job_link import JobLink
    from image_service.jobs.worker.jobs_client import ReceivedJob

_BLOCK_BYTES = 256 * 1024
_ZEROS = bytes(_BLOCK_BYTES)
_SHARED = "base"  # an input of many jobs, without data of a tenant


@attrs.frozen
class InputFiles:
    """The inputs of one job.

    Args:
        directory: of the files that are not in the cache.
        room_bytes: that an input may have, without its zeros.
        cache: of base images; None: there is none.
    """

    link: JobLink
    directory: Path
    room_bytes: int
    cache: InputCache | None

    def get(self, wanted: JobInput) -> AbstractContextManager[Path]:
        """Get an input; its file stays during the block.

        Raises:
            TransferFailed: its size or SHA-256 differs from the job's.
            NoRoom: it is too large.
            NotFound, ServerRefusal, Interrupted: as `JobLink.persist`.
        """
        if self.cache and wanted.name == _SHARED and wanted.sha256 and wanted.size is not None:
            fetch = partial(self._fetch, wanted)
            return self.cache.file(wanted.sha256, wanted.size, fetch, self.link.interruption)
        return self._fetched(wanted)

    @contextmanager
    def _fetched(self, wanted: JobInput) -> Iterator[Path]:
        path = self.directory / wanted.name
        self._fetch(wanted, path)
        yield path

    def _fetch(self, wanted: JobInput, path: Path) -> None:
        """Write an input to a file, in which zeros become holes."""
        with path.open("wb") as file:
            download = _Download(wanted, file, self.room_bytes)
            self.link.persist(partial(self._continue, download))
            file.truncate(download.done)
        if wanted.size not in {None, download.done} or wanted.sha256 not in {None, download.sha256}:
            raise TransferFailed(
                f"input {wanted.name} has {download.done} bytes and SHA-256 {download.sha256}, instead of"
                f" {wanted.size} and {wanted.sha256}"
            )

    def _continue(self, download: _Download, job: ReceivedJob, interruption: Interruption) -> None:
        """Get the remaining bytes; Unavailable if the connection ends before."""
        client, wanted = self.link.client, download.wanted
        with client.open_input(job, wanted.name, download.done, interruption) as answer:
            if answer.status != HTTPStatus.PARTIAL_CONTENT:
                download.restart()
            end = None if answer.length is None else download.done + answer.length
            try:
                for block in answer.blocks():
                    download.add(block)
                    self.link.set_progress({"phase": "fetch", "done": download.done, "total": end or 0})
            except HttpError as error:
                raise Unavailable(f"the connection ended during an input: {error}") from None


class _Download:
    """The part of an input that was received.

    Args:
        room_bytes: that may be written.
    """

    def __init__(self, wanted: JobInput, file: BinaryIO, room_bytes: int) -> None:
        self.wanted = wanted
        self._file = file
        self._room_bytes = room_bytes
        self.restart()

    def restart(self) -> None:
        """Discard the received bytes."""
        self._file.seek(0)
        self._file.truncate()
        self.done = self._written = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of the received bytes, in hexadecimal."""
        return self._digest.hexdigest()

    def add(self, block: bytes) -> None:
        """Append bytes; NoRoom if they are too many."""
        self._digest.update(block)
        self.done += len(block)
        if block == _ZEROS[: len(block)]:
            self._file.seek(self.done)
            return
        self._written += len(block)
        if self._written > self._room_bytes:
            raise NoRoom(f"input {self.wanted.name} has more than {self._room_bytes} bytes (--scratch-bytes)")
        self._file.write(block)
