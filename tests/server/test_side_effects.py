"""Importing Waystation, connecting and adding the plugin to a worker change nothing outside our own objects."""

import subprocess
import sys

from tests.paths import ROOT
from waystation.embedded import EmbeddedServer

PROGRAM = '''
import asyncio, gc, importlib, logging, os, pkgutil, signal, sys, warnings
import structlog, temporalio.client, temporalio.testing, temporalio.worker
from temporalio import workflow

for module in pkgutil.walk_packages(temporalio.__path__, "temporalio."):
    if not module.name.startswith(("temporalio.contrib", "temporalio.api", "temporalio.bridge.proto")):
        importlib.import_module(module.name)
temporalio.worker._worker.load_default_build_id()  # the SDK keeps it from its first worker on
SDK = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "temporalio"]


def parts():
    """Yield every attribute of the SDK's modules and classes, and the object that it has."""
    for module in SDK:
        for name, value in list(vars(module).items()):
            yield (module.__name__, name), id(value)
            if isinstance(value, type) and value.__module__.startswith("temporalio"):
                for attribute, part in list(vars(value).items()):
                    if not attribute.startswith(("__", "_abc")):
                        yield (module.__name__, name, attribute), id(part)


def look():
    """Return what a library must leave alone."""
    root = logging.getLogger()
    return {
        "SDK": dict(parts()),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)),
        "event loop": type(asyncio.get_event_loop_policy()),
        "logging": (root.level, list(root.handlers), logging.getLogger("temporalio").level, logging.raiseExceptions),
        "structlog": structlog.get_config(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.getswitchinterval(), sys.getrecursionlimit()),
        "path": list(sys.path),
    }


before = look()

import waystation.testing.pytest_plugin
from waystation.agents import Agent
from waystation.client import AgentClient
from waystation.testing import FunctionModel, says
from waystation.worker import WaystationPlugin


@workflow.defn(sandboxed=False)
class Greeting:
    @workflow.run
    async def run(self) -> str:
        return "hello"


async def use():
    plugin = WaystationPlugin([Agent(name="echo", model=FunctionModel(lambda request: says("hi")))])
    await AgentClient.connect(address=sys.argv[1])
    client = await temporalio.client.Client.connect(sys.argv[1], plugins=[plugin])
    async with temporalio.worker.Worker(client, task_queue="theirs", workflows=[Greeting]):
        assert await client.execute_workflow(Greeting.run, id="beside", task_queue="theirs") == "hello"


asyncio.run(use())
after = look()
for kind, value in before.items():
    if value != after[kind]:
        if isinstance(value, dict):
            value = {key: (part, after[kind].get(key)) for key, part in value.items() if after[kind].get(key) != part}
        print(kind, value, after[kind] if kind != "SDK" else "")
'''


def test_importing_connecting_and_adding_the_plugin_change_nothing_of_the_process(server: EmbeddedServer) -> None:
    """Users embed Waystation in programs of their own, whose other parts rely on the SDK and on their own settings."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.address], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("", 0), run.stderr
