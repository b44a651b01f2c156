"""Words of the shell are completed: options of `worker`, agents and invocation IDs."""

import subprocess
import sys

import pytest

from tests.paths import ROOT
from tests.programs import undisturbed
from tests.server.conftest import Serve
from waystation import Agent
from waystation.testing import FunctionModel, says


def complete(*words: str, address: str) -> tuple[list[str], str]:
    """Return the completions of the last word, and what was written to standard error."""
    environment = {
        **undisturbed(),
        "PYTHONPATH": str(ROOT),
        "TEMPORAL_ADDRESS": address,
        "_WAYSTATION_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("waystation", *words)),
        "COMP_CWORD": str(len(words)),
    }
    program = "from waystation.cli.program import app; app(prog_name='waystation')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.split(), done.stderr


def test_the_options_of_a_worker_are_completed() -> None:
    """The options of `worker` are completed, although another program parses them."""
    assert complete("worker", "--metrics-", address="127.0.0.1:1") == (["--metrics-by-tenant"], "")


async def test_agents_and_invocations_are_completed(serve: Serve) -> None:
    """The agents are those that workers have announced; options before the command choose the server."""
    agent = Agent(name="librarian", model=FunctionModel(lambda _: says("Here.")))
    async with serve(agent) as env:
        invocation = await env.client.start("librarian", "A book", id="books-1")
        await invocation.result()
        address = env.server.address
        assert complete("run", "libr", address=address) == (["librarian"], "")
        assert complete("events", "books-", address=address) == (["books-1"], "")
        assert "books-1" in complete("approve", "", address=address)[0]
        assert complete("--address", address, "stop", "boo", address="127.0.0.1:1") == (["books-1"], "")


@pytest.mark.parametrize("command", ["run", "events"])
def test_without_a_server_nothing_is_completed(command: str) -> None:
    """Nothing is written, because it would appear in the line that is being typed."""
    assert complete(command, "a", address="127.0.0.1:1") == ([], "")
