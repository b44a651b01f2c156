"""The timeline of an invocation, on a server."""

import html
import re

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.sites import page_of, site
from tests.steps import approve_and_finish, start_and_finish
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

ROW = (
    r"<tr><td><time[^<]*</time></td><td>([^<]*)</td>"
    r'<td><a href="[^"#]*#e(\d+)">([^<]*)</a> <a class="fork" href="[^"]*/fork\?event=(\d+)"[^>]*>fork</a></td></tr>'
)
"""A step in the table: its duration, the event that ended it, its name, and the event at which its link forks."""


async def test_model_calls_tools_and_waits_are_drawn_in_their_order(serve: Serve) -> None:
    """A wait ends with the answer, and the steps before and after it have their own bars."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, _ = await begun(env.client, "payer")
        path = f"{page_of(invocation)}/timeline"
        waiting = (await me.page(path)).text
        assert re.findall(r'class="bar (\w+)" x="[^"]*" width="[^"]*" y="\d+" height="12"', waiting) == [
            "model",
            "wait",
        ]
        assert "so far, payer: pay waits" in waiting
        await approve_and_finish(invocation)
        over = html.unescape((await me.page(path)).text)
        rows = re.findall(ROW, over)
        assert [name for _, _, name, _ in rows] == [
            "payer: model call 1",
            "payer: pay waits",
            "payer: pay",
            "payer: model call 2",
        ]
        assert all(re.fullmatch(r"[\d.]+ m?s", length) for length, _, _, _ in rows)
        assert [forked for _, _, _, forked in rows] == [event for _, event, _, _ in rows]
        assert over.count('class="event"') > 3
        bars = re.findall(rf'<a href="{page_of(invocation)}#e(\d)" aria-label="payer: ([^,]*), ', over)
        assert bars[0] == ("2", "model call 1")
        assert [name for _, name in bars] == ["model call 1", "pay waits", "pay", "model call 2"]
        conversation = (await me.page(page_of(invocation))).text
        assert [number for number, _ in bars if f'id="e{number}"' not in conversation] == []
        assert " style=" not in over


async def test_attempts_and_changes_of_state_are_drawn(serve: Serve) -> None:
    """A retried tool shows its number of attempts."""
    tries: list[int] = []

    def look(tool_context: ToolContext) -> dict[str, str]:
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError("not yet")
        tool_context.state["seen"] = True
        return {"found": "it"}

    model = ScriptedModel(calls(("look", {})), says("Done."))
    agent = Agent(name="finder", model=model, tools=[FunctionTool(look, retries=5)])
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation = await start_and_finish(env.client.start("finder", "go"))
        page = (await me.page(f"{page_of(invocation)}/timeline")).text
        assert "finder: look, 3 attempts" in page
        assert 'class="bar tool retried"' in page
        assert page.count('class="change"') == 2
