from __future__ import annotations

import socket
import threading

import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption


def test_nothing_is_raised_before_an_interruption() -> None:
    interruption = Interruption()
    interruption.raise_if_interrupted()
    interruption.wait(0.0)
    assert not interruption.is_set


def test_checks_and_waits_raise_after_an_interruption() -> None:
    interruption = Interruption()
    interruption.interrupt()
    assert interruption.is_set
    with pytest.raises(Interrupted):
        interruption.raise_if_interrupted()
    with pytest.raises(Interrupted):
        interruption.wait(1000.0)


def test_interruption_ends_a_read_in_another_thread() -> None:
    interruption = Interruption()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        interruption.watch_socket(ours)
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.append(ours.recv(1)))
        reader.start()
        interruption.interrupt()
        reader.join()
        assert received == [b""]


def test_socket_is_shut_down_immediately_after_an_interruption() -> None:
    interruption = Interruption()
    interruption.interrupt()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        interruption.watch_socket(ours)
        assert ours.recv(1) == b""


def test_closed_socket_is_ignored() -> None:
    interruption = Interruption()
    ours, theirs = socket.socketpair()
    interruption.watch_socket(ours)
    ours.close()
    theirs.close()
    interruption.interrupt()
