"""Modes, owners and symbolic links of files with secrets."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from twisted.logger import capturedLogs, formatEvent

from image_service.common.files.exposure import describe_exposure
from image_service.common.files.private_files import (
    create_private,
    open_no_follow,
    restrict_to_owner,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
LINK = "is a symbolic link, which is not followed; remove it"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def logged(function: Callable[[Path], object], path: Path) -> list[str | None]:
    with capturedLogs() as events:
        function(path)
    return [formatEvent(event) for event in events]


@pytest.mark.parametrize("is_dangling", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        create_private,
        restrict_to_owner,
        lambda path: open_no_follow(path, os.O_RDONLY),
        lambda path: open_no_follow(path, os.O_RDWR | os.O_CREAT),
    ],
)
def test_symbolic_link_is_refused_by_name(
    tmp_path: Path, use: Callable[[Path], object], *, is_dangling: bool
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    if not is_dangling:
        target.write_bytes(b"foreign")
        target.chmod(0o644)
    with pytest.raises(OSError, match=f"{link} {LINK}"):
        use(link)
    assert target.exists() != is_dangling
    assert is_dangling or (target.read_bytes(), mode_of(target)) == (b"foreign", 0o644)


@pytest.mark.parametrize("umask", [0, 0o777])
def test_created_file_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        create_private(tmp_path / "file")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == 0o600 & ~umask


@pytest.mark.parametrize(
    ("mode", "now"), [(0o644, 0o600), (0o660, 0o600), (0o640, 0o600), (0o444, 0o400), (0o602, 0o600)]
)
@pytest.mark.parametrize("restrict", [restrict_to_owner, create_private])
def test_permissions_of_others_are_taken_and_logged(
    tmp_path: Path, restrict: Callable[[Path], None], mode: int, now: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    path.chmod(mode)
    assert logged(restrict, path) == [
        f"{path} had mode {mode:04o}, which gave others access; now it has {now:04o}"
    ]
    assert (mode_of(path), path.read_bytes()) == (now, b"kept")
    assert logged(restrict, path) == []


def test_directory_is_restricted_too(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir(mode=0o755)
    restrict_to_owner(tmp_path / "directory")
    assert mode_of(tmp_path / "directory") == 0o700


def test_locks_of_an_existing_file_are_kept(tmp_path: Path) -> None:
    """A process that closes a descriptor of a file loses its POSIX locks on it."""
    path = tmp_path / "database"
    path.touch(0o644)
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        create_private(path)
        other = subprocess.run([sys.executable, "-c", LOCK, path], check=False, capture_output=True)
    assert b"BlockingIOError" in other.stderr


def test_file_of_a_third_user_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    expected = [
        f"{path} belongs to uid {owner}, who can read and change it; this service runs as uid {owner + 1}"
    ]
    assert logged(restrict_to_owner, path) == list(describe_exposure(path)) == expected


def test_file_that_cannot_be_restricted_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    path = tmp_path / "file"
    path.touch()
    path.chmod(0o640)
    monkeypatch.setattr(os, "chmod", refuse)
    assert logged(restrict_to_owner, path) == [
        f"{path} has mode 0640, which gives others access and only its owner can change"
    ]


@pytest.mark.parametrize(
    ("mode", "is_logged"), [(0o600, False), (0o440, False), (0o644, True), (0o602, True)]
)
def test_configured_file_is_exposed_if_every_user_has_access(
    tmp_path: Path, mode: int, *, is_logged: bool
) -> None:
    path, link = tmp_path / "tls.key", tmp_path / "link"
    path.touch()
    path.chmod(mode)
    link.symlink_to(path)
    expected = f"{link} has mode {mode:04o}: every user has access to it"
    assert list(describe_exposure(link)) == ([expected] if is_logged else [])
    assert mode_of(path) == mode
