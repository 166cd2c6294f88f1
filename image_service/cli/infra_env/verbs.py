"""The verbs of ``image-service infra-env``: requests to the API of standalone mode."""

from __future__ import annotations

import base64
import json
import os
import re
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import attrs

from image_service.cli.infra_env.kinds import URLS_OF_KINDS
from image_service.cli.shared.input import STANDARD_INPUT, read_input
from image_service.common.command_line.parser import printable
from image_service.core.errors import ConfigurationError, ImageServiceError, InvalidParameter, NotFound
from image_service.core.families.coreos.ignition import is_butane
from image_service.server.admin.client import AdminClient
from image_service.server.standalone.tables import parse_table
from image_service.settings.upstream import StandaloneSettings
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from image_service.server.standalone.tables import ReadFile, TableRow

_PATH = "/api/assisted-install/v2/infra-envs"
_ID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COLUMNS = ("id", "name", "openshift_version", "cpu_architecture", "updated_at")
_ROW_COLUMNS = ("LINE", "NAME", "MAC", "ISO")
_LABELS = {
    "iso": "ISO",
    "iso_sha256": "its SHA-256",
    "config_iso": "config ISO",
    "minimal_iso": "minimal ISO",
    "minimal_iso_sha256": "its SHA-256",
    "ipxe_script": "iPXE script",
    "kernel": "kernel",
    "initrd": "initrd",
    "rootfs": "rootfs",
}


def create(options: argparse.Namespace) -> None:
    """Register an infra-env, or one for each row of a table, and print them."""
    api = _api(options)
    if options.csv is None:
        _print(api.post(_PATH, _fields(options)), options)
        return
    results = _create_rows(api, options)
    if options.json:
        _write(json.dumps([attrs.asdict(result) for result in results], indent=2))
    else:
        _write_table([_ROW_COLUMNS, *(result.cells for result in results)])
    failed = sum(result.fault is not None for result in results)
    if failed:
        raise InvalidParameter(f"{failed} of {len(results)} infra-envs were not registered")


