"""Pages for agents: the announced agents, and a form that starts a chat or a single invocation."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

import structlog
from starlette.requests import Request
from starlette.responses import Response

from waystation.client import AgentClient, AgentDetails
from waystation.core.errors import ForeignHistory, InvalidInput, MessageUnconfirmed, SessionRefused, UnknownAgent
from waystation.core.payload import digest
from waystation.presentation import text_safety
from waystation.web.forms import Form, read_form
from waystation.web.http_responses import RequestRefused, find_status, redirect, render_page
from waystation.web.logins import Login
from waystation.web.session_pages import CONFIRM_WITHIN, UNCONFIRMED, format_session_path, wait_until_started
from waystation.web.starter import Starter, identify_starter

log = structlog.get_logger("waystation.web")

MAX_NODES = 100
"""Maximum number of agents of a tree to draw."""


@dataclass(frozen=True, slots=True)
class Node:
    """An agent in the drawing of a tree."""

    name: str
    details: AgentDetails
    link: str
    """How the agent above reaches this one: `sub-agent`, `tool`, or an empty string for the root agent."""
    children: tuple["Node", ...]
    repeats: bool
    """Whether the agent is drawn elsewhere in the tree, where its own children are."""


def make_tree(root: str, agents: Mapping[str, AgentDetails]) -> Node:
    """Return the drawing of a tree, of at most `MAX_NODES` nodes. Each agent is drawn with its children once."""
    drawn, left = set[str](), iter(range(MAX_NODES - 1))

    def make(name: str, link: str) -> Node:
        details, repeats = agents.get(name, AgentDetails()), name in drawn
        drawn.add(name)
        below = [(child, "sub-agent") for child in details.sub_agents] + [(child, "tool") for child in details.called]
        # Count the children before their own children, so that a deep branch does not hide the others.
        shown = [] if repeats else [each for each, _ in zip(below, left, strict=False)]
        return Node(name, details, link, tuple(make(*each) for each in shown), repeats)

    return make(root, "")


class AgentPages:
    """The list of agents, and the form that starts them."""

    def __init__(self, client: AgentClient, starter: Starter) -> None:
        self._client, self._starter = client, starter

    async def index(self, request: Request) -> Response:
        """Serve the list of announced agents. It does not show whether a worker is running."""
        trees = [make_tree(name, agents) for name, agents in (await self._describe()).items()]
        return render_page("agents.html", login=request.state.login, trees=trees)

    async def _describe(self) -> dict[str, dict[str, AgentDetails]]:
        try:
            return await self._client.agents.describe()
        except ForeignHistory as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "NoAgents", str(error)) from None

    async def new(self, request: Request) -> Response:
        """Serve a form for the first message to the agent in `?agent=`."""
        return await self._form(request, request.query_params.get("agent", ""))

    async def _form(
        self,
        request: Request,
        agent: str,
        *,
        form: Form | None = None,
        problem: str = "",
        notice: str = "",
        code: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        form, agents = form or Form(), await self._describe()
        if agent and agent not in agents and not form:
            problem = f"No worker has announced the agent {text_safety.format_line(agent)!r}. Choose another one."
        return render_page(
            "new_session.html",
            code=code,
            login=request.state.login,
            agents={name: of_tree[name] for name, of_tree in agents.items()},
            chosen=agent,
            tree=make_tree(agent, agents[agent]) if agent in agents else None,
            problem=problem,
            notice=notice,
            typed=form.get("message", ""),
            message_id=form.get("message_id") or secrets.token_urlsafe(12),
        )

    async def start(self, request: Request) -> Response:
        """Start a chat or, with the other button, a single invocation. The same form counts only once."""
        form, login = await read_form(request), request.state.login
        agent, message, key = (form.get(name, "").strip() for name in ("agent", "message", "message_id"))
        fail = partial(self._form, request, agent, form=form)
        if not (agent and message and key):
            return await fail(problem="Choose an agent and enter a message.", code=HTTPStatus.UNPROCESSABLE_ENTITY)
        begin = self._run_once if form.get("start") == "once" else self._chat
        try:
            path = await begin(login, agent, message, key)
        except MessageUnconfirmed:
            return await fail(notice=UNCONFIRMED, code=HTTPStatus.ACCEPTED)
        except (SessionRefused, InvalidInput, UnknownAgent) as error:
            return await fail(problem=str(error), code=find_status(error))
        return redirect(path)

    async def _chat(self, login: Login, agent: str, message: str, key: str) -> str:
        name = f"chat-{digest([identify_starter(login), key])[:8]}"
        session = self._starter.session(login, name, agent=agent)
        options = {"message_id": key, "streaming": True, "confirm_within": CONFIRM_WITHIN}
        sent = await self._starter.send(login, session, message, **options)
        await wait_until_started(sent)
        return format_session_path(session.id)

    async def _run_once(self, login: Login, agent: str, message: str, key: str) -> str:
        invocation = await self._starter.start(login, agent, message, key=key, streaming=True)
        await wait_until_started(invocation)
        return f"/invocations/{quote(invocation.id, safe='')}"
