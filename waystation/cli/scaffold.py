"""The command `waystation new`: create an agent package with a test."""

import keyword
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit, quote, translate_file_errors

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
FILES = {"__init__.py": "", "agent.py": AGENT, "demo.py": DEMO, "test_agent.py": TEST}


def _find_module(name: str) -> str | None:
    """Return which module on the import path has this name, or None if there is none."""
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    spec = PathFinder.find_spec(name)
    return f"the module at {[*(spec.submodule_search_locations or ()), spec.origin][0]}" if spec else None


async def new(
    ctx: CommandContext,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent, such as order_agent.")],
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="Create the package in this folder.")] = Path(),
    json: AsJson = False,
) -> Exit:
    """Create an agent package with a tool that needs approval, a demo model and a test. It runs without an API key."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name == "user":
        raise CommandProblem(
            Exit.USAGE, f"{name!r} is not a valid name. Use letters, digits and underscores: order_agent."
        )
    package = folder / name
    if package.exists():
        raise CommandProblem(Exit.USAGE, f"{str(package)!r} exists. Choose another name, or another folder with --in.")
    if (module := _find_module(name)) is not None:
        raise CommandProblem(Exit.USAGE, f"{name!r} would hide {module}. Choose another name, such as {name}_agent.")
    with translate_file_errors(package, "created"):
        package.mkdir(parents=True)
        for file, text in FILES.items():
            (package / file).write_text(text.replace("NAME", name), encoding="utf-8")
    files = [str(package / file) for file in FILES]
    ctx.out.result({"agent": name, "files": files}, f"Created {', '.join(files)}.")
    if not json:
        program = ctx.target.program
        ctx.out.command("try", [f"{program} dev {quote(str(package))}"])
        ctx.out.command("test", [f"python -m pytest {quote(str(package))}"])
    return Exit.OK