@attrs.frozen
class RowResult:
    """What became of a row: an infra-env, or a fault."""

    line: int
    name: str | None
    mac: str | None
    infra_env: dict[str, Any] | None = attrs.field(default=None, repr=False)
    fault: str | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Those of `_ROW_COLUMNS`."""
        found = self.infra_env["image_urls"]["iso"] if self.infra_env else f"not registered: {self.fault}"
        return str(self.line), self.name or "-", self.mac or "-", found


def _create_rows(api: AdminClient, options: argparse.Namespace) -> list[RowResult]:
    common, text = _fields(options), _read_text(options.csv, "--csv")
    directory = Path() if options.csv == STANDARD_INPUT else Path(options.csv).parent
    try:
        rows = parse_table(text)
    except InvalidParameter as error:
        raise InvalidParameter(f"--csv {options.csv}: {error.detail}") from None
    return [_create_row(api, row, common, lambda name: read_input(str(directory / name))) for row in rows]


def _create_row(api: AdminClient, row: TableRow, common: Mapping[str, Any], read: ReadFile) -> RowResult:
    result = partial(RowResult, row.line, row.name, row.mac)
    try:
        return result(infra_env=json.loads(api.post(_PATH, row.fields(common, read))))
    except ImageServiceError as error:
        return result(fault=error.detail)
    except OSError as error:
        return result(fault=f"{error.filename}: {error.strerror}")


def _read_text(name: str, option: str) -> str:
    """Return the text of a file, which an option names.

    Raises:
        InvalidParameter: it is not text in UTF-8.
        OSError: it cannot be read.
    """
    try:
        return read_input(name).decode()
    except UnicodeDecodeError:
        raise InvalidParameter(f"{option} {name}: is not text in UTF-8") from None


def show(options: argparse.Namespace) -> None:
    """Print an infra-env."""
    api = _api(options)
    _print(api.get(f"{_PATH}/{_find(api, options.infra_env)}"), options)


def edit(options: argparse.Namespace) -> None:
    """Change an infra-env, and print it."""
    fields = _fields(options)
    if not fields:
        raise InvalidParameter("edit: no option says what to change")
    api = _api(options)
    _print(api.request("PATCH", f"{_PATH}/{_find(api, options.infra_env)}", fields), options)


def copy(options: argparse.Namespace) -> None:
    """Register an infra-env like another one, and print it."""
    api = _api(options)
    path = f"{_PATH}/{_find(api, options.infra_env)}/copies"
    _print(api.post(path, _fields(options)), options)


def delete(options: argparse.Namespace) -> None:
    """Remove infra-envs, if all of them exist."""
    api = _api(options)
    for found in [_find(api, infra_env) for infra_env in options.infra_envs]:
        api.request("DELETE", f"{_PATH}/{found}")


def show_all(options: argparse.Namespace) -> None:
    """Print all infra-envs."""
    infra_envs = json.loads(_api(options).get(_PATH))
    if options.json:
        _write(json.dumps(infra_envs, indent=2))
        return
    heads = [column.upper().replace("_", " ") for column in _COLUMNS]
    _write_table([heads, *([infra_env[column] for column in _COLUMNS] for infra_env in infra_envs)])


VERBS = {"create": create, "list": show_all, "show": show, "edit": edit, "copy": copy, "delete": delete}


def _api(options: argparse.Namespace) -> AdminClient:
    if options.api is not None:
        return AdminClient(options.api, options.token_file, options.ca_file)
    faults: list[str] = []
    standalone = read_group(StandaloneSettings, os.environ, faults)
    if faults:
        raise ConfigurationError("\n".join(faults))
    url = f"http://{standalone.listen.reached.netloc}"
    return AdminClient(url, options.token_file, options.ca_file, standalone.token)


def _find(api: AdminClient, infra_env: str) -> str:
    """Return the id of an infra-env, which is named by its id or its name."""
    if _ID.fullmatch(infra_env):
        return infra_env
    found = [each["id"] for each in json.loads(api.get(_PATH)) if each["name"] == infra_env]
    if len(found) > 1:
        raise InvalidParameter(
            f"{printable(infra_env)} is the name of {len(found)} infra-envs: {', '.join(found)}"
        )
    if not found:
        raise NotFound(f"no infra-env has the name or id {printable(infra_env)}")
    id_: str = found[0]
    return id_


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that options give."""
    given = {
        "name": options.name,
        "openshift_version": options.base,
        "cpu_architecture": options.arch,
        "hostname": options.hostname,
        "kernel_arguments": options.kernel_arguments,
        "ignition_config_override": _read_coreos_config(options),
        "ssh_authorized_key": options.ssh_key and "\n".join(_read_texts(options.ssh_key)),
    }
    if options.config is not None:
        given["family_config"] = {"base64": base64.b64encode(read_input(options.config)).decode()}
    if options.static_network is not None:
        given["static_network_config"] = _read_text(options.static_network, "--static-network")
    if options.network_keyfile is not None:
        keyfiles = options.network_keyfile
        given["network_keyfiles"] = {
            path.name: _read_text(str(path), "--network-keyfile") for path in keyfiles
        }
    return {name: value for name, value in given.items() if value is not None}


def _read_texts(names: Sequence[str]) -> Iterable[str]:
    return (_read_text(name, "--ssh-key") for name in names)


def _read_coreos_config(options: argparse.Namespace) -> str | None:
    if options.butane is None:
        return options.ignition and _read_text(options.ignition, "--ignition")
    config = _read_text(options.butane, "--butane")
    if not is_butane(config.encode()):
        raise InvalidParameter(f"--butane {options.butane}: is not Butane, which has a line variant: NAME")
    return config


def _print(body: bytes, options: argparse.Namespace) -> None:
    infra_env = json.loads(body)
    urls = infra_env["image_urls"]
    if options.kinds:
        listed = {name for kind in options.kinds for name in URLS_OF_KINDS[kind]}
        urls = infra_env["image_urls"] = {name: url for name, url in urls.items() if name in listed}
    if options.json:
        _write(json.dumps(infra_env, indent=2))
        return
    rows = [("infra-env", f"{infra_env['name']} ({infra_env['id']})")]
    rows += [(_LABELS[name], url) for name, url in urls.items() if name in _LABELS]
    if not urls:
        rows.append(("images", "the base image has no image of the given --kind"))
    if medium := urls.get("iso") or urls.get("minimal_iso"):
        rows.append(("download", f"curl -fo {medium.rpartition('/')[2]} {quote(medium)}"))
        rows.append(("boot", f"image-service boot {quote(medium)} --redfish BMC"))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        _write(f"{label.ljust(width)}  {printable(value)}")


def _write_table(rows: Iterable[Sequence[str]]) -> None:
    lines = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        _write("  ".join(map(str.ljust, cells, widths)).rstrip())


def _write(text: str) -> None:
    print(text)  # noqa: T201 - the command's output
