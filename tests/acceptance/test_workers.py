"""Several processes that serve as one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests import forks
from tests.acceptance.readers import Reader, reading
from tests.acceptance.service import (
    CHECKOUT,
    SERVE,
    TWISTD,
    Certificate,
    Service,
    fetch,
    os_image,
    run_service,
)
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files, write_sparse_iso
from tests.fork_server import SERVING_NAME
from tests.ports import free_port
from tests.server.catalog import origin
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.acceptance

VERSION = "workers"
ROOTFS_BYTES = 8 * 1024 * 1024
FOR_EVER = "100000"
SOON_STUCK = (sys.executable, "-m", "tests.acceptance.impatient_service", "serve", "--standalone")
COMMANDS = {"twistd": (*TWISTD, "--standalone"), "image-service": (*SERVE, "--standalone")}
_TIMEOUT_SECONDS = 100
_POLL_SECONDS = 0.02
_OPEN = r'base image .* is degraded.*"worker": (\d)'  # to derive what it is not asked for; it is served


@attrs.frozen
class Served:
    """An image that two workers serve, and its bytes."""

    service: Service
    path: str
    content: bytes = attrs.field(repr=False)

    @property
    def supervisor(self) -> int:
        """The supervisor's process identifier."""
        return self.service.process.pid

    def workers(self) -> dict[int, int]:
        """Return the running workers: number by process identifier."""
        children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text()
        return dict(filter(None, map(_worker, map(int, children.split()))))

    def read(self, stack: ExitStack) -> Reader:
        """Begin to read the image."""
        reader = stack.enter_context(reading(self.service.url + self.path, ca=self.service.ca))
        reader.read_head()
        return reader

    def read_of_each(self, stack: ExitStack, at_most: int = 50) -> dict[int, Reader]:
        """Begin to read the image from each worker; return the readers by process identifier.

        Args:
            stack: closes the readers.
            at_most: readers at a time; those that are not needed are closed.
        """
        readers: dict[int, Reader] = {}
        for _ in range(at_most * 50):
            with ExitStack() as mine:
                reader = self.read(mine)
                owner = self.owner(reader)
                if reader.status == 200 and owner is not None and owner not in readers:
                    readers[owner] = reader
                    stack.push(mine.pop_all())
            if len(readers) == 2:
                return readers
        raise AssertionError(f"of two workers only {readers} answer")

    def owner(self, reader: Reader) -> int | None:
        """Return the process identifier of the worker that has accepted a client."""
        port = reader.socket.getsockname()[1]
        inode = next(filter(None, (_inode(line, port) for line in _connections())), None)
        return next((pid for pid in self.workers() if f"socket:[{inode}]" in _descriptors(pid)), None)

    def refuses(self) -> bool:
        """Return True if connections are refused: no worker listens any more."""
        address = urlsplit(self.service.url)
        try:
            socket.create_connection((address.hostname, address.port), _TIMEOUT_SECONDS).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # it was in the backlog of a worker that has closed its listener
            pass
        return False

    def metrics(self) -> dict[str, float]:
        """Return the samples of the metrics page, by name and labels."""
        return _values(self.service.get("/metrics").body.decode())

    def metric(self, name: str) -> float:
        """Return one sample."""
        return self.metrics()[f"assisted_image_service_{name}"]

    def check_ended_well(self, status: int = 0) -> None:
        """Wait until the supervisor and all workers have exited."""
        assert self.service.process.wait(_TIMEOUT_SECONDS) == status, self.service.output.decode()
        assert b"Traceback" not in self.service.output, self.service.output.decode()


