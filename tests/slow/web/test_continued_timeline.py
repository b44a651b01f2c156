"""The timeline of an invocation that continued as new."""

from tests.server.conftest import Serve
from tests.server.web.sites import site
from waystation.agents import Agent
from waystation.core.contract import WORKFLOW
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool


async def test_a_timeline_covers_all_runs_of_an_invocation(serve: Serve) -> None:
    """Draws the runs of a continued invocation as one timeline."""

    def look(number: int) -> dict[str, int]:
        return {"found": number}

    model = ScriptedModel(*(calls(("look", {"number": number})) for number in range(8)), says("Done."))
    agent = Agent(name="finder", model=model, tools=[FunctionTool(look)])
    async with serve(agent, verify=False) as env, site(env.client) as web, web.browser() as me:
        given = {"agent": "finder", "message": "go", "cut_after": 5}
        id, queue = f"continued-{env.client.task_queue}", env.client.task_queue
        handle = await env.temporal.start_workflow(WORKFLOW, given, id=id, task_queue=queue)
        await handle.result()
        assert len(await env.client.invocation(id).histories()) > 1
        page = (await me.page(f"/invocations/{id}/timeline")).text
        assert [page.count(f"finder: model call {number}<") for number in (1, 9)] == [2, 2]
        assert page.count(">finder: look</a>") == 8
