"""Runs a worker by the options of its command line."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, TypeVar

import attrs

from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import EXIT_FAILURE
from image_service.common.concurrency.signals import UNUSED, handle_signal, ignore_signals
from image_service.common.programs.isolation import MAKE_ISOLATED, NOT_ISOLATED, find_isolation
from image_service.core.errors import ConfigurationError, describe_os_error
from image_service.jobs.worker.calls import KINDS
from image_service.jobs.worker.input_cache import InputCache
from image_service.jobs.worker.jobs_client import AcceptedJobs, JobsClient
from image_service.jobs.worker.requests import ServerAddress, ServerRequests
from image_service.jobs.worker.running_job import JobTools
from image_service.jobs.worker.scratch import JobScratch
from image_service.jobs.worker.toolkit import Toolkit
from image_service.jobs.worker.worker import JobWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Part = TypeVar("_Part")

UPLOAD = "upload"
_BUNDLE_KEY = "BUNDLE_KEY_FILE"
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "REGISTRY_AUTH_FILE",
)


@attrs.frozen
class WorkerOptions:
    """The options of the command line.

    Args:
        server: address of the worker API.
        token_file: of the bearer token.
        ca_file: authorities to trust beside the system's.
        tenant: ``ANY``, or None.
        types: of jobs; None: all that this worker can do.
        slots: jobs at a time.
        scratch: directory for files; None: that of the system for temporary ones.
        scratch_bytes: that all jobs may write; None: the free space.
        cache: directory of base images; None: they are not kept.
        cache_bytes: of all files in it.
        beat_seconds: between two heartbeats of a job.
        only_one: end after one job.
        requires_isolation: do not start where nothing isolates programs.
    """

    server: ServerAddress
    token_file: Path | None
    ca_file: Path | None
    tenant: str | None
    types: tuple[str, ...] | None
    architecture: str
    slots: int
    scratch: Path | None
    scratch_bytes: int | None
    cache: Path | None
    cache_bytes: int
    beat_seconds: float
    only_one: bool
    requires_isolation: bool


def run_worker(options: WorkerOptions, environment: Mapping[str, str]) -> int:
    """Run a worker until SIGTERM, SIGINT or SIGHUP, or its only job is done; return the exit status.

    SIGQUIT lets it end after the jobs that it has.

    Args:
        environment: ``TOOLKIT`` names the toolkit, ``AWS_*`` an object store, ``BUNDLE_KEY_FILE`` a key.

    Raises:
        ConfigurationError: the worker cannot start; lists every fault.
    """
    # Until the worker handles it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    types = options.types or tuple(name for name in KINDS if name != UPLOAD or _may_publish(environment))
    faults = _Faults()
    if UPLOAD in types and not _may_publish(environment):
        faults.add("--types upload needs credentials: AWS_ACCESS_KEY_ID, for example, or REGISTRY_AUTH_FILE")
    if options.token_file and not os.access(options.token_file, os.R_OK):
        faults.add(f"--token-file: {options.token_file} cannot be read")
    key_file = environment.get(_BUNDLE_KEY)
    bundle_key = Path(key_file) if key_file else None
    if bundle_key and not os.access(bundle_key, os.R_OK):
        faults.add(f"{_BUNDLE_KEY}: {bundle_key} cannot be read")
    requests = faults.of(
        "--ca-file", lambda: ServerRequests(options.server, options.token_file, options.ca_file)
    )
    toolkit = faults.of("TOOLKIT", lambda: Toolkit.find(environment.get("TOOLKIT")))
    directory = options.cache
    cache = (
        faults.of("--cache-dir", lambda: InputCache(directory, options.cache_bytes)) if directory else None
    )
    scratch = faults.of(
        "--scratch-dir", lambda: JobScratch(options.scratch or Path(gettempdir()), options.scratch_bytes)
    )
    isolation = find_isolation()
    if options.requires_isolation and isolation == "none":
        faults.add(f"--require-isolation: {MAKE_ISOLATED}")
    if requests is None or toolkit is None or scratch is None or faults.lines:
        if scratch:
            scratch.close()
        raise ConfigurationError("; ".join(faults.lines))
    with closing(scratch):
        accepted = AcceptedJobs(types, options.architecture, options.tenant, isolation)
        client = JobsClient(requests, accepted)
        tools = JobTools(
            client,
            toolkit,
            scratch,
            cache,
            options.beat_seconds,
            _log,
            _warn,
            bundle_key,
        )
        if isolation == "none":
            _warn(NOT_ISOLATED)
        else:
            _log(f"programs run in {isolation}")
        _log(f"takes jobs of {', '.join(types)} for {options.architecture}")
        return _run(JobWorker(tools, options.slots, only_one=options.only_one))


class _Faults:
    """The faults of a command line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)

    def of(self, name: str, make: Callable[[], _Part]) -> _Part | None:
        """Return the value of `make`; None after an error, which becomes a line about an option."""
        try:
            return make()
        except ConfigurationError as error:
            self.add(f"{name}: {error.detail}")
        except OSError as error:
            self.add(f"{name}: {describe_os_error(error)}")
        return None


def _run(worker: JobWorker) -> int:
    ignore_signals(*UNUSED)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        handle_signal(number, worker.stop)
    handle_signal(signal.SIGQUIT, worker.drain)
    return 0 if worker.run() else EXIT_FAILURE


def _may_publish(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name) for name in _CREDENTIALS)


def _log(line: str) -> None:
    tell(f"image-service worker: {line}", "info")


def _warn(line: str) -> None:
    tell(f"image-service worker: {line}", "warn")
