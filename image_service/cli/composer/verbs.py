"""The verbs of ``image-service compose``."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any

from image_service.cli.composer.client import ComposerClient
from image_service.cli.shared.input import read_input
from image_service.cli.shared.output import choose_output, open_output
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import EXIT_FAILURE, exit_on_signals, printable
from image_service.core.errors import ConfigurationError, InvalidParameter, Unavailable
from image_service.jobs.worker.requests import ServerAddress, ServerRequests
from image_service.settings.base_images import StorageSettings
from image_service.settings.jobs.jobs import JobsSettings
from image_service.settings.variables import read_group
from image_service.tools.iso.writing import write_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

_COLUMNS = ("id", "state", "distribution", "architecture", "image_type", "created_at")


def run_start(options: argparse.Namespace) -> int:
    """Start a compose; wait for it and download its image if the options say so."""
    is_followed = options.wait or options.output is not None
    output = None if options.output is None else choose_output(options.output, force=options.force)
    client = _client(options)
    compose_id = client.start(_request(options))
    # Standard output may be the target of the image.
    print(compose_id, file=sys.stderr if options.output == "-" else sys.stdout, flush=True)
    if not is_followed:
        return 0
    status = client.wait(compose_id, _Display())
    if status["status"] != "success":
        reason = printable(_describe_error(status))
        tell(f"image-service: the compose has failed: {reason}")
        return EXIT_FAILURE
    if options.output is not None:
        _download(client, compose_id, output)
    return 0


def run_list(options: argparse.Namespace) -> int:
    """Print a table of composes."""
    parameters = {"size": options.limit, **({"status": options.status} if options.status else {})}
    statuses = _client(options).find_page(**parameters)
    if options.json:
        print(json.dumps(statuses, indent=2))  # noqa: T201
        return 0
    rows = [[column.upper().replace("_", " ") for column in _COLUMNS]]
    for status in statuses:
        status["state"] = status["image_status"]["status"]
        rows.append([printable(str(status.get(column, ""))) for column in _COLUMNS])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for cells in rows:
        print("  ".join(map(str.ljust, cells, widths)).rstrip())  # noqa: T201
    return 0


def run_status(options: argparse.Namespace) -> int:
    """Print the status of a compose."""
    status = _client(options).find(options.compose)
    if options.json:
        print(json.dumps(status, indent=2))  # noqa: T201
        return 0
    for name, text in _facts(status):
        print(f"{name:14}{printable(text)}")  # noqa: T201
    return 0


def run_download(options: argparse.Namespace) -> int:
    """Download an image."""
    output = choose_output(options.output, force=options.force)
    _download(_client(options), options.compose, output)
    return 0


def run_cancel(options: argparse.Namespace) -> int:
    """Cancel a compose."""
    _client(options).cancel(options.compose)
    return 0


def _client(options: argparse.Namespace) -> ComposerClient:
    try:
        address = ServerAddress.parse(options.server or _own_socket())
    except ValueError as error:
        options.refuse(f"argument --server: {error}")  # does not return
        raise
    return ComposerClient(ServerRequests(address, options.token_file, options.ca_file))


def _own_socket() -> str:
    """Return the socket of a jobs role with the same environment; raises ConfigurationError."""
    faults: list[str] = []
    jobs = read_group(JobsSettings, os.environ, faults)
    storage = read_group(StorageSettings, os.environ, faults)
    if faults:
        raise ConfigurationError("\n".join(faults))
    path = jobs.in_directory(storage.data_dir).socket_path
    if path is None:
        raise ConfigurationError("JOBS_LISTEN has no Unix socket; --server names the jobs role")
    if not path.exists():
        raise Unavailable(
            f"cannot connect to unix:{path}: No such file or directory; is `image-service jobs` running with"
            " this DATA_DIR? --server names another one"
        )
    return f"unix:{path}"


def _request(options: argparse.Namespace) -> dict[str, Any]:
    """Return the content of a request for a compose."""
    customizations: dict[str, Any] = {}
    if options.ignition is not None:
        config = b64encode(read_input(options.ignition)).decode()
        customizations["ignition"] = {"embedded": {"config": config}}
    if options.karg_append:
        customizations["kernel"] = {"append": " ".join(options.karg_append)}
    if options.public and not options.s3_region:
        raise InvalidParameter("--public makes an upload public: it needs --s3-region")
    target: dict[str, Any] = {"type": "local", "upload_options": {}}
    if options.s3_region:
        upload_options = {"region": options.s3_region, "public": options.public}
        target = {"type": "aws.s3", "upload_options": upload_options}
    image = {
        "architecture": options.arch,
        "image_type": options.type,
        "repositories": [],
        "upload_targets": [target],
        **({"size": options.size} if options.size is not None else {}),
    }
    return {
        "distribution": options.distribution,
        "image_requests": [image],
        **({"customizations": customizations} if customizations else {}),
    }


def _download(client: ComposerClient, compose_id: str, output: Path | None) -> None:
    exit_on_signals()
    with open_output(output) as file:
        client.download(compose_id, partial(write_all, target=file.fileno()))


class _Display:
    """Prints the state of a compose to standard error when it changes."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, status: dict[str, Any]) -> None:
        """Print the state, if it is new."""
        state = _describe_state(status)
        if state != self._shown:
            self._shown = state
            tell(printable(state), "info")


def _facts(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", status["id"]
    yield "state", _describe_state(status)
    for name in ("distribution", "architecture", "image_type", "created_at", "finished_at"):
        if name in status:
            yield name.removesuffix("_at").replace("_", " "), str(status[name])
    for upload in status["image_status"].get("upload_statuses", []):
        options = upload["options"]
        yield "upload", f"{upload['type']}: {upload['status']} {options.get('url', '')}".rstrip()
    if "error" in status["image_status"]:
        yield "error", _describe_error(status)


def _describe_state(status: dict[str, Any]) -> str:
    image = status["image_status"]
    progress = image.get("progress")
    if not progress:
        return str(image["status"])
    return f"{image['status']}: {progress['done']} of {progress['total']} jobs have ended"


def _describe_error(status: dict[str, Any]) -> str:
    error = status["image_status"].get("error", {})
    return ": ".join(str(error[name]) for name in ("reason", "details") if error.get(name))


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "start": run_start,
    "list": run_list,
    "status": run_status,
    "download": run_download,
    "cancel": run_cancel,
}
