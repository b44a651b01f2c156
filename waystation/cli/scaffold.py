"""The command `waystation new`: create an agent package with a test."""

import keyword
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit, quote, translate_file_errors
from waystation.project_file import PROJECT_FILE

AGENT = '''\
"""An agent that places orders. Large orders wait for approval."""

from waystation import Agent, FunctionTool

from .demo import demo_model as demo_model


def order(item: str, quantity: int) -> dict[str, object]:
    """Order an item.

    Args:
        item: What to order.
        quantity: How many to order.
    """
    return {"status": "ordered", "item": item, "quantity": quantity}


def is_large(quantity: int) -> bool:
    """Return whether an order needs approval."""
    return quantity > 10


root_agent = Agent(
    name="NAME",
    model="gemini-3.5-flash",
    instruction="Place the orders that the user asks for.",
    tools=[FunctionTool(order, require_confirmation=is_large)],
)
'''
DEFAULT_NAME = "order_agent"
DEMO = '''\
"""Rules that reply instead of a language model with `--model demo`, or if no API key is set.

Delete this file and its import in `agent.py` to use the built-in demo model, which calls any tool.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says


def reply(request: LlmRequest) -> LlmResponse:
    """Order what the message names, such as "Order 5 pencils", then report the response."""
    message, responses = latest_turn(request)
    if responses:
        return says(f"[demo model] {responses[-1][1]}")
    if match := re.search(r"(\\d+) (\\w+)", message):
        return calls(("order", {"quantity": int(match[1]), "item": match[2]}))
    return says("[demo model] Tell me what to order, as in: Order 5 pencils")


demo_model = FunctionModel(reply)
'''
TEST = '''\
"""Test the agent on a real Temporal server, with the demo model: python -m pytest"""

import asyncio

from NAME.agent import root_agent
from NAME.demo import demo_model
from waystation.testing import AgentEnvironment


def test_a_large_order_waits_for_approval() -> None:
    async def scenario() -> None:
        async with AgentEnvironment(root_agent, model=demo_model) as env:
            invocation = await env.client.start("NAME", "Order 50 pencils")
            while not await invocation.pending():
                await asyncio.sleep(0.05)
            await invocation.approve()
            result = await invocation.result()
            assert "'status': 'ordered'" in result.text

    asyncio.run(scenario())
'''
POLICY = '''\
"""The policies of the agent: who approves, and by when."""

from datetime import timedelta

from waystation import ApprovalPolicy

LARGE_ORDERS = ApprovalPolicy(comment=True, deadline=timedelta(days=2), reminders=(timedelta(hours=4),))
'''
PROJECT_TEST = '''\
"""Test the agent and its policy on a real Temporal server, with the demo model: python -m pytest"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from waystation import InvalidAnswer


def test_a_large_order_waits_for_an_approval_with_a_comment(waystation_serve: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with waystation_serve(model="demo") as env:  # the agents of waystation.toml
            invocation = await env.client.start("NAME", "Order 50 pencils")
            while not await invocation.pending():
                await asyncio.sleep(0.05)
            with pytest.raises(InvalidAnswer):
                await invocation.approve()
            await invocation.approve(comment="The office needs them.")
            result = await invocation.result()
            assert "'status': 'ordered'" in result.text

    asyncio.run(scenario())
'''
PROJECT = """\
# The settings of this project, for `waystation` in this folder and below it, `AgentClient.connect()` and tests.
# An option overrides an environment variable, which overrides this file. Paths are relative to this file.
# Secrets do not belong here: name a file, or an environment variable as "env:VARIABLE".

agents = ["agents"]

[server]
task_queue = "waystation"
# address = "localhost:7233"
# namespace = "default"
# api_key = "env:TEMPORAL_API_KEY"

[stores]
payloads = ".waystation/payloads"
artifacts = ".waystation/artifacts"
memory = ".waystation/memory.db"
credentials = ".waystation/credentials"

# [encryption]
# keys = "encryption-keys.json"   # waystation encryption keys encryption-keys.json

# [identity]
# workers = "identity/workers.toml"   # waystation identity init identity
# web = "identity/gateway.toml"
# clients = "identity/clients.toml"

# [telemetry]
# metrics = 9464
"""
FILES = {"__init__.py": "", "agent.py": AGENT, "demo.py": DEMO, "test_agent.py": TEST}


def _list_project_files(name: str) -> dict[str, str]:
    """Return the files of a project with an agent, by path."""
    agent = AGENT.replace("demo_model\n", "demo_model\nfrom .policy import LARGE_ORDERS\n", 1)
    agent = agent.replace("require_confirmation=is_large", "require_confirmation=is_large, approval=LARGE_ORDERS")
    package = {"__init__.py": "", "agent.py": agent, "demo.py": DEMO, "policy.py": POLICY}
    files = {f"agents/{name}/{file}": text for file, text in package.items()}
    return {PROJECT_FILE: PROJECT, ".gitignore": ".waystation/\n", **files, f"tests/test_{name}.py": PROJECT_TEST}


def _find_module(name: str) -> str | None:
    """Return which module on the import path has this name, or None if there is none."""
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    spec = PathFinder.find_spec(name)
    return f"the module at {[*(spec.submodule_search_locations or ()), spec.origin][0]}" if spec else None


async def new(
    ctx: CommandContext,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the agent. Default with --project: order_agent.")
    ] = "",
    folder: Annotated[
        Path, typer.Option("--in", metavar="DIR", help="Create the package or the project in this folder.")
    ] = Path(),
    project: Annotated[
        bool, typer.Option("--project", help="Create a project: an agent, a policy, a test and waystation.toml.")
    ] = False,
    json: AsJson = False,
) -> Exit:
    """Create an agent package with a tool that needs approval, a demo model and a test. It runs without an API key."""
    name = name or (DEFAULT_NAME if project else "")
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name == "user":
        raise CommandProblem(
            Exit.USAGE, f"{name!r} is not a valid name. Use letters, digits and underscores: order_agent."
        )
    package = folder if project else folder / name
    texts = {package / file: text for file, text in (_list_project_files(name) if project else FILES).items()}
    if existing := [str(path) for path in (texts if project else (package,)) if path.exists()]:
        raise CommandProblem(Exit.USAGE, f"{existing[0]!r} exists. Choose another name, or another folder with --in.")
    if (module := _find_module(name)) is not None:
        raise CommandProblem(Exit.USAGE, f"{name!r} would hide {module}. Choose another name, such as {name}_agent.")
    with translate_file_errors(package, "created"):
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("NAME", name), encoding="utf-8")
    files = [str(path) for path in texts]
    ctx.out.result({"agent": name, "files": files}, f"Created {', '.join(files)}.")
    if not json:
        option = "--project-file " if project else ""
        ctx.out.command("try", [f"{ctx.target.program} dev {option}{quote(str(package))}"])
        ctx.out.command("test", [f"python -m pytest {quote(str(package))}"])
    return Exit.OK
