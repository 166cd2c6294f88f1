"""The stand-in's infra-envs in SQLite. Every call blocks; make them in one thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
from sqlalchemy import (
    JSON,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    create_engine,
    inspect,
    text,
)

from image_service.common.files.private_files import create_private
from image_service.core.errors import NotFound
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.reference import Kind
from image_service.server.standalone.infra_env import StandaloneInfraEnv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_METADATA = MetaData()
_INFRA_ENVS = Table(
    "infra_envs",
    _METADATA,
    Column("id", String(36), primary_key=True),
    Column("name", Text, nullable=False),
    Column("openshift_version", Text, nullable=False),
    Column("cpu_architecture", Text, nullable=False),
    Column("image_type", Text, nullable=False),
    Column("ignition_config_override", Text),
    Column("ssh_authorized_key", Text),
    Column("hostname", Text),
    Column("family_config", LargeBinary),
    Column("kernel_arguments", JSON, nullable=False),  # list of pairs
    Column("network_keyfiles", JSON, nullable=False),  # object
    Column("static_network_config", Text),
    Column("static_network_files", JSON(none_as_null=True)),  # object
    Column("ramdisk", LargeBinary),
    Column("created_at", Integer, nullable=False),  # seconds since 1970, UTC
    Column("updated_at", Integer, nullable=False),
)


class InfraEnvStore:
    """Infra-envs on disk.

    Args:
        path: of the database; made if it is missing, readable for its owner alone.
    """

    def __init__(self, path: Path) -> None:
        create_private(path)  # SQLite gives its mode to the files beside it
        self._engine = create_engine(f"sqlite:///{path}")
        _METADATA.create_all(self._engine)
        with self._engine.begin() as connection:
            columns = {column["name"] for column in inspect(connection).get_columns(_INFRA_ENVS.name)}
            for column in _INFRA_ENVS.columns:
                if column.name not in columns:  # the store of an earlier version
                    column_type = column.type.compile(self._engine.dialect)
                    statement = f"ALTER TABLE {_INFRA_ENVS.name} ADD COLUMN {column.name} {column_type}"
                    connection.execute(text(statement))

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def add_infra_env(self, infra_env: StandaloneInfraEnv) -> StandaloneInfraEnv:
        """Store a new infra-env."""
        with self._engine.begin() as connection:
            connection.execute(_INFRA_ENVS.insert().values(_to_row(infra_env)))
        return infra_env

    def find_infra_env(self, infra_env_id: str) -> StandaloneInfraEnv:
        """Return an infra-env; raises NotFound."""
        with self._engine.begin() as connection:
            row = connection.execute(_INFRA_ENVS.select().where(_INFRA_ENVS.c.id == infra_env_id)).first()
        if row is None:
            raise _not_found(infra_env_id)
        return _from_row(row)

    def list_infra_envs(self) -> list[StandaloneInfraEnv]:
        """Return all, in the order of their names."""
        with self._engine.begin() as connection:
            rows = connection.execute(_INFRA_ENVS.select().order_by(_INFRA_ENVS.c.name, _INFRA_ENVS.c.id))
            return [_from_row(row) for row in rows]

    def update_infra_env(
        self, infra_env_id: str, fields: Mapping[str, Any], now: datetime
    ) -> StandaloneInfraEnv:
        """Change some fields, and return the infra-env; raises NotFound.

        Its date is `now` in UTC, but at least a second after the last change: Last-Modified has seconds, and
        must differ after every change.
        """
        before = self.find_infra_env(infra_env_id)
        updated_at = max(now.replace(microsecond=0), before.updated_at + timedelta(seconds=1))
        after = attrs.evolve(before, **fields, updated_at=updated_at)
        with self._engine.begin() as connection:
            connection.execute(
                _INFRA_ENVS.update().where(_INFRA_ENVS.c.id == infra_env_id).values(_to_row(after))
            )
        return after

    def remove_infra_env(self, infra_env_id: str) -> None:
        """Remove an infra-env; raises NotFound."""
        with self._engine.begin() as connection:
            removed = connection.execute(_INFRA_ENVS.delete().where(_INFRA_ENVS.c.id == infra_env_id))
        if not removed.rowcount:
            raise _not_found(infra_env_id)


def _not_found(infra_env_id: str) -> NotFound:
    return NotFound(f"no such infra-env: {infra_env_id}")


def _to_row(infra_env: StandaloneInfraEnv) -> dict[str, Any]:
    return attrs.asdict(infra_env, recurse=False) | {
        "image_type": infra_env.image_type.value,
        "kernel_arguments": [
            (argument.operation.value, argument.value) for argument in infra_env.kernel_arguments
        ],
        "created_at": int(infra_env.created_at.timestamp()),
        "updated_at": int(infra_env.updated_at.timestamp()),
    }


def _from_row(row: Row[Any]) -> StandaloneInfraEnv:
    columns = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's documented name for it
    columns["image_type"] = Kind(columns["image_type"])
    columns["kernel_arguments"] = tuple(
        KernelArgument(Operation(operation), value) for operation, value in columns["kernel_arguments"]
    )
    for name in ("created_at", "updated_at"):
        columns[name] = datetime.fromtimestamp(columns[name], UTC)
    return StandaloneInfraEnv(**columns)
