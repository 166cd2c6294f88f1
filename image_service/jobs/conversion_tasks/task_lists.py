"""Lists tasks: reads the rows that a reply shows, and of the others what its filters compare.

Tasks have an order, by their creation and id. The token of a page is the place of its last task, so that
tasks which are added or deleted meanwhile neither hide others nor repeat them.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from image_service.jobs.conversion_tasks.filters import parse_filters
from image_service.jobs.database.tasks import TaskFilter
from image_service.jobs.database.values import DAMAGE
from image_service.jobs.ec2.errors import Ec2Error, invalid_value
from image_service.jobs.model import ComposeState, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from image_service.jobs.conversion_tasks.filters import RequestFilter
    from image_service.jobs.database.tasks import TaskPosition, TaskRecord, TaskRepository
    from image_service.jobs.database.workers import WorkerRepository
    from image_service.jobs.model import Json
    from image_service.jobs.task_model import ConversionTask, TaskKind

MAX_PAGE = 1000
"""Tasks in a reply, also without ``MaxResults``; and ids in a request."""
MAX_PAGE_BYTES = 2**22
"""Of the tasks in a reply, about; the descriptions of tasks may be long."""
ID_FILTER = "export-task-id"

_BATCH = 200  # tasks that are read at once, of which each may have a request of 64 KiB
_CHUNK = 50  # of them with all rows
_TOKEN = re.compile(r"([0-9]{1,11}\.[0-9]{6})/([a-z]+-[a-z]+-[0-9a-f]{17})", re.ASCII)


@attrs.frozen
class TaskListing:
    """What an operation lists.

    Args:
        ids: the parameter with ids of tasks.
        output: the member of the reply.
        unknown: the code of the error for ids that are unknown.
        state: returns the state of a described task.
        states: returns those that a task may have whose compose has that state, the final one last.
        describe_unreadable: describes a task that `describe` cannot, by its id and state.
        state_filter: the name of the filter that compares it.
        filters: return by name what other filters compare.
        has_pages: EC2's model has ``MaxResults`` and ``NextToken``.
    """

    kinds: tuple[TaskKind, ...]
    ids: str
    output: str
    unknown: str
    describe: Callable[[TaskRecord, datetime], dict[str, Any]]
    state: Callable[[Mapping[str, Any]], str]
    states: Callable[[ComposeState], Sequence[str]]
    describe_unreadable: Callable[[str, str], dict[str, Any]]
    state_filter: str = "task-state"
    filters: Mapping[str, Callable[[ConversionTask], str]] = attrs.field(factory=dict)
    has_pages: bool = True


@attrs.frozen(eq=False)
class TaskLists:
    """Tasks as EC2's operations describe them. Every call blocks.

    Args:
        heartbeat_seconds: a worker without a request for longer is not connected.
        now: in UTC.
    """

    _tasks: TaskRepository
    _workers: WorkerRepository
    _heartbeat_seconds: float
    _now: Callable[[], datetime]

    def find(self, tenant: str, kinds: Collection[TaskKind], task_id: str, unknown: str) -> TaskRecord:
        """Return a task; raises Ec2Error with code `unknown`."""
        records = self._tasks.read(self._tasks.find(TaskFilter(tenant, kinds, [task_id])))
        if not records:
            raise _unknown(unknown, task_id)
        return records[0]

    def describe(self, tenant: str, listing: TaskListing, parameters: Mapping[str, Any]) -> Json:
        """Return the output of an operation.

        Of an operation without pages it has those that have not ended and the newest others; older ones are
        found by their ids.

        Raises:
            Ec2Error: an id is unknown, or a parameter invalid.
        """
        filters = parse_filters(parameters.get("Filters", ()), (*listing.filters, listing.state_filter))
        ids = parameters.get(listing.ids) or None
        of_state = [each for each in filters if each.name == listing.state_filter]
        states = [
            state for state in ComposeState if all(each.matches(listing.states(state)) for each in of_state)
        ]
        wanted = TaskFilter(tenant, listing.kinds, ids)
        if ids is not None:
            self._check_ids(wanted, ids, listing.unknown)
        elif literal := [each.patterns for each in filters if each.name == ID_FILTER and each.is_literal]:
            wanted = attrs.evolve(wanted, ids=literal[0])
        if len(states) < len(ComposeState):
            wanted = attrs.evolve(wanted, states=states)
        if listing.has_pages:
            return self._page(listing, wanted, filters, parameters)
        return {listing.output: self._newest(listing, wanted, filters, states)}

    def _check_ids(self, wanted: TaskFilter, ids: Sequence[str], unknown: str) -> None:
        if len(ids) > MAX_PAGE:
            raise invalid_value(f"there are {len(ids)} ids; a request has at most {MAX_PAGE}")
        for task_id in sorted(set(ids).difference(self._tasks.find_ids(wanted))):
            raise _unknown(unknown, task_id)

    def _page(
        self,
        listing: TaskListing,
        wanted: TaskFilter,
        filters: Sequence[RequestFilter],
        parameters: Mapping[str, Any],
    ) -> Json:
        size = min(parameters.get("MaxResults", MAX_PAGE), MAX_PAGE)
        if size < 1:
            raise invalid_value("MaxResults must be at least 1")
        found = self._select(listing, wanted, filters, after=_parse_token(parameters.get("NextToken")))
        page = _take(found, size)
        output = {listing.output: [described for _, described in page]}
        if next(found, None) is None:
            return output
        return {**output, "NextToken": _token_of(page[-1][0])}

    def _newest(
        self,
        listing: TaskListing,
        wanted: TaskFilter,
        filters: Sequence[RequestFilter],
        states: Sequence[ComposeState],
    ) -> list[Json]:
        unfinished = attrs.evolve(wanted, states=[state for state in states if not state.is_final])
        seen: set[str] = set()
        found = (
            each
            for which in (unfinished, wanted)
            for each in self._select(listing, which, filters, newest_first=True)
            if _is_new(each[0].id, seen)
        )
        taken = _take(found, MAX_PAGE)
        if wanted.ids is not None and next(found, None) is not None:
            raise invalid_value(f"the reply would have more than {MAX_PAGE_BYTES} bytes; ask for fewer ids")
        taken.sort(key=lambda each: (each[0].created_at, each[0].id))
        return [described for _, described in taken]

    def _select(
        self,
        listing: TaskListing,
        wanted: TaskFilter,
        filters: Sequence[RequestFilter],
        *,
        after: TaskPosition | None = None,
        newest_first: bool = False,
    ) -> Iterator[tuple[ConversionTask, Json]]:
        """Yield the tasks that match every filter, with their descriptions."""
        of_state = [each for each in filters if each.name == listing.state_filter]
        of_task = [each for each in filters if each.name != listing.state_filter]
        tasks = (
            task
            for task in self._read(wanted, after, newest_first=newest_first)
            if all(
                each.matches([listing.filters[each.name](task)])
                if each.name in listing.filters
                else each.matches_tags(task.tags)
                for each in of_task
            )
        )
        while chunk := list(islice(tasks, _CHUNK)):
            for record in self._with_workers(self._tasks.read(chunk)):
                described = _describe(listing, record, self._now())
                if all(each.matches([listing.state(described)]) for each in of_state):
                    yield record.task, described

    def _read(
        self, wanted: TaskFilter, after: TaskPosition | None, *, newest_first: bool
    ) -> Iterator[ConversionTask]:
        while batch := self._tasks.find(wanted, after=after, limit=_BATCH, newest_first=newest_first):
            yield from batch
            after = (batch[-1].created_at, batch[-1].id)

    def _with_workers(self, records: list[TaskRecord]) -> list[TaskRecord]:
        """Return tasks, each with whether a worker is connected that its queued jobs wait for."""
        if not any(job.state is JobState.QUEUED for record in records for job in record.jobs):
            return records
        seen_since = self._now() - timedelta(seconds=self._heartbeat_seconds)
        architectures = {architecture for _, architecture in self._workers.count(seen_since)}
        return [
            attrs.evolve(record, has_worker=record.compose.architecture in architectures)
            for record in records
        ]


def _describe(listing: TaskListing, record: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return a description; one that is short, if the rows of the task are damaged."""
    try:
        return listing.describe(record, now)
    except DAMAGE:
        return listing.describe_unreadable(record.task.id, listing.states(record.compose.state)[-1])


def _take(found: Iterator[tuple[ConversionTask, Json]], number: int) -> list[tuple[ConversionTask, Json]]:
    """Return the first tasks, a number of them at most, and no more than fit a reply."""
    taken: list[tuple[ConversionTask, Json]] = []
    size = 0
    while len(taken) < number and size < MAX_PAGE_BYTES and (each := next(found, None)) is not None:
        taken.append(each)
        size += len(json.dumps(each[1]))
    return taken


def _is_new(task_id: str, seen: set[str]) -> bool:
    """Return True for an id that is not in a set yet, and add it."""
    is_new = task_id not in seen
    seen.add(task_id)
    return is_new


def _token_of(task: ConversionTask) -> str:
    return f"{task.created_at.timestamp():.6f}/{task.id}"


def _parse_token(token: str | None) -> TaskPosition | None:
    if token is None:
        return None
    if (match := _TOKEN.fullmatch(token)) is None:
        raise invalid_value("NextToken must be that of an earlier reply to the same request")
    return datetime.fromtimestamp(float(match[1]), UTC), match[2]


def _unknown(code: str, task_id: str) -> Ec2Error:
    return Ec2Error(code, f"there is no task {task_id!a:.100}")
