"""Run one sample in a separate process, on google-adk or through Waystation's adapter."""

import asyncio
import importlib
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

from google.adk.apps import App, ResumabilityConfig
from google.adk.artifacts import InMemoryArtifactService
from google.adk.memory import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.base_toolset import BaseToolset

from verification.adk_samples.conversation import Json, converse, fix_random_numbers
from verification.adk_samples.scripted_llm import script, tree
from verification.differential.adapted import adapted
from waystation import artifacts, memory, runners, sessions
from waystation.adk import from_adk
from waystation.apps.registry import discover

LIMIT_S = 120.0
DEVIATIONS = {"tool-errors-are-told": None, "one-rule-for-batches": None}
"""Deviations for which google-adk is set up; see `verification.differential.deviations`."""
PLACEHOLDERS = {"GOOGLE_API_KEY": "placeholder", "GOOGLE_CLOUD_PROJECT": "project", "GOOGLE_CLOUD_LOCATION": "global"}
"""Values of the variables that samples read when they are imported. No model is called, so no key is required."""


class CannotImport(Exception):
    """A sample cannot be imported with google-adk."""


async def run_on_adk(folder: Path) -> Json:
    """Return the record of the conversation on google-adk."""
    app = _import(folder)
    # google-adk works without the tools of a server that it cannot reach, and would not call them.
    for toolset in [tool for agent in tree(app.root_agent) for tool in getattr(agent, "tools", ())]:
        if isinstance(toolset, BaseToolset):
            await toolset.get_tools()
    progress = script(app.root_agent)
    with adapted(app.root_agent, DEVIATIONS):
        service = InMemorySessionService()
        runner = Runner(
            app=app.model_copy(update={"resumability_config": ResumabilityConfig(is_resumable=True)}),
            session_service=service,
            artifact_service=InMemoryArtifactService(),
            memory_service=InMemoryMemoryService(),
        )
        return await converse(runner, service, app.name, progress)


async def run_on_waystation(folder: Path) -> Json:
    """Return the record of the conversation through the adapter, or `refused` if no worker would serve the sample."""
    _, problems = discover([folder])
    if problems:
        return {"refused": str(problems[0].error)}
    app = _import(folder)
    progress = script(app.root_agent)
    service = sessions.InMemorySessionService()
    runner = runners.Runner(
        app=from_adk(app),  # type: ignore[arg-type]  # an app becomes an app
        session_service=service,
        artifact_service=artifacts.InMemoryArtifactService(),
        memory_service=memory.InMemoryMemoryService(),
    )
    return await converse(runner, service, app.name, progress)


def _import(folder: Path) -> App:
    """Import a sample and return its app, or an app with its root agent.

    Raises:
        CannotImport: The sample is invalid, or something that it requires is missing.
    """
    sys.path.insert(0, str(folder.parent))
    try:
        module = importlib.import_module(f"{folder.name}.agent")
    except BaseException as error:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((f" (`{frame.line}`)" for frame in frames if frame.filename.startswith(str(folder))), "")
        raise CannotImport(f"{describe(error)}{line}") from error
    app = getattr(module, "app", None)
    return app if isinstance(app, App) else App(name="sample", root_agent=module.root_agent)


def answer(side: Callable[[Path], Awaitable[Json]], folder: Path, address: str, send: Connection) -> None:
    """Send the result of `side`, or `not_imported` or `failed` with the reason, and end this process."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # samples print until the process ends
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    os.environ.clear()
    os.environ.update({**kept, **PLACEHOLDERS, "TEMPORAL_ADDRESS": address})
    with tempfile.TemporaryDirectory() as mirror:
        # Samples read files of their folder, and may write some.
        for path in folder.parent.iterdir():
            (Path(mirror) / path.name).symlink_to(path)
        os.chdir(mirror)
        fix_random_numbers()
        try:
            send.send(asyncio.run(asyncio.wait_for(_await(side(folder)), LIMIT_S)))
        except CannotImport as error:
            send.send({"not_imported": str(error)})
        except BaseException as error:  # noqa: BLE001  # samples may raise anything
            send.send({"failed": describe(error)})
    os._exit(0)  # samples may have started threads


async def _await(record: Awaitable[Json]) -> Json:
    return await record


def describe(error: BaseException) -> str:
    """Return an exception in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")
