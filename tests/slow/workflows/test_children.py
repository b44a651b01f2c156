"""Called agents eight levels deep."""

from tests.server.conftest import Serve
from tests.steps import run
from waystation.agents import Agent
from waystation.testing import FunctionModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool


async def test_an_agent_that_calls_itself_is_stopped_eight_levels_deep(serve: Serve) -> None:
    """The ninth level receives an error, and the answer returns to the top."""

    def deeper(request: object) -> object:
        told = responses(request)  # type: ignore[arg-type]  # a request
        if not told:
            return calls(("loop", {"request": "again"}))
        return says(str(told[-1][1].get("error") or told[-1][1].get("result")))

    loop = Agent(name="loop", model=FunctionModel(deeper))  # type: ignore[arg-type]  # a reply
    loop.tools.append(AgentTool(loop))
    result = await run(serve(loop), "loop", "go")
    assert result.text == "`loop` was not called: agents can call each other at most 8 levels deep."
