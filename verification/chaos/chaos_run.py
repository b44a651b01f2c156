"""Carry out a plan against real processes."""

import asyncio
import contextlib
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import assert_never

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import plan as message_of
from verification.chaos.answering import Approver, Outcome, serve_web
from verification.chaos.chaos_agents import OUTAGE
from verification.chaos.chaos_plan import (
    AGENTS,
    Cause,
    EndWorker,
    Outage,
    Plan,
    RestartServer,
    SendAnswer,
    Step,
    find_end,
    is_fault,
)
from verification.chaos.fleet import BLOCKED, TASK_QUEUE, Supervisor, make_place, make_supervisors
from verification.chaos.report import Figures, check_answers, check_effects, check_invocation, counted_if_hung
from verification.chaos.setups import DevelopmentServer, Servers, SetupName, Stores, running
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.errors import UnknownAgent, WaystationError
from waystation.core.log import AnswerCounted, Log

PATIENCE_S = 300.0
"""The time limit of the fleet after the last step. Invocations that are still open then count as stuck."""
PAUSE_S = 0.5


class Chaos:
    """One run: its processes, and the outcome of each answer."""

    def __init__(
        self, plan: Plan, folder: Path, client: AgentClient, servers: Servers, stores: Stores, figures: Figures
    ) -> None:
        self._plan, self._folder, self._client, self._figures = plan, folder, client, figures
        self._servers, self._stores = servers, stores
        self._pauses: dict[Cause, float] = {}
        """The pauses before each step, one for each current outage."""
        self._invocations: list[Invocation] = []
        self._pending = defaultdict[str, asyncio.Event](asyncio.Event)
        self._outcomes: dict[str, Outcome] = {}
        self._answering: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all invocations."""
        for number, script in enumerate(self._plan.scripts):
            id = f"chaos-{self._plan.seed}-{number}"
            self._invocations.append(await self._client.start(script.agent, script.message, id=id))

    async def take_steps(self, supervisors: list[Supervisor], approver: Approver) -> None:
        """Carry out the steps in their order. Answers are sent concurrently, once their calls are pending."""
        for number, step in enumerate(self._plan.steps):
            await asyncio.sleep(max(self._pauses.values(), default=0))
            if isinstance(step, Outage) and step.begins:
                self._pauses[step.cause] = self._plan.size.outage_s / (find_end(self._plan.steps, number) - number)
            if self._figures.steps_hung and is_fault(step):
                continue
            async with counted_if_hung(self._figures, step):
                await self._take(step, supervisors, approver)

    async def _take(self, step: Step, supervisors: list[Supervisor], approver: Approver) -> None:
        match step:
            case SendAnswer():
                self._answering.append(asyncio.create_task(self._answer(step, approver)))
            case EndWorker():
                await supervisors[step.worker].end(kill=step.kill)
                self._figures.kills_in_outages += step.kill and bool(self._pauses)
            case RestartServer():
                await self._servers.restart(kill=step.kill)
            case Outage(begins=True):
                self._stores.lose() if step.cause == "store" else (self._folder / OUTAGE).touch()
            case Outage():
                self._stores.restore() if step.cause == "store" else (self._folder / OUTAGE).unlink(missing_ok=True)
                del self._pauses[step.cause]
            case _:
                assert_never(step)

    async def _answer(self, answer: SendAnswer, approver: Approver) -> None:
        approval_id = f"{self._invocations[answer.invocation].id}/{answer.call_id}"
        await self._pending[approval_id].wait()
        self._outcomes[answer.tag] = outcome = await approver.answer(approval_id, answer)
        self._figures.answers_in_outages += outcome in ("accepted", "sent") and bool(self._pauses)

    async def watch(self) -> None:
        """List the calls that have become pending, as an inbox does."""
        while True:
            with contextlib.suppress(RPCError, WaystationError):
                for call in await self._client.pending():
                    self._pending[f"{call.invocation_id}/{call.function_call_id}"].set()
            await asyncio.sleep(PAUSE_S)

    async def finish(self) -> None:
        """Wait for all answers and invocations, and make the server try held work again soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(finish(self._client, invocation) for invocation in self._invocations))
                await asyncio.gather(*self._answering)
        for task in self._answering:
            task.cancel()

    async def check(self) -> None:
        """Read histories and the ledger."""
        figures = self._figures
        sent = defaultdict[int, list[tuple[SendAnswer, Outcome]]](list)
        for step in self._plan.steps:
            if isinstance(step, SendAnswer):
                sent[step.invocation].append((step, self._outcomes.get(step.tag, "unknown")))
        logs = list[Log]()
        counted = dict[str, AnswerCounted]()
        for number, invocation in enumerate(self._invocations):
            async with counted_if_hung(figures, f"reading {invocation.id}"):
                logs.append(await check_invocation(invocation, figures))
                counted |= check_answers(logs[-1], sent[number], figures)
        approved = {key: body.answer.action == "approve" for key, body in counted.items()}
        check_effects(Ledger(self._folder), approved, logs, figures)


