"""Count the billable actions of an invocation in Temporal Cloud with the server's own metric `action`.

A heartbeat is an action, so some rows have a model or a tool that takes seconds, as those of users do.
"""

import asyncio
import re
import urllib.request
from collections import Counter
from collections.abc import Awaitable

from benchmarks.comparison import Comparison, Plan, SideProcess
from benchmarks.engine import AGENT
from benchmarks.side import APPROVE, FIVE, FIVE_QUICK, ONE, QUICK, SLOW_MODEL, SLOW_TOOL, STREAMED, Scenario
from benchmarks.table import Row
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer

LAG_S = 2.5
"""A server publishes its metrics within this time."""
SLOW_ACTIONS = "actions of one tool call, with two model calls of 5 s"
STREAMED_ACTIONS = "actions of an answer that is streamed for 20 s"
GOALS: dict[str, tuple[Scenario, int | None]] = {
    "actions of one tool call": (ONE, 4),
    SLOW_ACTIONS: (SLOW_MODEL, 5),
    "actions of a tool call of 10 s": (SLOW_TOOL, 5),
    STREAMED_ACTIONS: (STREAMED, 44),
    # 8, and more for each result that arrives in a workflow task of its own, which depends on the machine.
    "actions of five parallel tool calls": (FIVE, None),
    "actions of one quick tool call": (QUICK, 4),
    "actions of five parallel quick tool calls": (FIVE_QUICK, 4),
    "actions of an approval": (APPROVE, 9),
}
_ACTION = re.compile(r"^action\{(?P<labels>.*)\} (?P<count>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def parse_actions(metrics: str) -> Counter[str]:
    """Return the actions in all namespaces but the server's own, by type, from metrics in Prometheus' format."""
    actions = Counter[str]()
    for match in _ACTION.finditer(metrics):
        labels = dict(_LABEL.findall(match["labels"]))
        if labels["namespace"] != "temporal_system":
            actions[labels["action_type"].partition("_")[2]] += int(float(match["count"]))
    return actions


async def read_actions(server: EmbeddedServer) -> Counter[str]:
    """Return the actions that a server has published, by type. It publishes them every second or two."""
    assert server.metrics_url
    with await asyncio.to_thread(urllib.request.urlopen, server.metrics_url) as response:
        return parse_actions(response.read().decode())


async def measure(both: Comparison, plan: Plan) -> list[Row]:
    """Count the actions of invocations, and of a message in a session."""
    session = AgentClient(both.client, task_queue=both.engine.queue).session(agent=AGENT, session_id="session")
    last = Counter[str]()

    async def count(work: Awaitable[object]) -> Counter[str]:
        nonlocal last
        await work
        await asyncio.sleep(LAG_S)
        before, last = last, await read_actions(both.server)
        # The clients of the sides poll with queries until a call waits.
        return last - before - Counter(QueryWorkflow=last.total())

    await count(session.say(ONE.text()))  # which also starts the session

    rows = []
    for name, (scenario, goal) in GOALS.items():
        floor = await count(run(both.floor, scenario))
        rows.append(_row(name, await count(run(both.engine, scenario)), goal, floor))
    return [
        *rows,
        _row("actions of a message in a session, with one tool call", await count(session.say(ONE.text())), 6),
    ]


async def run(side: SideProcess, scenario: Scenario) -> None:
    """Run or approve an invocation."""
    await (side.approve(scenario, 1) if scenario is APPROVE else side.run(scenario, 1))


def _row(name: str, engine: Counter[str], goal: int | None, floor: Counter[str] | None = None) -> Row:
    return Row(
        name=name,
        samples=[engine.total()],
        exact=True,
        unit="actions",
        goal=goal,
        floor=floor.total() if floor else None,
        engine=engine.total(),
        note=", ".join(f"{number} {kind}" for kind, number in sorted(engine.items())),
    )