def _worker(pid: int) -> tuple[int, int] | None:
    """Return a serving process and its number; None: it is gone, or not yet what it is to become."""
    process = Path(f"/proc/{pid}")
    try:
        *_, argument, _ = (process / "cmdline").read_text().split("\0")
        named = re.fullmatch(SERVING_NAME.format(r"(\d+)"), (process / "comm").read_text().strip())
        return pid, int(named[1]) if named else json.loads(argument)["number"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _values(page: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def _connections() -> list[str]:
    return [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]


def _inode(line: str, client_port: int) -> str | None:
    """Return the inode of the socket connected to `client_port`, from its line of /proc/net/tcp."""
    fields = line.split()
    return fields[9] if fields[2].endswith(f":{client_port:04X}") else None


def _descriptors(pid: int) -> set[str]:
    with suppress(FileNotFoundError):
        return {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return set()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)


@contextmanager
def serving(
    directory: Path,
    command: Sequence[str] = COMMANDS["image-service"],
    certificate: Certificate | None = None,
    ends_with: int = 0,
    **environment: str,
) -> Iterator[Served]:
    iso = directory / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=hashlib.shake_128(b"workers").digest(ROOTFS_BYTES)), {})
    with run_service(
        directory,
        [os_image(iso, VERSION)],
        command=command,
        certificate=certificate,
        environment={"WORKERS": "2", **environment},
        ends_with=ends_with,
    ) as service:
        infra_env_id = service.register(VERSION, {"ignition": {"version": "3.2.0"}})
        path = f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
        until(lambda: {"0", "1"} <= set(re.findall(_OPEN, service.stdout.decode())))
        yield Served(service, path, service.get_image(path).body)


@pytest.mark.parametrize("command", ["twistd", soaked("image-service")])
def test_all_workers_serve_and_log_their_number(command: str, tmp_path: Path) -> None:
    with serving(tmp_path, COMMANDS[command]) as served:
        assert sorted(served.workers().values()) == [0, 1]

        def have_served() -> set[str]:
            assert served.service.get(served.path).body == served.content
            return set(re.findall(r'"GET .*"worker": (\d)', served.service.stdout.decode()))

        until(lambda: have_served() == {"0", "1"})


def test_killed_worker_is_replaced_and_other_clients_are_served(tmp_path: Path) -> None:
    with serving(tmp_path) as served, ExitStack() as stack:
        readers = served.read_of_each(stack)
        victim, survivor = readers
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in served.workers())
        for _ in range(40):  # half of them come to the dead one's socket
            assert served.service.get("/live").status == 200
        assert readers[survivor].read_to_the_end() == served.content
        with pytest.raises((ConnectionResetError, AssertionError)):  # the kernel ends what it has closed
            readers[victim].read_to_the_end()
        until(lambda: served.metric("worker_restarts_total") == 1)
        assert sorted(served.workers().values()) == [0, 1]
        assert survivor in served.workers()
        served.read_of_each(stack)


