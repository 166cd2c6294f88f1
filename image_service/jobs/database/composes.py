"""The rows of composes. Every call blocks: not for the reactor's thread.

A transaction that reads before it decides writes first, so that it has the lock of the row, or of the
database, when it reads.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import sqlalchemy as sa

from image_service.core.errors import TooManyQueued
from image_service.jobs.database.budgets import check_budget, count_ended, count_new_rows, largest_tenants
from image_service.jobs.database.statements import (
    IMAGES_IN_USE,
    UNFINISHED,
    delete_image,
    discard,
    lock_tenant,
    unless_set,
    use_image,
    utc_now,
)
from image_service.jobs.database.tables import ARTIFACTS, COMPOSES, IMAGES, JOBS, SECRETS
from image_service.jobs.database.values import (
    COMPOSE_COLUMNS,
    SUMMARY_COLUMNS,
    row_of,
    to_compose,
    to_summary,
    to_uploads,
)
from image_service.jobs.model import (
    ComposeOrigin,
    ComposeState,
    ImageCustomization,
    Job,
    JobState,
    JobType,
    job_id_of,
)
from image_service.jobs.task_model import ImportSource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from image_service.common.database.database import Database
    from image_service.jobs.database.sealing import ComposeSecrets, RowCipher
    from image_service.jobs.model import (
        Artifact,
        Compose,
        ComposeSummary,
        ImageType,
        JobError,
        Json,
        TenantBudget,
        UploadResult,
    )

_CLOCK_STEP = timedelta(minutes=1)  # more than clocks of replicas differ, unless one is wrong


@attrs.frozen
class ComposeFilter:
    """A filter of composes; None: any."""

    tenant: str | None = None  # None: all, for the operator's status page
    states: Collection[ComposeState] | None = None
    distribution: str | None = None
    image_type: ImageType | None = None
    origin: ComposeOrigin | None = None


class ComposeRepository:
    """Composes, and their secrets.

    Args:
        budget: of each tenant.
        now: in UTC.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(
        self,
        database: Database,
        cipher: RowCipher,
        budget: TenantBudget,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._budget = budget
        self._cipher = cipher
        self._now = now

    def add(self, compose: Compose, customization: ImageCustomization, max_queued: int) -> None:
        """Add a compose, its sealed customization, and its jobs as waiting, in one transaction.

        Raises:
            TooManyQueued: its tenant has `max_queued` composes that have not ended.
            BudgetExceeded: its tenant has no room for it.
            NotFound: the catalog image that it uses is not there any more.
        """

        def work(connection: sa.Connection) -> None:
            lock_tenant(self._database, connection, compose.tenant)
            unfinished = sa.select(sa.func.count()).where(
                COMPOSES.c.tenant == compose.tenant, COMPOSES.c.origin == ComposeOrigin.COMPOSER, UNFINISHED
            )
            if connection.execute(unfinished).scalar_one() >= max_queued:
                raise TooManyQueued(
                    f"JOBS_MAX_QUEUED: this tenant has {max_queued} composes that have not ended"
                )
            self.insert(connection, compose, customization)

        self._database.transact(work)

    def insert(self, connection: sa.Connection, compose: Compose, secrets: ComposeSecrets | None) -> None:
        """Add a compose in a transaction of the caller, which has locked its tenant.

        Raises:
            BudgetExceeded, NotFound: as `add`.
        """
        jobs = _jobs_of(compose)
        if compose.source_image is not None:
            use_image(connection, compose.tenant, compose.source_image)
        tag = self._cipher.tag_plan(
            compose.tenant, compose.id, compose.plan, compose.source_image, compose.image_type
        )
        row = {**row_of(compose), "plan": attrs.evolve(compose.plan, tag=tag)}
        connection.execute(sa.insert(COMPOSES), row)
        if secrets is not None:
            sealed = self._cipher.seal(compose.tenant, compose.id, secrets)
            connection.execute(sa.insert(SECRETS), {"compose_id": compose.id, "sealed": sealed})
        if jobs:
            rows = [{**row_of(job), "number": number} for number, job in enumerate(jobs)]
            connection.execute(sa.insert(JOBS), rows)
        count_new_rows(connection, compose.id)
        check_budget(connection, compose.tenant, self._budget)

    def find(self, compose_id: str, tenant: str | None = None) -> Compose | None:
        """Return a compose; None: there is none, or it is of another tenant than `tenant` (None: any).

        Raises:
            RowNotAuthentic: its plan or its image was changed in the database.
        """
        row = self._find(COMPOSE_COLUMNS, compose_id, tenant)
        if row is None:
            return None
        compose = to_compose(row)
        self._cipher.check_plan(compose)
        if compose.image is not None:
            self._cipher.check_artifact(compose.tenant, compose.id, compose.image)
        return compose

    def find_summary(self, compose_id: str, tenant: str | None = None) -> ComposeSummary | None:
        """Return the summary of a compose, also of one that is not authentic; None: as `find`."""
        row = self._find(SUMMARY_COLUMNS, compose_id, tenant)
        return None if row is None else to_summary(row)

    def find_page(
        self, wanted: ComposeFilter, *, limit: int, offset: int = 0
    ) -> tuple[list[ComposeSummary], int]:
        """Return composes, newest first, and how many there are in all."""
        conditions = list(_conditions(wanted))
        newest = COMPOSES.c.created_at.desc(), COMPOSES.c.id.desc()
        page = sa.select(*SUMMARY_COLUMNS).where(*conditions).order_by(*newest).offset(offset).limit(limit)
        count = sa.select(sa.func.count()).select_from(COMPOSES).where(*conditions)

        def work(connection: sa.Connection) -> tuple[list[ComposeSummary], int]:
            summaries = [to_summary(row) for row in connection.execute(page).mappings()]
            return summaries, connection.execute(count).scalar_one()

        return self._database.transact(work)

    def customization(self, compose: Compose) -> ImageCustomization | None:
        """Return the customization of the image; None: there is none, or it was erased."""
        found = self._secrets(compose)
        return found if isinstance(found, ImageCustomization) else None

    def import_source(self, compose: Compose) -> ImportSource | None:
        """Return the source of an import; None: it is none, or its source was erased."""
        found = self._secrets(compose)
        return found if isinstance(found, ImportSource) else None

    def pin_manifests(self, compose: Compose, source: ImportSource) -> None:
        """Replace the source of an import that has not ended by one with the contents of its manifests."""
        update = sa.update(SECRETS).where(SECRETS.c.compose_id == compose.id)
        sealed = self._cipher.seal(compose.tenant, compose.id, source)
        self._database.transact(lambda connection: connection.execute(update.values(sealed=sealed)).close())

    def begin(self, compose_id: str) -> bool:
        """Record that the plan of the compose runs; False: there is no such compose, or it has ended."""
        started_at = unless_set(COMPOSES.c.started_at, self._now())
        return self._update(compose_id, state=ComposeState.BUILDING, started_at=started_at)

    def set_state(self, compose_id: str, state: ComposeState) -> bool:
        """Set a state that is not final; False: there is no such compose, or it has ended."""
        return self._update(compose_id, state=state)

    def reserve(self, compose: Compose, store_bytes: int) -> None:
        """Replace the most that the artifacts of a compose can take, unless it has ended.

        Raises:
            BudgetExceeded: its tenant has no room for it.
        """

        def work(connection: sa.Connection) -> None:
            lock_tenant(self._database, connection, compose.tenant)
            connection.execute(_of(compose.id).values(store_bytes=store_bytes))
            check_budget(connection, compose.tenant, self._budget)

        self._database.transact(work)

    def set_provenance(self, compose_id: str, provenance: Json) -> None:
        """Replace the facts that steps have reported."""
        self._update(compose_id, provenance=provenance)

    def set_upload(self, compose: ComposeSummary, number: int, upload: UploadResult) -> None:
        """Replace the state of an upload; `number` counts the targets from 0."""
        tagged = self._cipher.tag_upload(compose.tenant, compose.id, upload)

        def work(connection: sa.Connection) -> None:
            if (uploads := _lock(connection, compose.id)) is not None:
                replaced = [*uploads[:number], tagged, *uploads[number + 1 :]]
                connection.execute(_of(compose.id).values(uploads=replaced))

        self._database.transact(work)

    def check_upload(self, compose: ComposeSummary, upload: UploadResult) -> None:
        """Raise RowNotAuthentic if an upload is of another compose, or was changed in the database."""
        self._cipher.check_upload(compose.tenant, compose.id, upload)

    def finish(
        self,
        compose_id: str,
        state: ComposeState,
        *,
        error: JobError | None = None,
        image: Artifact | None = None,
        provenance: Json | None = None,
    ) -> bool:
        """End a compose, once: later calls change nothing. False: it is not there, or has ended.

        Jobs that have not ended become cancelled. Uploads that have not ended become successes or failures.
        All artifacts but `image` and those of catalog images are discarded; a compose without success has no
        catalog images. The secrets are erased, unless the image is composed while it is read.
        """
        end = partial(
            self.end, compose_id=compose_id, state=state, error=error, image=image, provenance=provenance
        )
        return self._database.transact(end)

    def end(  # noqa: PLR0913 - the columns of an end
        self,
        connection: sa.Connection,
        compose_id: str,
        state: ComposeState,
        *,
        error: JobError | None = None,
        image: Artifact | None = None,
        provenance: Json | None = None,
    ) -> bool:
        """End a compose in a transaction of the caller; see `finish`."""
        now = self._now()
        kept = () if image is None else (image.key,)
        if (uploads := _lock(connection, compose_id)) is None:
            return False
        if image is not None:
            tenant = sa.select(COMPOSES.c.tenant).where(COMPOSES.c.id == compose_id)
            image = self._cipher.tag_artifact(connection.execute(tenant).scalar_one(), compose_id, image)
        values = {
            "state": state,
            "error": error,
            "image": image,
            "uploads": [_ended(upload, state) for upload in uploads],
            "provenance": provenance or {},
            "finished_at": now,
        }
        connection.execute(_of(compose_id).values(values))
        connection.execute(
            sa.update(JOBS)
            .where(JOBS.c.compose_id == compose_id, JOBS.c.finished_at.is_(None))
            .values(state=JobState.CANCELLED, artifacts=[], finished_at=now)
        )
        if state is not ComposeState.SUCCESS:
            made = sa.select(ARTIFACTS.c.key).where(_made_for(compose_id))
            connection.execute(sa.delete(IMAGES).where(IMAGES.c.key.in_(made)))
        discard(self._database, connection, now, _made_for(compose_id), except_keys=kept)
        if image is not None or state is not ComposeState.SUCCESS:
            connection.execute(sa.delete(SECRETS).where(SECRETS.c.compose_id == compose_id))
        count_ended(connection, compose_id)
        return True

    def delete(self, compose_id: str) -> bool:
        """Delete a compose with its jobs and its catalog image, and discard its artifacts; False: none.

        The catalog images of an import stay.

        Raises:
            Conflict: a compose that has not ended uses its image.
        """
        now = self._now()

        def work(connection: sa.Connection) -> bool:
            lock = sa.update(COMPOSES).where(COMPOSES.c.id == compose_id).values(id=compose_id)
            if not connection.execute(lock).rowcount:
                return False
            delete_image(self._database, connection, now, IMAGES.c.source == f"compose:{compose_id}")
            discard(self._database, connection, now, _made_for(compose_id))
            connection.execute(sa.delete(COMPOSES).where(COMPOSES.c.id == compose_id))
            return True

        return self._database.transact(work)

    def find_unstarted(self, before: datetime, limit: int, without: Collection[str] = ()) -> list[str]:
        """Return ids of composes, oldest first, that were added before that time and have not begun.

        One that was added much later is due, too: the clock was set back.

        Args:
            without: ids of composes that are left out.
        """
        is_due = (COMPOSES.c.created_at < before) | (COMPOSES.c.created_at > before + _CLOCK_STEP)
        is_unstarted = UNFINISHED & COMPOSES.c.started_at.is_(None) & is_due
        is_unstarted &= COMPOSES.c.id.not_in(without)
        select = sa.select(COMPOSES.c.id).where(is_unstarted).order_by(COMPOSES.c.created_at).limit(limit)
        return self._ids(select)

    def find_unfinished(self, after_id: str, limit: int) -> list[str]:
        """Return ids, sorted, of composes whose plans have begun and have not ended.

        Args:
            after_id: ids up to this one are left out.
        """
        is_wanted = UNFINISHED & COMPOSES.c.started_at.is_not(None) & (COMPOSES.c.id > after_id)
        select = sa.select(COMPOSES.c.id).where(is_wanted).order_by(COMPOSES.c.id).limit(limit)
        return self._ids(select)

    def find_ended(self, before: datetime, limit: int) -> list[str]:
        """Return ids of composes that ended before that time and whose image is not in use, oldest first."""
        is_wanted = (COMPOSES.c.finished_at < before) & COMPOSES.c.id.not_in(IMAGES_IN_USE)
        select = sa.select(COMPOSES.c.id).where(is_wanted).order_by(COMPOSES.c.finished_at).limit(limit)
        return self._ids(select)

    def count_by_state(self) -> Mapping[ComposeState, int]:
        """Return how many composes there are, without those of an unknown state: their rows are damaged."""
        state = COMPOSES.c.state
        count = sa.select(state, sa.func.count()).where(state.in_(ComposeState)).group_by(state)
        rows = self._database.transact(lambda connection: connection.execute(count).all())
        return {ComposeState(state): number for state, number in rows}

    def largest_tenants(self, limit: int) -> Mapping[str, tuple[int, int]]:
        """Return the bytes that tenants keep and may keep, of those that keep the most."""
        kept = self._database.transact(partial(largest_tenants, limit=limit))
        return {tenant: (taken, self._budget.max_bytes_of(tenant)) for tenant, taken in kept.items()}

    def _secrets(self, compose: Compose) -> ComposeSecrets | None:
        sealed = sa.select(SECRETS.c.sealed).where(SECRETS.c.compose_id == compose.id)
        found = self._database.transact(lambda connection: connection.scalar(sealed))
        return None if found is None else self._cipher.unseal(compose.tenant, compose.id, found)

    def _find(
        self, columns: Sequence[sa.Column[Any]], compose_id: str, tenant: str | None
    ) -> sa.RowMapping | None:
        select = sa.select(*columns).where(COMPOSES.c.id == compose_id)
        if tenant is not None:
            select = select.where(COMPOSES.c.tenant == tenant)
        return self._database.transact(lambda connection: connection.execute(select).mappings().first())

    def _ids(self, select: sa.Select[tuple[str]]) -> list[str]:
        """Return ids; one that is not text becomes text, and so the id of no compose."""
        return list(map(str, self._database.transact(lambda connection: connection.scalars(select).all())))

    def _update(self, compose_id: str, **values: object) -> bool:
        update = _of(compose_id).values(values)
        return self._database.transact(lambda connection: connection.execute(update).rowcount > 0)


def _of(compose_id: str) -> sa.Update:
    """Update a compose that has not ended."""
    return sa.update(COMPOSES).where(COMPOSES.c.id == compose_id, UNFINISHED)


def _lock(connection: sa.Connection, compose_id: str) -> Sequence[UploadResult] | None:
    """Lock a compose until the transaction ends, and return its uploads; None: it has ended."""
    if not connection.execute(_of(compose_id).values(id=compose_id)).rowcount:
        return None
    uploads = sa.select(COMPOSES.c.uploads).where(COMPOSES.c.id == compose_id)
    return to_uploads(connection.execute(uploads).scalar_one())


def _made_for(compose_id: str) -> sa.ColumnElement[bool]:
    """Match the artifacts of a compose."""
    return ARTIFACTS.c.job_id.in_(sa.select(JOBS.c.id).where(JOBS.c.compose_id == compose_id))


def _jobs_of(compose: Compose) -> list[Job]:
    return [
        Job(
            id=job_id_of(compose.id, step.name),
            compose_id=compose.id,
            tenant=compose.tenant,
            step=step.name,
            type=JobType(step.action),
            architecture=compose.architecture,
            state=JobState.WAITING,
        )
        for step in compose.plan.steps
        if step.is_job
    ]


def _ended(upload: UploadResult, state: ComposeState) -> UploadResult:
    if upload.status in {"success", "failure"}:
        return upload
    return attrs.evolve(upload, status="success" if state is ComposeState.SUCCESS else "failure")


def _conditions(wanted: ComposeFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    for column in (COMPOSES.c.tenant, COMPOSES.c.distribution, COMPOSES.c.image_type, COMPOSES.c.origin):
        value: Any = getattr(wanted, column.name)
        if value is not None:
            conditions.append(column == value)
    if wanted.states is not None:
        conditions.append(COMPOSES.c.state.in_(wanted.states))
    return conditions
