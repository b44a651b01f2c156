"""Stored script in a real browser that does not enforce the pages' policy, so that only the escaping is tested."""

from pathlib import Path
from typing import Any

from google.genai import types
from playwright.async_api import Browser

from tests.server.conftest import Serve
from tests.server.web.browsers import opened as opened_site
from tests.server.web.sites import page_of, path_of, site
from tests.server.web.test_guarding import XSS
from tests.slow.web.test_report import opened as opened_file
from tests.slow.web.test_report import written
from tests.steps import start_and_wait, wait_until
from waystation.agents import Agent
from waystation.artifacts import InMemoryArtifactService
from waystation.core import ids
from waystation.replay import Recording
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

HOSTILE = " ".join(XSS)
ARTIFACTS = [each for each in XSS if each.isprintable() and "/" not in each]


async def test_stored_script_runs_in_no_page_and_no_report(serve: Serve, chromium: Browser, tmp_path: Path) -> None:
    """Names, arguments, comments, results and artifact names open no dialog and add no element, even without a CSP."""

    async def keep(note: str, more: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        for name in ARTIFACTS:
            await tool_context.save_artifact(name, types.Part(text=HOSTILE))
        tool_context.state[HOSTILE] = HOSTILE
        return {HOSTILE: note}

    args = {"note": HOSTILE, "more": {each: [each] for each in XSS}}
    model = ScriptedModel(calls(("keep", args), text=HOSTILE), says(HOSTILE))
    agent = Agent(name="keeper", model=model, tools=[FunctionTool(keep, require_confirmation=True)])
    services = Services(artifacts=InMemoryArtifactService())
    async with serve(agent, services=services) as env, site(env.client, person=HOSTILE[:200]) as web:
        invocation = await start_and_wait(
            env.client.start("keeper", HOSTILE, user_id=XSS[0], session_id=XSS[1], requester=XSS[2])
        )
        id = ids.approval(invocation.id, "fc-1")

        async def listed() -> bool:
            return any([call.approval_id == id async for call in env.client.approvals.each()])

        await wait_until(listed, "the call in the list")
        paths = [
            "/invocations",
            "/approvals",
            path_of(id),
            page_of(invocation),
            f"{page_of(invocation)}/timeline",
        ]
        async with opened_site(chromium, web, bypass_csp=True) as (page, complaints):
            for path in paths:
                await page.goto(path)
                assert await page.locator("main img, main iframe, main script, base").count() == 0
            await page.goto(path_of(id))
            await page.fill("#comment", HOSTILE)
            await page.click("button[value=approve]")
            await page.get_by_text("This call was approved").wait_for()
            await invocation.result()
            for path in paths:
                await page.goto(path)
                assert await page.locator("main img, main iframe, main script, base").count() == 0
            assert complaints == []
        recording = await Recording.of(invocation)
        assert set(recording.log.state.events[-2].actions.artifact_delta) == set(ARTIFACTS)
    file = await written(tmp_path / "report.html", recording)
    async with opened_file(chromium, file, bypass_csp=True) as (page, complaints):
        await page.get_by_role("button", name="Open all").click()
        assert await page.locator("main img, main iframe, base").count() == 0
        assert complaints == []
