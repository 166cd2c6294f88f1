"""A job from its receipt to its end: inputs, a call of the toolkit, artifact, result."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import ImageServiceError, NotFound, describe_os_error
from image_service.jobs.worker.calls import JOB_FAILED, KINDS, JobFiles, error_id, parse_inputs
from image_service.jobs.worker.input_files import InputFiles
from image_service.jobs.worker.job_link import JobLink
from image_service.jobs.worker.requests import ServerRefusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.jobs.worker.calls import ToolkitCall
    from image_service.jobs.worker.input_cache import InputCache
    from image_service.jobs.worker.jobs_client import JobsClient, ReceivedJob
    from image_service.jobs.worker.scratch import JobScratch
    from image_service.jobs.worker.toolkit import Toolkit, ToolkitOutcome

_LOG_CHARACTERS = 16 * 1024
_STAT_BLOCK_BYTES = 512


@attrs.frozen
class JobTools:
    """The common parts of all jobs of a worker.

    Args:
        toolkit: makes images.
        cache: of base images; None: there is none.
        beat_seconds: between two heartbeats.
        bundle_key: file of the RSA key that decrypts image bundles; None: there is none.
    """

    client: JobsClient
    toolkit: Toolkit
    scratch: JobScratch
    cache: InputCache | None
    beat_seconds: float
    log: Callable[[str], None]
    warn: Callable[[str], None]
    bundle_key: Path | None = None


class RunningJob:
    """A job.

    Args:
        job: as the server has handed it out.
        interruption: of this job alone; ends it without a result.
    """

    def __init__(self, job: ReceivedJob, tools: JobTools, interruption: Interruption) -> None:
        self._job = job
        self._tools = tools
        self._link = JobLink(job, tools.client, interruption, tools.warn)
        self._lines: list[str] = []

    def run(self) -> None:
        """Do the job, and report its result, unless its attempt has ended at the server.

        While the server does not answer, the work continues, and requests are repeated.
        """
        self._note(f"{self._job.type} begins")
        try:
            with self._link.heartbeats(self._tools.beat_seconds):
                self._finish(self._work())
        except Interrupted:
            self._note("ended early")
        except NotFound:
            self._note("the attempt has ended at the server")

    def _work(self) -> dict[str, Any]:
        """Return the result of the job."""
        try:
            return self._make()
        except (Interrupted, NotFound):
            raise
        except ImageServiceError as error:
            return _failure(JOB_FAILED, error.detail)
        except OSError as error:
            return _failure(JOB_FAILED, f"the job cannot be done: {describe_os_error(error)}")
        except KeyError as error:
            return _failure(JOB_FAILED, f"the job cannot be done: its arguments lack {error}")
        except (TypeError, ValueError, AttributeError):
            return _failure(JOB_FAILED, "the job cannot be done: its arguments are not those of its type")

    def _make(self) -> dict[str, Any]:
        arguments, scratch = self._job.arguments, self._tools.scratch
        interruption = self._link.interruption
        kind = KINDS[self._job.type]
        inputs = parse_inputs(arguments)
        needed = kind.needed_bytes(arguments, inputs)
        with ExitStack() as stack:
            room = stack.enter_context(
                scratch.reserved(scratch.total_bytes if needed is None else needed, interruption)
            )
            directory = stack.enter_context(scratch.directory(self._job.type))
            source, target = directory / "inputs", directory / "output"
            source.mkdir()
            target.mkdir()
            files = InputFiles(self._link, source, room, self._tools.cache)
            paths = {each.name: stack.enter_context(files.get(each)) for each in inputs}
            self._note(f"has its inputs: {', '.join(paths)}")
            call = kind.call(arguments, JobFiles(paths, target, self._tools.bundle_key))
            left = max(1, room - sum(map(_stored_bytes, source.iterdir())))
            outcome = self._tools.toolkit.run(call, directory, left, interruption, self._link.set_progress)
            if outcome.status:
                return _failure(error_id(outcome.status), outcome.reason)
            return self._deliver(call, outcome)

    def _deliver(self, call: ToolkitCall, outcome: ToolkitOutcome) -> dict[str, Any]:
        """Send the output of a call, and return the result."""
        provenance = self._tools.toolkit.describe(call.words[0])
        if call.output is None:
            return {"artifacts": [], "provenance": provenance, "location": outcome.output["location"]}
        size, sha256 = call.output.stat().st_size, outcome.output["sha256"]
        self._link.set_progress({"phase": "send", "done": 0, "total": size})
        self._link.persist(self._tools.client.send_artifact, call.output, sha256)
        return {
            "artifacts": [{"name": call.output.name, "size": size, "sha256": sha256}],
            "provenance": provenance,
        }

    def _finish(self, result: dict[str, Any]) -> None:
        """Report the result; if the server refuses it, report a failure with that reason."""
        error = result.get("job_error")
        if error:
            self._note(f"failed: {error['reason']}", self._tools.warn)
        else:
            self._note("done")
        log = "\n".join(self._lines)[-_LOG_CHARACTERS:]
        try:
            self._link.persist(self._tools.client.finish, {**result, "log": log})
        except ServerRefusal as refusal:
            if not error:
                self._finish(_failure(JOB_FAILED, refusal.detail))

    def _note(self, line: str, log: Callable[[str], None] | None = None) -> None:
        self._lines.append(line)
        (log or self._tools.log)(f"job {self._job.id}: {line}")


def _stored_bytes(path: Path) -> int:
    return path.stat().st_blocks * _STAT_BLOCK_BYTES


def _failure(number: int, reason: str) -> dict[str, Any]:
    return {"job_error": {"id": number, "reason": reason, "details": ""}}
