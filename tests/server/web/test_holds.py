"""The pages of a held invocation."""

from tests.server.conftest import Serve
from tests.server.web.sites import page_of, site
from tests.steps import make_quick_settings, wait_for_hold, wait_until
from waystation.agents import Agent
from waystation.core.errors import ModelOverloaded
from waystation.testing import FunctionModel


async def test_the_pages_of_a_held_invocation_have_the_reason(serve: Serve) -> None:
    """The list has the status, and the page has the reason and the time."""
    agent = Agent(name="asker", model=FunctionModel(lambda request: ModelOverloaded("Overloaded (503).")))
    async with (
        serve(agent, verify=False, settings=make_quick_settings()) as env,
        site(env.client) as web,
        web.browser() as browser,
    ):
        invocation = await env.client.start("asker", "hi")
        await wait_for_hold(invocation)

        async def listed() -> bool:
            page = (await browser.page("/invocations?status=held")).text
            return invocation.id in page and "the model is not available for " in page

        await wait_until(listed, "the held invocation in the list")
        for page in ("", "/timeline"):
            text = (await browser.page(f"{page_of(invocation)}{page}")).text
            assert "Held for " in text
            assert "the model is not available: Overloaded (503)." in text
        await invocation.handle.terminate()
