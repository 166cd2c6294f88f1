"""The worker as a process, against a server whose faults the tests decide."""

from __future__ import annotations

import hashlib
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.jobs.worker.job_server import GivenJob, running_job_server
from tests.jobs.worker.workers import copy_job, running_worker

if TYPE_CHECKING:
    from tests.jobs.worker.workers import WorkerSite

MIB = 1 << 20
TIMEOUT_SECONDS = 300


def test_job_ends_with_its_artifact_and_reports_progress(site: WorkerSite, conversion: GivenJob) -> None:
    with site.worker():
        site.jobs.give(conversion)
        site.jobs.wait_for(lambda: len(conversion.progress) > 1)
        site.toolkit.open()
        result = site.jobs.finished(conversion)
    digest = hashlib.sha256(b"the disk").hexdigest()
    assert result["artifacts"] == [{"name": "disk.raw", "size": 8, "sha256": digest}]
    assert conversion.artifacts == {"disk.raw": b"the disk"}
    assert result["provenance"]["toolkit"] == "0.held"
    assert "has its inputs: image" in result["log"]
    holding = [each for each in conversion.progress if each["phase"] == "hold"]
    assert all(0 < each["done"] <= each["total"] == 1000 for each in holding)
    assert conversion.beats >= len(holding)
    (worker,) = site.jobs.workers
    assert site.jobs.polls[0] == {
        "types": ["customize", "convert", "import"],
        "arch": "x86_64",
        "worker_id": worker,
    }


