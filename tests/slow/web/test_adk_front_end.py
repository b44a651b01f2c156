"""google-adk's own browser front end on durable agents. Its files come from the environment with google-adk."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.agents import Till
from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.server.web.browsers import opened
from tests.server.web.sites import path_of, site
from waystation.agents import Agent
from waystation.extensions import load_interfaces
from waystation.interfaces.adk_web import front_end
from waystation.testing import calls, says
from waystation.tools import ToolContext
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

KNOWN = ("prism-dark.css", "ERR_NAME_NOT_RESOLVED", "ERR_INTERNET_DISCONNECTED", "409 (Conflict)", "status of 404")
"""Complaints that the front end has anywhere: a file that its package lacks, fonts on another site, and refusals."""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the front end of the other environment."""
    found = [*ROOT.glob(".venv-adk/lib/python3*/site-packages/google/adk/cli/browser")]
    assert found, "google-adk is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    monkeypatch.setattr(front_end, "find_front_end", lambda: Path(found[0]))


def helper(till: Till, model: Held) -> Agent:
    """Return an agent that takes notes, asks, and pays."""

    async def note(text: str, tool_context: ToolContext) -> dict[str, str]:
        """Save a note."""
        tool_context.state["noted"] = text
        await tool_context.save_artifact("note.txt", {"text": text})
        return {"noted": text}

    def ask(question: str) -> None:
        """Ask a person."""

    def pay(amount: float) -> dict[str, Any]:
        """Pay."""
        till.paid.append(int(amount))
        return {"paid": amount}

    tools = [FunctionTool(note), LongRunningFunctionTool(ask), FunctionTool(pay, require_confirmation=True)]
    return Agent(name="helper", model=model, tools=tools)


async def say(page: Page, text: str) -> None:
    """Send a message."""
    box = page.get_by_placeholder("Type a message")
    await box.fill(text)
    await box.press("Enter")


async def confirm(page: Page) -> None:
    """Confirm the last call that asks for it."""
    await page.get_by_text("Confirmed").last.click()
    await page.get_by_role("button", name="Submit").last.click()


def find_complaints(complaints: list[str]) -> list[str]:
    """Return the complaints of a page that it does not have with ADK's server."""
    return [complaint for complaint in complaints if not any(each in complaint for each in KNOWN)]


async def test_a_person_works_with_an_agent_in_adks_front_end(serve: Serve, chromium: Browser) -> None:
    """Chat, a tool, state, files, a trace, a question and a payment that are answered there, and a reload."""
    till = Till()
    model = Held(
        calls(("note", {"text": "milk"})),
        says("Noted **milk**."),
        calls(("ask", {"question": "Which size?"})),
        says("Large it is."),
        calls(("pay", {"amount": 5})),
        says("Paid."),
    )
    model.go_on.set()
    async with (
        serve(helper(till, model), verify=False) as env,
        site(env.client, interfaces=load_interfaces(["adk"]), artifacts=env.services.artifacts) as web,
        opened(chromium, web) as (page, complaints),
    ):
        page.set_default_timeout(60_000)  # the front end has nine megabytes
        await page.goto("/dev-ui/?app=helper")
        await say(page, "Note milk.")
        await page.get_by_text("Noted milk.").wait_for()
        await page.get_by_role("tab", name="State").click()
        await page.get_by_role("tabpanel").get_by_text("noted").wait_for()
        await page.get_by_role("tab", name="Artifacts").click()
        await page.get_by_role("tabpanel").get_by_text("note.txt").wait_for()
        await page.locator("mat-button-toggle", has_text="Traces").click()
        await page.get_by_text("generate_content").first.wait_for()
        await page.get_by_text("helper: note").wait_for()
        await page.locator("mat-button-toggle", has_text="Events").click()
        await say(page, "Ask me.")
        await page.locator("app-long-running-response").locator("input, textarea").first.fill("large")
        await page.locator("app-long-running-response").get_by_role("button").last.click()
        await page.get_by_text("Large it is.").wait_for()
        await say(page, "Pay.")
        await page.get_by_text("Confirmed").last.wait_for()
        assert till.paid == []
        await confirm(page)
        await page.get_by_text("Paid.").wait_for()
        await page.reload()
        for text in ("Noted milk.", "Large it is.", "Paid."):
            await page.get_by_text(text).wait_for()
        assert till.paid == [5]
        assert find_complaints(complaints) == []


async def test_a_call_has_one_answer_in_the_front_end_and_the_inbox(serve: Serve, chromium: Browser) -> None:
    """The inbox shows what the front end answered. A call that was answered in the inbox is refused in words."""
    till = Till()
    model = Held(*[calls(("pay", {"amount": 5})), says("Paid.")], *[calls(("pay", {"amount": 7})), says("Paid again.")])
    model.go_on.set()
    async with (
        serve(helper(till, model), verify=False) as env,
        site(env.client, interfaces=load_interfaces(["adk"])) as web,
        opened(chromium, web) as (page, complaints),
        web.browser() as inbox,
    ):
        page.set_default_timeout(60_000)  # the front end has nine megabytes
        await page.goto("/dev-ui/?app=helper")
        for number, text in enumerate(("Paid.", "already answered"), 1):
            await say(page, "Pay.")
            await page.get_by_text("Confirmed").last.wait_for()
            session = page.url.rpartition("session=")[2]
            invocation = env.client.session(agent="helper", session_id=session, user_id="dana").invocation(number)
            if number == 2:
                await invocation.approve("fc-1", by="erin")
                await invocation.result()
            await confirm(page)
            await page.get_by_text(text).first.wait_for()
            approved = (await inbox.page(path_of(f"{invocation.id}/fc-1"))).text
            assert f"This call was approved by {'dana' if number == 1 else 'erin'}" in approved
        assert till.paid == [5, 7]
        assert find_complaints(complaints) == []
        await page.reload()
        await page.get_by_text("Paid again.").wait_for()


async def test_sessions_are_listed_and_text_is_streamed(serve: Serve, chromium: Browser) -> None:
    """The text appears while the model writes. Older sessions can be opened, and deleted."""
    model = Held(says("Good morning."))
    async with (
        serve(helper(Till(), model), verify=False) as env,
        site(env.client, interfaces=load_interfaces(["adk"])) as web,
        opened(chromium, web) as (page, complaints),
    ):
        await page.add_init_script("localStorage.setItem('adk-use-sse', 'true')")
        page.set_default_timeout(60_000)  # the front end has nine megabytes
        await page.goto("/dev-ui/?app=helper")
        await say(page, "Hello.")
        await page.get_by_text("Good morning.").wait_for()
        async with page.expect_response("**/debug/trace/session/*"):  # after the end of the stream
            model.go_on.set()
        await page.get_by_role("button", name="New Session").click()
        await page.get_by_text("Good morning.").wait_for(state="hidden")
        await page.get_by_text("NEW SESSION").click()
        await page.locator(".session-item").first.click()
        await page.get_by_text("Good morning.").wait_for()
        assert find_complaints(complaints) == []
