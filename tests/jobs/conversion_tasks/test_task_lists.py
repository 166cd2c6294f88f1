"""Lists of tasks: their pages, while tasks are added and deleted, beside a naive oracle."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.conversion_tasks import task_lists
from image_service.jobs.conversion_tasks.image_replies import (
    describe_import_image,
    describe_import_snapshot,
    image_states,
    snapshot_states,
)
from image_service.jobs.conversion_tasks.operations import make_record
from image_service.jobs.conversion_tasks.replies import describe_export_task
from image_service.jobs.conversion_tasks.states import names_of
from image_service.jobs.database.tables import COMPOSES, TASKS, open_database
from image_service.jobs.database.values import row_of
from image_service.jobs.model import ComposeState, Job, JobState, JobType
from image_service.jobs.task_model import TaskKind
from tests.jobs.conversion_tasks.operating import Operating
from tests.jobs.conversion_tasks.refusals import refusal
from tests.jobs.database.composing import NOW, Rows, make_compose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from image_service.jobs.database.tasks import TaskRecord

DISK = {"UserBucket": {"S3Bucket": "b", "S3Key": "k"}, "Format": "RAW", "Bytes": 512}
EXPORT = {
    "InstanceId": "i-1",
    "TargetEnvironment": "vmware",
    "Description": "",
    "ExportToS3Task": {"DiskImageFormat": "VMDK", "S3Bucket": "b", "S3Key": "k"},
}
SHOWN = {
    ComposeState.PENDING: "active",
    ComposeState.BUILDING: "active",
    ComposeState.SUCCESS: "completed",
    ComposeState.FAILURE: "deleted",
}
STATES = st.sampled_from(list(SHOWN))
TAGS = st.sampled_from([{}, {"owner": "ann"}, {"owner": "bob"}])
NEW_TASKS = st.lists(st.tuples(st.integers(0, 6), STATES, TAGS), max_size=8)
FILTERS = st.sampled_from(
    [
        [],
        [("task-state", ["active"])],
        [("task-state", ["comp*", "deleted"])],
        [("task-state", ["nothing"])],
        [("tag:owner", ["a*"])],
        [("tag-key", ["owner"]), ("task-state", ["?ctive"])],
    ]
)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operating]:
    """Operations over one database, in which each example has a tenant."""
    with closing(open_database(None, tmp_path_factory.mktemp("rows"))) as database:
        yield Operating(Rows(database))


def new_record(
    tenant: str,
    *,
    kind: TaskKind = TaskKind.IMPORT_IMAGE,
    seconds: float = 0,
    state: ComposeState = ComposeState.SUCCESS,
    **values: Any,
) -> TaskRecord:
    created_at = NOW + timedelta(seconds=seconds)
    compose = make_compose(tenant=tenant, state=state, created_at=created_at, image_type=None)
    is_export = kind is TaskKind.EXPORT_INSTANCE
    request = {**(EXPORT if is_export else {"Disks": [DISK]}), **values.pop("request", {})}
    return make_record(compose, kind, request, **values)


def insert(rows: Rows, records: Sequence[TaskRecord]) -> None:
    if not records:
        return

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.insert(COMPOSES), [row_of(record.compose) for record in records])
        connection.execute(sa.insert(TASKS), [row_of(record.task) for record in records])

    rows.database.transact(work)


@attrs.define
class Oracle:
    """The tasks of a tenant, as a list."""

    rows: Rows
    tenant: str
    filters: Sequence[tuple[str, list[str]]]
    records: list[TaskRecord] = attrs.field(factory=list)

    def add(self, tasks: Sequence[tuple[int, ComposeState, dict[str, str]]]) -> None:
        """Add tasks: seconds, state and tags."""
        new = [
            new_record(self.tenant, seconds=seconds, state=state, tags=tags) for seconds, state, tags in tasks
        ]
        insert(self.rows, new)
        self.records += new

    def delete(self, which: int) -> None:
        """Delete one of the tasks, if there is one."""
        if self.records:
            record = self.records.pop(which % len(self.records))
            assert self.rows.composes.delete(record.compose.id)

    def matching(self) -> list[tuple[object, str]]:
        """Return the places of the tasks that match, in their order."""
        return sorted(
            (record.task.created_at, record.task.id) for record in self.records if self._matches(record)
        )

    def _matches(self, record: TaskRecord) -> bool:
        for name, patterns in self.filters:
            values = {
                "task-state": [SHOWN[record.compose.state]],
                "tag-key": list(record.task.tags),
                "tag:owner": [str(value) for value in record.task.tags.values()],
            }[name]
            if not any(fnmatchcase(value, pattern) for value in values for pattern in patterns):
                return False
        return True


_tenants = count()


@given(
    NEW_TASKS,
    FILTERS,
    st.integers(1, 4),
    st.lists(st.tuples(NEW_TASKS, st.lists(st.integers(0, 20), max_size=3)), max_size=4),
)
def test_pages_are_those_of_the_oracle_while_tasks_come_and_go(
    lasting: Operating,
    first: list[tuple[int, ComposeState, dict[str, str]]],
    filters: list[tuple[str, list[str]]],
    size: int,
    changes: list[tuple[list[tuple[int, ComposeState, dict[str, str]]], list[int]]],
) -> None:
    oracle = Oracle(lasting.rows, f"tenant-{next(_tenants)}", filters)
    oracle.add(first)
    parameters: dict[str, Any] = {
        "MaxResults": size,
        "Filters": [{"Name": name, "Values": values} for name, values in filters],
    }
    seen: list[tuple[object, str]] = []
    while True:
        output = lasting.call("DescribeImportImageTasks", parameters, tenant=oracle.tenant)
        left = [place for place in oracle.matching() if not seen or place > seen[-1]]
        assert [task["ImportTaskId"] for task in output["ImportImageTasks"]] == [
            task_id for _, task_id in left[:size]
        ]
        seen += left[:size]
        assert ("NextToken" in output) == (len(left) > size)
        if "NextToken" not in output:
            break
        parameters["NextToken"] = output["NextToken"]
        if changes:
            new, deleted = changes.pop()
            oracle.add(new)
            for which in deleted:
                oracle.delete(which)


DESCRIPTIONS: Sequence[tuple[TaskKind, Callable[..., Any], Callable[[ComposeState], Sequence[str]]]] = (
    (TaskKind.EXPORT_INSTANCE, lambda *each: describe_export_task(*each)["State"], names_of),
    (TaskKind.IMPORT_IMAGE, lambda *each: describe_import_image(*each)["Status"], image_states),
    (
        TaskKind.IMPORT_SNAPSHOT,
        lambda *each: describe_import_snapshot(*each)["SnapshotTaskDetail"]["Status"],
        snapshot_states,
    ),
)


@pytest.mark.parametrize("state", ComposeState)
def test_states_of_composes_are_those_that_tasks_show(state: ComposeState) -> None:
    for kind, status_of, states in DESCRIPTIONS:
        record = new_record("1", kind=kind, state=state)
        job = Job(
            id="j",
            compose_id=record.compose.id,
            tenant="1",
            step="s",
            type=JobType.CUSTOMIZE,
            architecture="x86_64",
            state=JobState.CANCELLED,
            started_at=NOW,
            finished_at=NOW,
        )
        shown = {status_of(attrs.evolve(record, jobs=jobs), NOW) for jobs in ((), (job,))}
        assert shown == set(states(state))


def test_pages_have_a_most_number_of_tasks(operating: Operating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_lists, "MAX_PAGE", 70)
    records = [new_record("org-1", seconds=number) for number in range(71)]
    insert(operating.rows, records)
    output = operating.call("DescribeImportImageTasks", {})
    assert operating.call("DescribeImportImageTasks", {"MaxResults": 71}) == output
    assert [task["ImportTaskId"] for task in output["ImportImageTasks"]] == [
        record.task.id for record in records[:-1]
    ]
    rest = operating.call("DescribeImportImageTasks", {"NextToken": output["NextToken"]})
    assert [task["ImportTaskId"] for task in rest["ImportImageTasks"]] == [records[-1].task.id]
    assert "NextToken" not in rest


def test_page_of_long_descriptions_is_shorter(operating: Operating) -> None:
    text = "x" * 60_000
    records = [
        new_record("org-1", seconds=number, request={"Description": text, "Disks": [DISK] * 16})
        for number in range(150)
    ]
    insert(operating.rows, records)
    parameters: dict[str, Any] = {}
    found: list[str] = []
    sizes = []
    while True:
        output = operating.call("DescribeImportImageTasks", parameters)
        sizes.append(len(output["ImportImageTasks"]))
        found += [task["ImportTaskId"] for task in output["ImportImageTasks"]]
        if "NextToken" not in output:
            break
        parameters["NextToken"] = output["NextToken"]
    assert found == [record.task.id for record in records]
    assert max(sizes) < task_lists.MAX_PAGE_BYTES // len(text) + 2


@pytest.mark.parametrize(
    "parameters",
    [
        {"MaxResults": 0},
        {"MaxResults": -1},
        *(
            {"NextToken": token}
            for token in (
                "",
                "x",
                "import-ami-0123456789abcdef0",
                "1.5/import-ami-0123456789abcdef0",
                "999999999999.000000/import-ami-0123456789abcdef0",
                "٣.000000/import-ami-0123456789abcdef0",
                "1.000000/import-ami-0123456789abcdef0\n",
            )
        ),
    ],
    ids=range(9),
)
def test_wrong_pages_are_refused(operating: Operating, parameters: dict[str, Any]) -> None:
    assert refusal(operating, "DescribeImportImageTasks", parameters) == "InvalidParameterValue"


def test_lists_without_pages_have_what_has_not_ended_and_the_newest_others(
    operating: Operating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_lists, "MAX_PAGE", 4)
    kind = TaskKind.EXPORT_INSTANCE
    waiting = new_record("org-1", kind=kind, seconds=1, state=ComposeState.PENDING)
    ended = [new_record("org-1", kind=kind, seconds=number) for number in (0, 2, 3, 3, 4)]
    insert(operating.rows, [waiting, *ended])
    newest = sorted(ended[2:], key=lambda each: (each.task.created_at, each.task.id))

    def ids(**parameters: Any) -> list[str]:
        tasks = operating.call("DescribeExportTasks", parameters)["ExportTasks"]
        return [task["ExportTaskId"] for task in tasks]

    assert ids() == [record.task.id for record in (waiting, *newest)]
    old = ended[0].task.id
    assert ids(ExportTaskIds=[old]) == [old]
    assert ids(Filters=[{"Name": "export-task-id", "Values": [old, waiting.task.id]}]) == [
        old,
        waiting.task.id,
    ]
    assert ids(Filters=[{"Name": "state", "Values": ["active"]}]) == [waiting.task.id]
    assert refusal(operating, "DescribeExportTasks", {"ExportTaskIds": [old] * 5}) == "InvalidParameterValue"


def test_reply_about_ids_is_not_cut(operating: Operating, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [new_record("org-1", kind=TaskKind.EXPORT_INSTANCE, seconds=number) for number in range(3)]
    insert(operating.rows, records)
    monkeypatch.setattr(task_lists, "MAX_PAGE_BYTES", 1)
    ids = [record.task.id for record in records]
    assert len(operating.call("DescribeExportTasks", {})["ExportTasks"]) == 1
    assert len(operating.call("DescribeExportTasks", {"ExportTaskIds": ids[:1]})["ExportTasks"]) == 1
    assert refusal(operating, "DescribeExportTasks", {"ExportTaskIds": ids}) == "InvalidParameterValue"
