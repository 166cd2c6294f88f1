"""Notifications of the service manager, over real datagram sockets."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import Clock

from image_service.app.service_manager import ServiceManager, parse_address, render_message, watchdog_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PROCESS = 4711


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Return a manager's socket, and its address as in NOTIFY_SOCKET."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@image-service-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address.replace("@", "\0"))
        received.settimeout(100)
        yield received, address


def test_states_are_sent_each_once(manager: tuple[socket.socket, str]) -> None:
    received, address = manager
    environ = {"NOTIFY_SOCKET": address, "PATH": "/bin"}
    process = ServiceManager(environ)
    assert environ == {"PATH": "/bin"}  # child processes do not notify
    process.reloading()  # is not ready yet
    process.reloaded()
    for _ in range(2):
        process.set_status("0 of 1 base images ready")
        process.ready()
    process.reloading()
    process.reloaded()
    process.stopping()
    messages = [received.recv(4096).decode() for _ in range(5)]
    assert messages[:2] == ["STATUS=0 of 1 base images ready", "READY=1"]
    assert messages[2].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert messages[3:] == ["READY=1", "STOPPING=1\nSTATUS=shutting down"]


@pytest.mark.parametrize("is_started", [True, False])
def test_service_that_stops_is_not_ready_any_more(
    manager: tuple[socket.socket, str], *, is_started: bool
) -> None:
    received, address = manager
    process = ServiceManager({"NOTIFY_SOCKET": address})
    if is_started:
        process.ready()
        process.reloading()
        assert [received.recv(4096)[:8] for _ in range(2)] == [b"READY=1", b"RELOADIN"]
    process.stopping()
    process.reloaded()
    process.ready()
    process.set_status("1 of 1 base image is ready")
    assert received.recv(4096) == b"STOPPING=1\nSTATUS=shutting down"
    received.settimeout(0)
    with pytest.raises(BlockingIOError):
        received.recv(4096)


def test_watchdog_is_notified_twice_in_its_time(manager: tuple[socket.socket, str]) -> None:
    received, address = manager
    clock = Clock()
    variables = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    ServiceManager({"NOTIFY_SOCKET": address, **variables}).start_watchdog(clock)
    clock.pump([15, 15])
    assert [received.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    received.settimeout(0)
    with pytest.raises(BlockingIOError):
        received.recv(4096)


def test_process_without_a_manager_sends_nothing() -> None:
    clock = Clock()
    process = ServiceManager({"WATCHDOG_USEC": "30000000"})
    process.start_watchdog(clock)
    process.ready()
    assert clock.getDelayedCalls() == []


def test_manager_that_does_not_receive_is_logged(messages: list[str], tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
    assert "cannot notify the service manager: No such file or directory" in messages


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(PROCESS)}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_of_this_process_is_notified_in_half_its_time(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert watchdog_seconds(environ, PROCESS) == seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [("/run/systemd/notify", "/run/systemd/notify"), ("@name", "\0name"), ("", None), ("vsock:2:1", None)],
)
def test_address_is_a_path_or_abstract(text: str, address: str | None) -> None:
    assert parse_address(text) == address


def test_message_has_a_line_for_each_field() -> None:
    assert render_message({"READY": 1, "STATUS": "2 of 2"}) == b"READY=1\nSTATUS=2 of 2"
