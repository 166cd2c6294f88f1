"""The rows that dispatching reads and writes, in threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.common.concurrency.process_parts import InThread
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.job_queues import JobQueues
    from image_service.jobs.database.jobs import JobRepository
    from image_service.jobs.database.objects import ObjectRepository
    from image_service.jobs.database.workers import WorkerRepository

_P = ParamSpec("_P")
_T = TypeVar("_T")


@attrs.frozen(eq=False)
class DispatchRows:
    """Composes, jobs and workers; their methods are to be called by `call`."""

    composes: ComposeRepository
    jobs: JobRepository
    queues: JobQueues
    objects: ObjectRepository
    workers: WorkerRepository
    _in_thread: InThread

    def call(self, method: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Awaitable[_T]:
        """Call a method of a repository in a thread; canceling that does not stop the call."""
        return self._in_thread(partial(method, *args, **kwargs))