@pytest.mark.soak
def test_worker_whose_start_fails_is_restarted_while_the_other_serves(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        lock = tmp_path / "data" / "image-service.lock"
        lock.rename(tmp_path / "lock")
        lock.mkdir()  # which no worker can be without
        os.kill(next(iter(served.workers())), signal.SIGKILL)
        for _ in range(3):
            seen = len(served.workers())
            until(lambda before=seen: len(served.workers()) != before)  # type: ignore[misc]
            for _ in range(20):
                assert served.service.get("/live").status == 200
        lock.rmdir()
        (tmp_path / "lock").rename(lock)
        until(lambda: served.metric("workers") == 2)


def test_slots_are_shared_and_those_of_a_killed_worker_are_released(tmp_path: Path) -> None:
    with (
        serving(tmp_path, MAX_CONCURRENT_REQUESTS="3", MIN_DOWNLOAD_RATE="0") as served,
        ExitStack() as stack,
    ):
        readers = served.read_of_each(stack, at_most=3)
        while served.metric("slots_taken") < 3:
            served.read(stack)
        assert served.metric("slots_limit") == 3
        for _ in range(4):  # whichever worker is asked
            assert served.service.get(served.path).status == 503
        os.kill(next(iter(readers)), signal.SIGKILL)
        until(lambda: served.service.get(served.path).status == 200)
        until(lambda: served.metric("workers") == 2)
        while served.metric("slots_taken") < 3:
            assert served.read(stack).status == 200
        assert served.service.get(served.path).status == 503


@pytest.mark.soak
def test_waiting_download_gets_the_slot_that_another_worker_releases(tmp_path: Path) -> None:
    with serving(tmp_path, MAX_CONCURRENT_REQUESTS="1") as served, ExitStack() as stack:
        for _ in range(6):
            reader = served.read(stack)
            assert reader.status == 200
            waiting = [stack.enter_context(reading(served.service.url + served.path)) for _ in range(1)]
            until(lambda: served.metric("slots_queue_length") == 1)
            assert reader.read_to_the_end() == served.content
            (waiter,) = waiting
            waiter.read_head()
            assert (waiter.status, waiter.read_to_the_end()) == (200, served.content)


@pytest.mark.soak
def test_max_connections_is_the_sum_over_all_workers(tmp_path: Path) -> None:
    with serving(tmp_path, MAX_CONNECTIONS="4") as served, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(reading(served.service.url + "/live")).read_head()
        assert served.metric("connections") == 5  # one of them asks that
        for _ in range(8):
            assert served.service.get(served.path).status == 503


def test_metrics_are_summed_over_workers_and_never_decrease(tmp_path: Path) -> None:
    count = 'http_request_duration_seconds_count{code="200",handler="/byid/:token",method="GET",service=""}'
    with serving(tmp_path) as served:
        before = served.metric(count)
        for _ in range(20):
            served.service.get(served.path)
        assert served.metric(count) == before + 20
        earlier = served.metrics()
        assert earlier['assisted_image_service_base_images{state="degraded"}'] == 1
        os.kill(next(iter(served.workers())), signal.SIGKILL)
        until(lambda: served.metric("worker_restarts_total") == 1)
        until(lambda: served.metric("workers") == 2)
        later = served.metrics()
        lasting = [name for name in earlier if re.search("_(total|count|sum|bucket)($|{)", name)]
        assert len(lasting) > 50
        assert [name for name in lasting if later[name] < earlier[name]] == []
        assert later[f"assisted_image_service_{count}"] == before + 20


@pytest.mark.soak
def test_metrics_do_not_wait_for_a_stuck_worker(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        earlier = served.metrics()
        stuck, other = served.workers()
        os.kill(stuck, signal.SIGSTOP)
        try:
            with ExitStack() as stack:  # one of these is answered by the other
                url = served.service.url + "/metrics"
                readers = [stack.enter_context(reading(url)) for _ in range(16)]
                answered = next(reader for reader in readers if served.owner(reader) == other)
                answered.read_head()
                later = _values(answered.read_to_the_end().decode())
        finally:
            os.kill(stuck, signal.SIGCONT)
        name = "process_cpu_seconds_total"
        assert later[name] >= earlier[name]


@pytest.mark.soak
def test_late_metrics_of_a_killed_worker_do_not_affect_its_successor(tmp_path: Path) -> None:
    with serving(tmp_path) as served, ExitStack() as stack:
        one, other = served.workers()
        url = served.service.url + "/metrics"
        os.kill(other, signal.SIGSTOP)  # so that the page takes longer than it takes to start another worker
        try:
            readers = [stack.enter_context(reading(url)) for _ in range(16)]
            assert any(served.owner(reader) == one for reader in readers)
            os.kill(one, signal.SIGKILL)
            served.service.wait_for("(Restarting it)")
            until(lambda: len(served.workers()) == 2)
            served.service.wait_for(r"(?s)Restarting it.*(serving at|cannot start|Traceback)")
        finally:
            os.kill(other, signal.SIGCONT)
        assert b"Traceback" not in served.service.output


@pytest.mark.soak
@pytest.mark.parametrize("receivers", [soaked("supervisor"), "all"])
def test_sigterm_while_a_worker_starts_exits_with_0(receivers: str, tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        before = set(served.workers())
        os.kill(min(before), signal.SIGKILL)
        until(lambda: any(map(_heeds_signals, set(served.workers()) - before)))
        for pid in (*(served.workers() if receivers == "all" else ()), served.supervisor):
            os.kill(pid, signal.SIGINT)
        served.check_ended_well()


def _heeds_signals(pid: int) -> bool:
    """Return True if a process has installed its signal handlers."""
    caught = re.search("SigCgt:\t(.*)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize(
    ("command", "security"),
    [
        soaked("image-service", "plain"),
        ("image-service", "tls"),
        soaked("twistd", "plain"),
        soaked("twistd", "tls"),
    ],
)
def test_shutdown_finishes_downloads_in_all_workers(
    command: str, security: str, certificate: Certificate, tmp_path: Path
) -> None:
    given = certificate if security == "tls" else None
    with serving(tmp_path, COMMANDS[command], given, DRAIN_TIMEOUT=FOR_EVER) as served, ExitStack() as stack:
        readers = served.read_of_each(stack)
        served.service.process.terminate()
        until(served.refuses)
        for reader in readers.values():
            assert reader.read_to_the_end() == served.content
        served.check_ended_well()


@pytest.mark.soak
def test_sigint_to_the_process_group_finishes_responses(tmp_path: Path) -> None:
    with serving(tmp_path, DRAIN_DELAY=FOR_EVER, DRAIN_TIMEOUT=FOR_EVER) as served, ExitStack() as stack:
        readers = served.read_of_each(stack)
        for pid in (*readers, served.supervisor):
            os.kill(pid, signal.SIGINT)
        until(served.refuses)
        for reader in readers.values():
            assert reader.read_to_the_end() == served.content
        served.check_ended_well()


def test_second_signal_ends_all_workers_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, DRAIN_DELAY=FOR_EVER, DRAIN_TIMEOUT=FOR_EVER) as served, ExitStack() as stack:
        readers = served.read_of_each(stack)
        served.service.process.terminate()
        until(lambda: served.service.get("/health").status == 503)
        served.service.process.terminate()
        served.check_ended_well()
        for reader in readers.values():
            with pytest.raises(ConnectionResetError):
                reader.read_to_the_end()


@pytest.mark.soak
def test_second_signal_exits_although_a_worker_is_stuck(tmp_path: Path) -> None:
    with serving(tmp_path, DRAIN_TIMEOUT=FOR_EVER) as served:
        os.kill(next(iter(served.workers())), signal.SIGSTOP)
        served.service.process.terminate()
        served.service.wait_for("(shutting down)")
        served.service.process.terminate()
        served.check_ended_well()


def test_stuck_worker_is_replaced_by_the_watchdog(tmp_path: Path) -> None:
    with serving(tmp_path, SOON_STUCK) as served:
        stuck, other = served.workers()
        os.kill(stuck, signal.SIGSTOP)
        served.service.wait_for("(has not responded to)")
        until(lambda: stuck not in served.workers())
        until(lambda: served.metric("workers") == 2)
        assert other in served.workers()
        assert served.service.get(served.path).body == served.content


@pytest.mark.soak
def test_shutdown_does_not_wait_for_a_stuck_worker(tmp_path: Path) -> None:
    with serving(tmp_path, SOON_STUCK, DRAIN_TIMEOUT=FOR_EVER) as served:
        os.kill(next(iter(served.workers())), signal.SIGSTOP)
        served.service.process.terminate()
        served.check_ended_well()


def _serve_after(*lines: str) -> Sequence[str]:
    code = (*lines, "import sys; from image_service.cli import main", "sys.exit(main())")
    return sys.executable, "-c", "\n".join(code), "serve", "--standalone"


@pytest.mark.soak
def test_metrics_that_cannot_be_rendered_are_refused_with_503(tmp_path: Path) -> None:
    broken = "supervisor.render = lambda _: 1 / 0"
    with serving(
        tmp_path, _serve_after("from image_service.app.processes import supervisor", broken)
    ) as served:
        for _ in range(2):
            assert served.service.get("/metrics").status == 503
        served.service.wait_for("(cannot render the metrics)")
        assert served.service.get(served.path).body == served.content


def test_workers_finish_and_exit_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        served = stack.enter_context(
            serving(tmp_path, ends_with=-signal.SIGKILL, DRAIN_DELAY=FOR_EVER, DRAIN_TIMEOUT=FOR_EVER)
        )
        readers = served.read_of_each(stack)
        served.service.process.kill()
        until(served.refuses)
        for reader in readers.values():
            assert reader.read_to_the_end() == served.content
        until(lambda: not any(map(_worker, readers)))


def test_http_and_https_listeners_are_shared_by_all_workers(certificate: Certificate, tmp_path: Path) -> None:
    beside = free_port()
    with serving(tmp_path, certificate=certificate, HTTP_LISTEN_PORT=str(beside)) as served:
        assert served.service.url.startswith("https:")
        for _ in range(10):
            assert served.service.get("/health").status == 200
            assert fetch(f"http://127.0.0.1:{beside}/health").status == 200
            assert fetch(f"http://127.0.0.1:{beside}{served.path}").status == 404


@pytest.mark.soak
@pytest.mark.parametrize("workers", [soaked(1), 2])
def test_port_in_use_by_another_service_fails_the_start(workers: int, tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        port = served.service.url.rpartition(":")[2]
        variables = {"LISTEN_PORT": port, "WORKERS": str(workers), "DATA_DIR": str(tmp_path / "other")}
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **variables}
        command = COMMANDS["image-service"]
        other = forks.run(command, env=environment, timeout=_TIMEOUT_SECONDS)
        assert other.returncode == 78
        assert f"port {port} is in use by another process" in other.stdout


@pytest.mark.soak
def test_error_at_start_of_every_worker_ends_the_service(tmp_path: Path) -> None:
    (tmp_path / "image-service.lock").mkdir()
    variables = {"LISTEN_PORT": "0", "WORKERS": "2", "DATA_DIR": str(tmp_path)}
    variables |= {"ASSISTED_SERVICE_HOST": "127.0.0.1:1", "OS_IMAGES": json.dumps([os_image(tmp_path, "x")])}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **variables}
    ended = forks.run(SERVE, env=environment, timeout=_TIMEOUT_SECONDS)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "no serving process can start" in ended.stdout
    assert "ReactorNotRunning" not in ended.stdout  # the other one cannot either


def test_fork_failure_for_every_worker_ends_the_service(tmp_path: Path) -> None:
    none = "serving_process.ServingProcess.__init__ = lambda *_: os.close(-1)"  # an OSError, as of fork(2)
    command = _serve_after("import os; from image_service.app.processes import serving_process", none)
    variables = {
        "LISTEN_PORT": "0",
        "WORKERS": "2",
        "DATA_DIR": str(tmp_path),
        "STANDALONE_LISTEN": "127.0.0.1:0",
    }
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **variables}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert ended.stdout.count("no serving process can start") == 2
    assert "Traceback" not in ended.stdout + ended.stderr


def test_base_image_is_downloaded_once_for_all_workers(tmp_path: Path) -> None:
    iso = build_live_iso()
    with origin.running() as server:
        entry = {**os_image(tmp_path / "x", "fetched"), "url": server.serve("/x.iso", origin.Reply(iso))}
        with run_service(tmp_path, [entry], environment={"WORKERS": "2"}) as service:
            both = r'base image .* is (?:ready|degraded).*"worker": (\d)'
            until(lambda: {"0", "1"} <= set(re.findall(both, service.stdout.decode())))
        assert [request.target for request in server.requests].count("/x.iso") == 1
