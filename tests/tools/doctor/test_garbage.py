"""Servers that speak no HTTP, or broken HTTP: a failure is named, and nothing is raised."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from image_service.tools.doctor.examination import ALL_CHECKS, Examination
from image_service.tools.doctor.outcomes import CheckStatus
from image_service.tools.doctor.target import ImageUrl
from image_service.tools.doctor.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Iterator

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """Answer each connection with the same bytes, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, content))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/images/live.iso"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket, content: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                if connection.recv(65536):
                    connection.sendall(content)
            except OSError:
                continue


GARBAGE = {
    "nothing": b"",
    "zeros": b"\0" * 100,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no status": b"HTTP/1.1 abc OK\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK",
    "negative length": OK + b"Content-Length: -5\r\n\r\n",
    "long length": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "long field": OK + b"X: " + b"x" * 70000 + b"\r\n\r\n",
    "many fields": OK + b"X: x\r\n" * 200 + b"\r\n",
    "damaged chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nnot a number\r\n",
    "short content": OK + b"Content-Length: 5000\r\n\r\nshort",
    "control characters": OK + b"Content-Range: bytes 0-0/\xff\r\nETag: \x1b[31m\r\n\r\n" + b"x" * 5000,
    "always 206": b"HTTP/1.1 206 X\r\nContent-Range: bytes 0-0/99999\r\nContent-Length: 1\r\n\r\nx",
    "redirect to a file": b"HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\n\r\n",
    "no final response": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_failure_is_named(content: bytes) -> None:
    with answering(content) as url:
        outcomes = list(Examination(url=ImageUrl.parse(url), deep=True).run())
    assert sorted(outcome.name for outcome in outcomes) == sorted(ALL_CHECKS)
    failures = [outcome for outcome in outcomes if outcome.status is CheckStatus.FAIL]
    assert failures
    assert all(outcome.detail and outcome.remedy for outcome in failures)
    assert not any(
        re.search(r"[a-z](Error|Exception|Read|Line|Protocol)\b", each.detail) for each in failures
    )


@pytest.mark.parametrize("interim", [b"", b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_interim_responses_and_white_space_around_values_are_no_part_of_a_response(interim: bytes) -> None:
    before = 3 * (b"HTTP/1.1 " + interim + b"\r\nLink: </x>\r\n\r\n") if interim else b""
    content = before + OK + b'ETag:  "v1" \t\r\nContent-Length: 4 \r\n\r\nbody'
    with answering(content) as url, WebClient(ImageUrl.parse(url)) as client:
        reply = client.request()
    assert (reply.status, reply.body, reply.is_whole, reply.content_length) == (200, b"body", True, 4)
    assert reply.fields["etag"] == '"v1"'
