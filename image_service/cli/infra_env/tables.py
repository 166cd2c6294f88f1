"""Files of ``image-service infra-env`` that list machines: a table in CSV, and a list in YAML."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from image_service.cli.shared.input import STANDARD_INPUT, read_input
from image_service.core.errors import FormatError, InvalidParameter
from image_service.core.formats.documents.yaml_texts import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXTS = ("name", "base", "arch", "hostname")
_FILES = ("ignition", "butane", "config")
_COLUMNS = (*_TEXTS, *_FILES, "ssh_key", "karg", "network", "mac")
_DEFAULT_INTERFACE = "eth0"


@attrs.frozen
class TableRow:
    """A row of a table.

    Args:
        line: of the file; where the row ends.
        values: by column, without empty ones.
        surplus: it has more cells than the table has columns.
        directory: of the file, to which paths are relative.
    """

    line: int
    values: Mapping[str, str]
    surplus: bool
    directory: Path

    def options(self, common: argparse.Namespace) -> argparse.Namespace:
        """Return the options of the command, replaced by those of the row; raises InvalidParameter."""
        if self.surplus:
            raise InvalidParameter("the line has more cells than the first line has columns")
        own: dict[str, Any] = {name: self.values[name] for name in _TEXTS if name in self.values}
        configs = {name: self._path(name) for name in _FILES if name in self.values}
        if configs:
            own |= {**dict.fromkeys(_FILES), **configs}
        if {"ignition", "butane"} <= configs.keys():
            raise InvalidParameter("ignition and butane: only one of them is possible")
        if "ssh_key" in self.values:
            own["ssh_key"] = [self._path("ssh_key")]
        if "karg" in self.values:
            added = [{"operation": "append", "value": word} for word in self.values["karg"].split()]
            own["kernel_arguments"] = [*(common.kernel_arguments or ()), *added]
        return argparse.Namespace(**{**vars(common), **own})

    def static_network(self) -> dict[str, Any]:
        """Return the field of the row's network and MAC addresses, if it has a network."""
        if "network" not in self.values:
            return {}
        if "mac" not in self.values:
            raise InvalidParameter("network needs mac: MAC of eth0, or NAME=MAC of each interface")
        pairs = [word.rpartition("=") for word in self.values["mac"].split()]
        mapping = [
            {"logical_nic_name": name or _DEFAULT_INTERFACE, "mac_address": mac} for name, _, mac in pairs
        ]
        network = read_text(self._path("network"), "network")
        return {"static_network_config": [{"network_yaml": network, "mac_interface_map": mapping}]}

    def _path(self, column: str) -> str:
        return str(self.directory / self.values[column])


def read_rows(name: str) -> list[TableRow]:
    """Return the rows of a table, whose first line names the columns.

    Raises:
        InvalidParameter: it is not such a table.
        OSError: it cannot be read.
    """
    text = read_text(name, "--csv").removeprefix("\ufeff")
    head = text.partition("\n")[0]
    delimiter = ";" if ";" in head and "," not in head else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    directory = Path() if name == STANDARD_INPUT else Path(name).parent
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = columns
        unknown = sorted(set(columns) - set(_COLUMNS))
        if "name" not in columns or unknown or len(set(columns)) < len(columns):
            raise InvalidParameter(
                f"--csv {name}: the first line must name columns, each once: name, and of"
                f" {', '.join(_COLUMNS[1:])}" + f"; not {', '.join(map(ascii, unknown))}" * bool(unknown)
            )
        return [
            TableRow(
                reader.line_num,
                {column: cells[column].strip() for column in columns if (cells[column] or "").strip()},
                None in cells,
                directory,
            )
            for cells in reader
        ]
    except csv.Error as error:
        raise InvalidParameter(f"--csv {name}, line {reader.reader.line_num}: {error}") from None


def read_yaml_list(name: str) -> list[object]:
    """Return a list in YAML or JSON, whose scalars are texts; raises as `read_rows` does."""
    option = "--static-network"
    try:
        found = parse_yaml(read_text(name, option))
    except FormatError as error:
        raise InvalidParameter(f"{option} {name}: {error.detail}") from None
    if not isinstance(found, list):
        raise InvalidParameter(f"{option} {name}: must have a list, whose items are of the machines")
    return found


def read_text(name: str, option: str) -> str:
    """Return the text of a file; raises as `read_rows` does."""
    try:
        return read_input(name).decode()
    except UnicodeDecodeError:
        raise InvalidParameter(f"{option} {name}: is not text in UTF-8") from None
