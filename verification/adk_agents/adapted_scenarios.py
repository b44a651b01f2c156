"""Run scenarios of google-adk agents through the adapter. Reads one question per line, and writes one answer per line.

Runs in the environment that has google-adk and Waystation. The first argument is the address of the server. A question
is the name of a scenario.
"""

import asyncio
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from verification.adk_agents.rewritten_imports import rewrite_imports

rewrite_imports()

from google.adk.apps import App  # noqa: E402  # the scenarios' imports are rewritten before anything imports them

from verification.adk_agents.adk_scenarios import ADK_SCENARIOS  # noqa: E402
from verification.differential.scenario import Json, Reply, Scenario  # noqa: E402
from verification.differential.scripted_base_llm import Scripted  # noqa: E402
from verification.differential.subject import Pause, Subject  # noqa: E402
from verification.differential.tables import SCENARIOS  # noqa: E402
from waystation.activities.model_choice import Models  # noqa: E402
from waystation.adk import from_adk  # noqa: E402
from waystation.apps.registry import Registry, Root  # noqa: E402
from waystation.client import AgentClient, connect  # noqa: E402
from waystation.core import ids  # noqa: E402
from waystation.core.errors import ModelRefused  # noqa: E402
from waystation.worker import create_worker  # noqa: E402
from waystation.worker.service_setup import create_temporary_services  # noqa: E402


class AdaptedSubject(Subject):
    """Waystation with google-adk's agents."""

    tenant = ids.program_tenant("adapted")  # tools and services see the plain name of the app

    def create_model(self, name: str, replies: Sequence[Reply], asked: list[Json]) -> Any:
        """Return a model of google-adk."""
        return Scripted(name, replies, asked, ModelRefused)

    def create_root(self, scenario: Scenario, agent: Any, compaction: Any) -> Root:
        """Adapt the scenario's agent, with its plugins."""
        app = App(
            name=scenario.name,
            root_agent=agent,
            plugins=list(scenario.plugins()),
            events_compaction_config=compaction,
        )
        (root,) = Registry.of(from_adk(app)).roots.values()
        return root


async def main(address: str) -> None:
    """Answer until standard input ends."""
    client = await connect(address=address)
    queue, pause, registry, services = f"adk-{os.getpid()}", Pause(), Registry(), create_temporary_services()
    worker = create_worker(client, registry, models=Models(), task_queue=queue, services=services, interceptors=[pause])
    assert services.artifacts is not None
    async with worker:
        subject = AdaptedSubject(AgentClient(client, task_queue=queue), registry, services.artifacts, pause)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                said: Json = {"answer": await subject.run({**SCENARIOS, **ADK_SCENARIOS}[json.loads(line)])}
            except Exception:  # noqa: BLE001  # reported to the caller
                said = {"failed": traceback.format_exc()}
            answers.write(json.dumps(said) + "\n")
            answers.flush()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # tools may print
    asyncio.run(main(sys.argv[1]))