async def finish(client: AgentClient, invocation: Invocation) -> None:
    """Wait until an invocation has ended, and make the server try its held calls again."""
    while True:
        with contextlib.suppress(RPCError):
            if (await invocation.handle.describe()).status is not WorkflowExecutionStatus.RUNNING:
                return
            if await client.held.holds(invocation.id):
                await client.held.retry(invocation.id)
        await asyncio.sleep(PAUSE_S)


async def run_chaos(plan: Plan, folder: Path, setup: SetupName = "development") -> Figures:
    """Carry out a plan in an empty folder, and return the figures."""
    figures = Figures()
    async with contextlib.AsyncExitStack() as stack:
        servers, stores = await stack.enter_async_context(running(setup, folder))
        place = make_place(servers, stores, folder)
        supervisors = [await stack.enter_async_context(each) for each in make_supervisors(place)]
        client = await AgentClient.connect(address=servers.address, task_queue=TASK_QUEUE)
        chaos = Chaos(plan, folder, client, servers, stores, figures)
        async with serve_web(place) as browser:
            async with counted_if_hung(figures, "starting the workers and invocations"):
                await asyncio.gather(*(each.ready() for each in supervisors))
                await chaos.start()
            watching = asyncio.create_task(chaos.watch())
            await chaos.take_steps(supervisors, Approver(client, place, browser))
            await chaos.finish()
            watching.cancel()
        await chaos.check()
        figures.servers_killed, figures.servers_stopped = servers.restarts[True], servers.restarts[False]
        if isinstance(servers, DevelopmentServer):
            async with counted_if_hung(figures, "emptying the database"):
                await servers.restart(kill=True, empty=True)
            await start_over(client, figures)
        count_exits(supervisors, figures)
    return figures


async def start_over(client: AgentClient, figures: Figures) -> None:
    """Run an invocation of each agent after the database was emptied, even if its workers have not noticed yet."""
    client = AgentClient(client.temporal, task_queue=client.task_queue)  # has not cached the agents
    for agent in AGENTS:
        try:
            async with asyncio.timeout(PATIENCE_S):
                invocation = await client.start(agent, message_of([("fetch", {})]))
                await finish(client, invocation)
                await invocation.result()
        except (UnknownAgent, TimeoutError, WorkflowFailureError) as error:
            figures.invocations_failed += 1
            figures.details.append(f"{agent} after the database was emptied: {error!r}, {error.__cause__!r}")


def count_exits(supervisors: list[Supervisor], figures: Figures) -> None:
    """Add the numbers of workers by their exit."""
    exits = sum((each.exits for each in supervisors), Counter[int]())
    figures.workers_killed = sum(each.kills for each in supervisors)
    figures.workers_stopped = exits[0]
    figures.workers_blocked = exits[BLOCKED]
    figures.workers_failed = sum(len(each.failures) for each in supervisors)
    if killed_by_others := exits[-signal.SIGKILL] - figures.workers_killed:
        figures.workers_failed += killed_by_others
        figures.details.append(f"Workers killed by something else: {killed_by_others}")
    if late := sum(each.late for each in supervisors):
        figures.details.append(f"Workers replaced because they were not ready in time: {late}")
    figures.details += [line for each in supervisors for line in each.failures]
