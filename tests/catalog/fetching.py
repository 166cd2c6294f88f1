"""Processes that fetch images into a directory, and are killed at a step of that.

A step is a system call that touches the directory, as audit events report it.

usage: [KILL_AT_STEP=N] python -m tests.catalog.fetching fetch DIRECTORY URL…
       python -m tests.catalog.fetching every-step DIRECTORY URL
       python -m tests.catalog.fetching full-disk DIRECTORY URL…

An image's URL ends with the SHA-256 of its content, with which any result is compared.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.catalog.download import partial_file
from image_service.catalog.download.downloader import download_file
from image_service.catalog.download.origin_client import OriginClient
from image_service.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.catalog.storage.data_dir import DataDir
from image_service.concurrency.interruption import Interruption
from image_service.errors import Unavailable
from image_service.files import disk_quota
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.scandir", "fcntl.fcntl"}
SYNC_BYTES = 32 * 1024  # small, so that progress is stored within the short life of a process


def digest_of(url: str) -> str:
    """What the content at a URL must have."""
    return url.rpartition("/")[2]


def entry(url: str) -> OsImage:
    """The image at a URL; it does not know its digest, so nothing helps it to be right."""
    return OsImage(digest_of(url), "x86_64", "full-iso", ("4.17",), url)


# One process.


def fetch(directory: Path, urls: Sequence[str]) -> None:
    """Fetch and open images concurrently; print the digest of what would be served, or the error."""
    partial_file.SYNC_BYTES = SYNC_BYTES
    disk_quota.SPARE_BYTES = 0  # so that the disk really gets full
    data_dir = DataDir(directory)
    data_dir.open()
    client = OriginClient.from_settings(DownloadSettings())
    fetcher = ImageFetcher(data_dir, partial(download_file, client))
    with ThreadPoolExecutor(len(urls)) as pool:
        outputs = list(pool.map(lambda url: _fetch_one(fetcher, entry(url)), urls))
    data_dir.close()
    sys.stdout.write("".join(f"{line}\n" for line in outputs))
    sys.stdout.flush()


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


# Killed at every step.


def every_step(directory: Path, url: str) -> None:
    """Be killed before the first step that touches the directory, then before the second, and so on.

    After each kill another process has to succeed, and prints the digest.
    """
    step, killed = 0, True
    while killed:
        step += 1
        shutil.rmtree(directory, ignore_errors=True)
        dying = os.fork()
        if dying == 0:
            _kill_at(directory, step)
            _do(lambda: fetch(directory, [url]))
        killed = os.waitstatus_to_exitcode(os.waitpid(dying, 0)[1]) == -signal.SIGKILL
        check(directory, [url])
        after = os.fork()
        if after == 0:
            _do(lambda: fetch(directory, [url]))
        if os.waitstatus_to_exitcode(os.waitpid(after, 0)[1]) != 0:
            sys.exit(f"after a death at step {step} the next one failed")
        check(directory, [url])


def _do(work: Callable[[], None]) -> None:
    """Do something as the last thing of a forked process."""
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


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


# Killed at random steps.


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
        check(directory, urls)
    return outputs


def run(directory: Path, urls: Sequence[str], kill_at_step: int = 0) -> tuple[set[str], int]:
    """Run a process that fetches, which succeeds or is killed; return its output and number of steps."""
    command = [sys.executable, "-m", "tests.catalog.fetching", "fetch", str(directory), *urls]
    environment = {**os.environ, "KILL_AT_STEP": str(kill_at_step)}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode == -signal.SIGKILL:
        return set(), 0
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    *lines, steps = done.stdout.decode().splitlines()
    return set(lines), int(steps)


def run_fetch(directory: Path, urls: Sequence[str]) -> None:
    """Fetch, and print the number of steps; killed at step ``KILL_AT_STEP`` unless that is 0."""
    kill_at = int(os.environ.get("KILL_AT_STEP", "0"))
    if kill_at:
        _kill_at(directory, kill_at)
    steps = _count_steps(directory)
    fetch(directory, urls)
    sys.stdout.write(f"{steps()}\n")


def check(directory: Path, urls: Sequence[str]) -> None:
    """Check that a file with an image's name is that image."""
    for url in urls:
        path = directory / entry(url).file_name
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != digest_of(url):
            raise RuntimeError(f"{path.name} is not what it should be")


def full_disk(directory: Path, urls: Sequence[str]) -> None:
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
        check(directory / "data", urls)
    theirs.unlink()
    lines = [*outputs, *run(directory / "data", urls)[0]]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    what, where, *all_urls = sys.argv[1:]
    work = {
        "fetch": run_fetch,
        "every-step": lambda path, urls: every_step(path, *urls),
        "full-disk": full_disk,
    }
    work[what](Path(where), all_urls)
