"""Processes that fetch images into a directory, and are killed at a step of that.

A step is a system call that touches the directory, as audit events report it.

usage: python -m tests.server.catalog.fetching fetch DIRECTORY URL…
       python -m tests.server.catalog.fetching steps=STRIDE DIRECTORY URL
       python -m tests.server.catalog.fetching random-steps=TIMES DIRECTORY URL…
       python -m tests.server.catalog.fetching full-disk DIRECTORY URL…

An image's URL ends with the SHA-256 of its content, with which any result is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch
from urllib.parse import urlsplit

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files import disk_quota
from image_service.core.errors import Unavailable
from image_service.server.catalog.download import partial_file
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage
from image_service.settings.registries import RegistrySettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

STEPS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.scandir", "fcntl.fcntl"}
SYNC_BYTES = 32 * 1024  # small, so that progress is stored within the short life of a process


def digest_of(url: str) -> str:
    """What the content at a URL must have."""
    return url.rpartition("/")[2]


def entry(url: str) -> OsImage:
    """The image at a URL; it does not know its digest, so nothing helps it to be right."""
    return OsImage(digest_of(url), "x86_64", "full-iso", ("4.17",), url)


# One process.


@cache
def _origin_client(registries: tuple[str, ...]) -> OriginClient:
    """Loading the certificate authorities takes longer than all the rest."""
    return OriginClient.from_settings(DownloadSettings(), registries=RegistrySettings(insecure=registries))


def _client_for(urls: Sequence[str]) -> OriginClient:
    return _origin_client(tuple(urlsplit(url).netloc for url in urls if url.startswith("oci://")))


def fetch(directory: Path, urls: Sequence[str]) -> list[str]:
    """Fetch and open images concurrently; return the digest of what would be served, or the error."""
    partial_file.SYNC_BYTES = SYNC_BYTES
    disk_quota.SPARE_BYTES = 0  # so that the disk really gets full
    data_dir = DataDir(directory)
    data_dir.open()
    fetcher = ImageFetcher(data_dir, partial(download_file, _client_for(urls)))
    with ThreadPoolExecutor(len(urls)) as pool:
        outputs = list(pool.map(lambda url: _fetch_one(fetcher, entry(url)), urls))
    data_dir.close()
    return outputs


def _fetch_one(fetcher: ImageFetcher, image: OsImage) -> str:
    try:
        fetcher.fetch_if_absent(image, Interruption())
        base = fetcher.open(image, Interruption())
    except Unavailable as error:
        return error.detail
    except OSError as error:
        return os.strerror(error.errno or 0)
    with os.fdopen(base.file.descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(directory: Path, urls: Sequence[str], kill_at_step: int = 0) -> tuple[set[str], int]:
    """Fork a process that fetches, which succeeds or is killed; return its output and number of steps."""
    _client_for(urls)
    reading, writing = os.pipe()
    child = os.fork()  # modules and certificate authorities are loaded already
    if child == 0:
        try:
            if kill_at_step:
                _kill_at(directory, kill_at_step)
            steps = _count_steps(directory)
            lines = fetch(directory, urls)
            os.write(writing, json.dumps([lines, steps()]).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the last thing of this process
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        output = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(directory, urls)
    if status == -signal.SIGKILL:
        return set(), 0
    if status != 0:
        raise RuntimeError(f"a process that was not killed ended with status {status}")
    lines, made = json.loads(output)
    return set(lines), made


def check(directory: Path, urls: Sequence[str]) -> None:
    """Check that a file with an image's name is that image."""
    for url in urls:
        path = directory / entry(url).file_name
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != digest_of(url):
            raise RuntimeError(f"{path.name} is not what it should be")


def _kill_at(directory: Path, step: int) -> None:
    """Kill this process at its n-th step."""
    steps = _count_steps(directory)

    def hook(event: str, _: tuple[object, ...]) -> None:
        if event in STEPS and steps() >= step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _count_steps(directory: Path) -> Callable[[], int]:
    """Return a function that returns how many steps this process has made."""
    made: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        touches = event == "fcntl.fcntl" or any(str(directory) in str(argument) for argument in arguments)
        if event in STEPS and touches:
            made.append(event)

    sys.addaudithook(hook)
    return lambda: len(made)


# Killed at every step, or at random steps.


def kill_at_steps(directory: Path, urls: Sequence[str], stride: int) -> list[str]:
    """Be killed before the first step that touches the directory, then `stride` steps later, and so on.

    After each kill another process has to succeed; returns the outputs.
    """
    outputs: list[str] = []
    killed = True
    while killed:
        shutil.rmtree(directory, ignore_errors=True)
        killed = not run(directory, urls, len(outputs) * stride + 1)[0]
        outputs += run(directory, urls)[0]
    return outputs


def kill_often(
    directory: Path, urls: Sequence[str], times: int, between: Callable[[int], object] = lambda _: None
) -> set[str]:
    """Start processes and kill each at a step between its first and its last.

    Args:
        directory: where they fetch to; emptied whenever all images are there.
        urls: of the images.
        times: how many processes.
        between: called before each.

    Returns:
        the output of those that were not killed.
    """
    chance = random.Random(6)  # noqa: S311 - not for secrets
    outputs, steps = run(directory, urls)
    for number in range(times):
        if all((directory / entry(url).file_name).exists() for url in urls):
            for path in directory.iterdir():
                path.unlink()
        between(number)
        outputs |= run(directory, urls, chance.randint(1, steps))[0]
    return outputs


def random_steps(directory: Path, urls: Sequence[str], times: int) -> set[str]:
    """Be killed some times, then succeed."""
    return kill_often(directory, urls, times) | run(directory, urls)[0]


def full_disk(directory: Path, urls: Sequence[str]) -> list[str]:
    """Be killed on a small disk that is filled by another user now and then; at the end there is space."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "images", directory], check=True)
    (directory / "data").mkdir()
    theirs = directory / "theirs"

    def fill(number: int) -> None:
        free = shutil.disk_usage(directory).free
        theirs.write_bytes(bytes(free * (number % 4) // 3))

    fill(0)
    outputs = kill_often(directory / "data", urls, 16, fill)
    for number in range(4):
        fill(number)
        outputs |= run(directory / "data", urls)[0]
    theirs.unlink()
    return [*outputs, *run(directory / "data", urls)[0]]


if __name__ == "__main__":
    what, where, *all_urls = sys.argv[1:]
    what, _, number = what.partition("=")
    work: dict[str, Callable[[Path, list[str]], Iterable[str]]] = {
        "fetch": fetch,
        "steps": lambda path, urls: kill_at_steps(path, urls, int(number)),
        "random-steps": lambda path, urls: random_steps(path, urls, int(number)),
        "full-disk": full_disk,
    }
    with patch("os.fsync"):  # slow; a process that is killed loses nothing that it has written
        for line in work[what](Path(where), all_urls):
            print(line)  # noqa: T201 - its output
