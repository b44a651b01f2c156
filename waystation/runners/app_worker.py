"""The workers of a program: one for each app, in the program's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar, TypeVar

from temporalio.worker import Worker

from waystation.activities import find_agents_without_model, find_foreign_model_names
from waystation.apps.registry import Registry, Root, authoring_problems
from waystation.core.contract import Settings, WorkflowSettings
from waystation.runners.consumer_pace import ConsumerPace
from waystation.sessions import BACKGROUND
from waystation.tools.services import Services
from waystation.worker import create_worker

T = TypeVar("T")
_WORKFLOW = WorkflowSettings()
SETTINGS = Settings(workflow=replace(_WORKFLOW, model=replace(_WORKFLOW.model, heartbeat=timedelta(seconds=10))))
"""The worker's settings. A resumed program repeats an interrupted model call after the heartbeat's timeout."""


def check_agents(root: Root, *, credentials: bool = True) -> None:
    """Check that a worker can serve an agent and those below it, without connecting to a server.

    Args:
        root: The root agent.
        credentials: Whether the credentials of models must be in the environment already.

    Raises:
        AuthoringError: An agent is declared incorrectly, or its model cannot be used.
    """
    alone = Registry([root])
    problems = [*authoring_problems(root.agent, root.approval_rules)]
    problems += [found.error for found in find_foreign_model_names(alone)]
    problems += [found.error for found in find_agents_without_model(alone)] if credentials else []
    if problems:
        raise problems[0]


class AppWorker:
    """A worker for the agents of one app. It runs from the first message until the program exits."""

    _all: ClassVar[dict[str, AppWorker]] = {}
    """The workers of this process, by task queue."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.pace = ConsumerPace()
        self._registry = Registry()
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def serving(cls, task_queue: str, root: Root, services: Services) -> AppWorker:
        """Return the worker for a task queue. Start it if necessary.

        The worker serves `root` instead of another root agent with the same name, which programs may create again for
        each message.

        Raises:
            ValueError: Another runner of the same app has different services.
        """
        client = await BACKGROUND.client()  # not below: nothing may start the worker in the meantime
        worker = cls._all.setdefault(task_queue, AppWorker(services))
        if worker.services != services:
            raise ValueError("Two runners with the same app name have different services. Use the same ones for both.")
        worker._serve(root)
        if worker._task is None:
            worker._worker = create_worker(
                client,
                worker._registry,
                task_queue=task_queue,
                services=services,
                settings=SETTINGS,
                graceful_shutdown_timeout=timedelta(0),
                interceptors=[worker.pace],
            )
            worker._task = asyncio.create_task(worker._worker.run())
            BACKGROUND.at_exit.append(worker._stop)
        return worker

    def _serve(self, root: Root) -> None:
        served = self._registry.roots.get(root.name)
        if served is root:
            return
        self._registry.remove(root.name)
        self._registry.add(root)

    @classmethod
    def remove(cls, root: Root) -> None:
        """Stop serving a root agent."""
        for worker in cls._all.values():
            if worker._registry.roots.get(root.name) is root:
                worker._registry.remove(root.name)

    async def waiting_for(self, awaitable: Awaitable[T]) -> T:
        """Return the result of an awaitable, unless the worker fails first.

        Raises:
            Exception: The worker's fatal error.
        """
        assert self._task is not None
        task = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait((task, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._task.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))  # a generator cannot be closed while it runs

    async def _stop(self) -> None:
        for name in tuple(self._registry.roots):  # the worker would close their toolsets, which belong to the program
            self._registry.remove(name)
        if self._worker is not None and self._task is not None and not self._task.done():
            await self._worker.shutdown()
        AppWorker._all = {queue: worker for queue, worker in self._all.items() if worker is not self}
