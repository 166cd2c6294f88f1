"""Texts that are in files: ``NAME=@FILE``."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.parsers import MAX_FILE_BYTES
from image_service.settings.settings import Settings, variables
from tests.settings.conftest import IMAGE, SECRET

if TYPE_CHECKING:
    from pathlib import Path

STREAM = {"stream": "stable", "url": "https://mirror.example/stable.json", "architectures": ["x86_64"]}


def faults(environ: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigurationError) as refusal:
        Settings.from_environment(environ)
    return refusal.value.detail.splitlines()


def test_texts_in_files_are_equal_to_texts_in_variables(complete: dict[str, str], tmp_path: Path) -> None:
    texts = {
        "OS_IMAGES": json.dumps([IMAGE]),
        "COREOS_STREAMS": json.dumps([STREAM]),
        "LOGLEVEL": "warning",
        "WEBHOOK_URL": "https://chat.example/hooks/a",
    }
    assert {variable.names[0] for variable in variables() if variable.from_file} == set(texts)
    for name, text in texts.items():
        (tmp_path / name).write_text(f"\n {text}\n")
    in_files = {name: f"@{tmp_path / name}" for name in texts}
    settings = Settings.from_environment({**complete, **in_files})
    assert settings == Settings.from_environment({**complete, **texts})
    assert settings.log.level == "warn"


def test_second_name_of_a_variable_may_name_a_file(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "level").write_text("error\n")
    environ = {**complete, "LOG_LEVEL": f"@{tmp_path / 'level'}"}
    assert Settings.from_environment(environ).log.level == "error"


def test_link_to_a_file_is_followed(complete: dict[str, str], tmp_path: Path) -> None:
    """Kubernetes mounts the files of a ConfigMap as links."""
    (tmp_path / "images").write_text(complete["OS_IMAGES"])
    (tmp_path / "link").symlink_to("images")
    linked = Settings.from_environment({**complete, "OS_IMAGES": f"@{tmp_path / 'link'}"})
    assert linked == Settings.from_environment(complete)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "must be JSON: Expecting value: line 1 column 1 (char 0)"),
        (SECRET.encode(), "must be JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 200_000, "must be JSON: "),
        (b'["' + SECRET.encode() + b'"]', "entry 0: must be an object"),
        (b'["\xff"]', "must be a file in UTF-8: byte 2 is not"),
        (b" " * (MAX_FILE_BYTES + 1), "must be a file of at most 1048576 bytes"),
    ],
)
def test_fault_in_a_file_names_variable_and_file(
    complete: dict[str, str], tmp_path: Path, content: bytes, fault: str
) -> None:
    path = tmp_path / "images.json"
    path.write_bytes(content)
    (found,) = faults({**complete, "OS_IMAGES": f"@{path}"})
    assert found.startswith(f"OS_IMAGES=@{path}: {fault}")
    assert SECRET not in found


def test_file_that_cannot_be_read_is_a_fault(complete: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, fault in (
        (tmp_path / "missing", "must be a readable file: No such file or directory"),
        (tmp_path / ("x" * 300), "must be a readable file: File name too long"),
        (tmp_path, "must be a regular file"),
        (tmp_path / "fifo", "must be a regular file"),
    ):
        assert faults({**complete, "LOGLEVEL": f"@{path}"}) == [f"LOGLEVEL=@{path}: {fault}"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_a_fault(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "locked").write_text("info")
    (tmp_path / "locked").chmod(0)
    (found,) = faults({**complete, "LOGLEVEL": f"@{tmp_path / 'locked'}"})
    assert found.endswith("must be a readable file: Permission denied")


def test_text_behind_the_at_sign_is_repeated_only_if_it_is_a_path(complete: dict[str, str]) -> None:
    text = f'@[{{"url": "https://mirror.example/?token={SECRET}"}}]'
    assert faults({**complete, "OS_IMAGES": text}) == [
        "OS_IMAGES: must have the absolute path of a file after the @"
    ]


def test_path_without_the_at_sign_is_refused_with_a_hint(complete: dict[str, str]) -> None:
    (found,) = faults({**complete, "OS_IMAGES": "/etc/os-images.json"})
    assert found == (
        "OS_IMAGES: must be JSON: Expecting value: line 1 column 1 (char 0); to read this file, write"
        " OS_IMAGES=@/etc/os-images.json"
    )


def test_other_variables_take_the_at_sign_as_it_is(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "port").write_text("8080")
    (found,) = faults({**complete, "LISTEN_PORT": f"@{tmp_path / 'port'}"})
    assert found.startswith("LISTEN_PORT='…@")
