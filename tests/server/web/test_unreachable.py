"""Pages while the Temporal server is unavailable."""

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.sites import hidden, path_of, site

GONE = "The Temporal server does not answer (UNAVAILABLE). Pending calls stay pending; try again later."
UNKNOWN = "The Temporal server did not respond (UNAVAILABLE), so your answer may or may not be recorded."


def gone(*_: object, **__: object) -> Any:
    """Return an address where no server listens."""
    raise RPCError("gone", RPCStatusCode.UNAVAILABLE, b"")


@contextlib.contextmanager
def cut(name: str) -> Iterator[None]:
    """Make a method of workflow handles fail as it does without a server."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WorkflowHandle, name, gone)
        yield


async def test_an_unconfirmed_answer_is_not_reported_as_failed(serve: Serve) -> None:
    """The page asks to check the call first, because the answer may be recorded."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields(path_of(id))
        with cut("execute_update"):
            page = await me.send(path_of(id), {**fields, "action": "approve"})
        await invocation.reject()
        assert page.status_code == 503
        assert f"{UNKNOWN} Check the call before you answer again." in page.text


async def test_several_unconfirmed_answers_are_reported_one_by_one(serve: Serve) -> None:
    """Answers that were sent may count; calls that could not be read got no answer."""
    agent = payer(Till(), {"amount": 5}, {"amount": 6})
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        path = f"/approvals/several?{urlencode({'call': [id, id.replace('fc-1', 'fc-2')]}, doseq=True)}"
        one, other = [hidden((await me.page(path)).text) for _ in range(2)]
        form = {"call": [f"{id}|", f"{id.replace('fc-1', 'fc-2')}|"], "action": "approve"}
        with cut("execute_update"):
            page = (await me.send("/approvals/several", {**one, **form})).text
        assert "<h1>0 of 2 answers count, 2 unconfirmed</h1>" in page
        assert page.count(UNKNOWN) == 2
        with cut("describe"):
            page = (await me.send("/approvals/several", {**other, **form})).text
            shown = await me.page(path)
        assert "<h1>0 of 2 answers count</h1>" in page
        assert page.count(GONE) == 2
        assert (shown.status_code, GONE in shown.text) == (503, True)
        await invocation.cancel()