def test_new_phase_is_reported_before_the_next_heartbeat(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.give(conversion)
    with site.worker("--heartbeat=3600"):
        site.jobs.wait_for(lambda: conversion.progress)
        site.toolkit.open()
        site.jobs.finished(conversion)


def test_unix_socket_and_jobs_of_all_tenants(site: WorkerSite, conversion: GivenJob) -> None:
    site.toolkit.open()
    with running_job_server(site.jobs, site.directory / "socket") as server:
        on_socket = attrs.evolve(site, server=server)
        with on_socket.worker("--tenant=ANY", "--types=convert"):
            site.jobs.finished(site.jobs.give(conversion))
    assert site.jobs.polls[0]["tenant"] == "ANY"
    assert site.jobs.polls[0]["types"] == ["convert"]


def test_slots_run_as_many_jobs_at_a_time(site: WorkerSite) -> None:
    given = [site.jobs.give(copy_job(bytes([number]))) for number in range(3)]
    with site.worker("--slots=2"):
        site.jobs.wait_for(lambda: len(site.toolkit.calls()) == 2)
        assert len(site.jobs.waiting) == 1
        site.toolkit.open()
        for job in given:
            site.jobs.finished(job)
    assert [job.artifacts["disk.raw"] for job in given] == [b"\0", b"\1", b"\2"]


def test_one_job_ends_the_worker(site: WorkerSite, conversion: GivenJob) -> None:
    site.toolkit.open()
    site.jobs.give(conversion)
    other = site.jobs.give(copy_job(b"other"))
    with site.worker("--once", "--slots=4") as worker:
        site.jobs.finished(conversion)
        assert worker.process.wait(60) == 0
        assert list(worker.scratch.iterdir()) == []
    assert site.jobs.waiting == [other]


@pytest.mark.parametrize("event", ["is_cancelled", "is_over"])
def test_unwanted_job_ends_without_a_result(event: str, site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.give(conversion)
    with site.worker():
        site.jobs.wait_for(lambda: site.toolkit.calls() and conversion.beats)
        with site.jobs.changed:
            setattr(conversion, event, True)
        site.toolkit.wait_until_ended()
        site.toolkit.open()
        site.jobs.finished(site.jobs.give(copy_job(b"the next")))
    assert conversion.result is None
    assert conversion.artifacts == {}


def test_job_continues_while_the_server_is_unavailable(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.give(conversion)
    with ExitStack() as before:
        server = before.enter_context(running_job_server(site.jobs))
        with attrs.evolve(site, server=server).worker() as worker:
            site.jobs.wait_for(lambda: site.toolkit.calls() and conversion.beats)
            before.close()
            site.toolkit.open()
            worker.wait_for_line("trying again")
            with running_job_server(site.jobs, port=int(server.rpartition(":")[2])):
                result = site.jobs.finished(conversion)
    assert result["artifacts"][0]["name"] == "disk.raw"
    assert len(site.toolkit.calls()) == 1


def test_requests_are_repeated_while_the_server_is_overloaded(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.give(conversion)
    site.toolkit.open()
    site.jobs.refuses = 5
    with site.worker():
        assert site.jobs.finished(conversion)["artifacts"]


def test_sigterm_during_a_job_leaves_nothing(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.give(conversion)
    with site.worker() as worker:
        site.jobs.wait_for(lambda: site.toolkit.calls() and conversion.beats)
        assert worker.end() == 0
        assert list(worker.scratch.iterdir()) == []
        site.toolkit.wait_until_ended()
    assert conversion.result is None


def test_drained_worker_ends_its_jobs_and_takes_no_other(site: WorkerSite) -> None:
    running = [site.jobs.give(copy_job(bytes([number]))) for number in range(2)]
    with site.worker("--slots=2") as worker:
        site.jobs.wait_for(lambda: len(site.toolkit.calls()) == 2)
        worker.process.send_signal(signal.SIGQUIT)
        waiting = site.jobs.give(copy_job(b"later"))
        site.toolkit.open()
        for job in running:
            site.jobs.finished(job)
        assert worker.process.wait(TIMEOUT_SECONDS) == 0
    assert waiting in site.jobs.waiting


def test_drained_worker_without_a_job_ends_at_once(site: WorkerSite) -> None:
    with site.worker() as worker:
        site.jobs.wait_for(lambda: site.jobs.polls)
        assert worker.end(signal.SIGQUIT) == 0


def test_sigterm_ends_a_worker_that_is_drained(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.give(conversion)
    with site.worker() as worker:
        site.jobs.wait_for(lambda: len(site.toolkit.calls()) == 1)
        worker.process.send_signal(signal.SIGQUIT)
        assert worker.end() == 0
    assert conversion.artifacts == {}


def test_killed_worker_leaves_no_process_and_its_files_are_removed(
    site: WorkerSite, conversion: GivenJob
) -> None:
    site.jobs.give(conversion)
    with site.worker() as worker:
        site.jobs.wait_for(lambda: site.toolkit.calls() and conversion.beats)
        assert worker.end(signal.SIGKILL) == -signal.SIGKILL
        site.toolkit.wait_until_ended()
        assert list(worker.scratch.iterdir()) != []
    site.toolkit.open()
    with site.worker():
        site.jobs.finished(site.jobs.give(copy_job(b"the next")))


def test_input_that_breaks_off_is_continued(site: WorkerSite) -> None:
    content = b"begin" + bytes(3 * MIB) + os.urandom(MIB) + bytes(MIB + 1)
    job = site.jobs.give(copy_job(content))
    site.jobs.breaks_inputs = 2
    site.toolkit.open()
    with site.worker():
        site.jobs.finished(job)
    assert job.artifacts["disk.raw"] == content
    assert len([request for request in site.jobs.requests if request.endswith("/inputs/image")]) == 3


def test_input_of_other_bytes_fails_the_job(site: WorkerSite, conversion: GivenJob) -> None:
    class _Lying(dict[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            return b"DISK" + super().__getitem__(name)[4:]

    conversion.inputs = _Lying(conversion.inputs)
    with site.worker():
        result = site.jobs.finished(site.jobs.give(conversion))
    assert result["job_error"]["id"] == 10
    assert "input image has 8 bytes and SHA-256" in result["job_error"]["reason"]
    assert site.toolkit.calls() == []


def test_failure_of_the_toolkit_is_that_of_the_job(site: WorkerSite, conversion: GivenJob) -> None:
    site.toolkit.open(status=6)
    with site.worker():
        result = site.jobs.finished(site.jobs.give(conversion))
    assert result["job_error"] == {"id": 4, "reason": "inputs/image is wrong", "details": ""}


def test_result_that_the_server_refuses_fails_the_job(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.result_error = {"code": "IMAGE-BUILDER-WORKER-10", "reason": "no such artifact"}
    site.toolkit.open()
    with site.worker():
        result = site.jobs.finished(site.jobs.give(conversion))
    assert result["job_error"]["reason"] == "the server answers 400: no such artifact"


def test_server_on_this_machine_gets_the_path_of_the_file(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.takes_files = True
    site.toolkit.open()
    with site.worker():
        result = site.jobs.finished(site.jobs.give(conversion))
    assert conversion.artifacts == {"disk.raw": b"the disk"}
    assert result["artifacts"][0]["size"] == 8
    assert not [line for line in site.jobs.requests if line.startswith("PUT")]


def test_file_that_the_server_does_not_take_is_sent(site: WorkerSite, conversion: GivenJob) -> None:
    site.jobs.takes_files, site.jobs.links_files = True, False
    site.toolkit.open()
    with site.worker():
        site.jobs.finished(site.jobs.give(conversion))
    assert conversion.artifacts == {"disk.raw": b"the disk"}


@pytest.mark.parametrize("takes_files", [False, True], ids=["content", "path"])
def test_artifact_that_does_not_fit_is_not_sent_again(
    site: WorkerSite, conversion: GivenJob, *, takes_files: bool
) -> None:
    site.jobs.takes_files = takes_files
    site.jobs.is_full = True
    site.toolkit.open()
    with site.worker():
        result = site.jobs.finished(site.jobs.give(conversion))
    assert result["job_error"]["reason"] == "the server answers 507: There is no room for the artifact"
    assert sum("/artifacts/" in request for request in site.jobs.requests) == 1


def test_invalid_job_fails(site: WorkerSite) -> None:
    with site.worker():
        for kind, arguments, reason in (
            ("convert", {"input": "image", "output": "../disk"}, "not the name of a file"),
            ("convert", {}, "the job cannot be done: its arguments lack 'input'"),
            (
                "customize",
                {"input": "disk", "output": "o", "input_format": "raw"},
                "arguments lack 'disk'",
            ),
            ("convert", {"input": "image", "output": 1}, "its arguments are not those of its type"),
        ):
            result = site.jobs.finished(site.jobs.give(GivenJob(kind, arguments, {"image": b"the disk"})))
            assert reason in result["job_error"]["reason"]


def test_base_image_is_fetched_once_and_other_inputs_are_not_kept(site: WorkerSite) -> None:
    cache, base = site.directory / "cache", os.urandom(MIB)
    site.toolkit.open()
    with site.worker("--cache-dir", cache):
        for content, name in ((base, "base"), (base, "base"), (b"secret", "image")):
            job = site.jobs.give(copy_job(content, name))
            site.jobs.finished(job)
            assert job.artifacts["disk.raw"] == content
    assert len([request for request in site.jobs.requests if request.endswith("/inputs/base")]) == 1
    assert [path.name for path in cache.iterdir()] == [hashlib.sha256(base).hexdigest()]
    assert cache.stat().st_mode & 0o777 == 0o700


def test_token_is_read_again_for_each_request(site: WorkerSite, conversion: GivenJob) -> None:
    site.toolkit.open()
    site.jobs.token = "renewed"
    with site.worker(token="old") as worker:
        site.jobs.wait_for(lambda: len(site.jobs.requests) > 2)
        assert site.jobs.polls == []
        (site.directory / "token").write_text("renewed")
        site.jobs.finished(site.jobs.give(conversion))
        assert "401" in worker.log.read_text()


def test_two_jobs_that_do_not_fit_together_run_one_after_the_other(site: WorkerSite) -> None:
    jobs_given = [site.jobs.give(copy_job(os.urandom(MIB))) for _ in range(2)]
    with site.worker("--slots=3", "--scratch-bytes=6M"):
        site.jobs.wait_for(lambda: site.toolkit.calls() and any(job.beats > 3 for job in jobs_given))
        assert len(site.toolkit.calls()) == 1
        site.toolkit.open()
        for job in jobs_given:
            site.jobs.finished(job)
    limits = [word.partition("=")[2] for call in site.toolkit.calls() for word in call if "-bytes=" in word]
    assert all(4 * MIB < int(limit) <= 5 * MIB for limit in limits)
    assert len(limits) == 2


def test_lines_in_the_journal_have_priorities(site: WorkerSite, conversion: GivenJob) -> None:
    (log := site.directory / "worker.log").touch()
    status = log.stat()
    environment = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    site.jobs.token = "renewed"
    site.toolkit.open(status=6)
    with running_worker(
        site.server, site.directory, site.toolkit.program, token="old", environment=environment
    ) as worker:
        worker.wait_for_line("answers 401")
        (site.directory / "token").write_text("renewed")
        site.jobs.finished(site.jobs.give(conversion))
    lines = log.read_text().splitlines()
    priorities = {
        text: {line[:3] for line in lines if text in line} for text in ("takes jobs", "answers 401", "failed")
    }
    assert priorities == {"takes jobs": {"<6>"}, "answers 401": {"<4>"}, "failed": {"<4>"}}
