"""The MCP server: tools, elicitations, and the extension for tasks, for the revisions that the package `mcp` speaks."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver.server import require_client_extension
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestFormParams,
    InputRequest,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParams,
    TextContent,
    Tool,
)
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.service import RPCError

from waystation.configuration import login_name
from waystation.core.errors import InvalidInput, WaystationError
from waystation.core.payload import JsonObject, describe_faults
from waystation.interfaces.mcp_server.agent_tools import (
    WAIT_S,
    AgentTools,
    AnswerArguments,
    ChosenInvocation,
    GetArguments,
    InvocationView,
    MessageArguments,
    StartArguments,
    find_time,
)
from waystation.interfaces.mcp_server.elicitations import make_forms, read_answers
from waystation.version import waystation_version
from waystation.web.call_api import Accepted, RefusedAnswer, Unconfirmed
from waystation.web.http_responses import RequestRefused, to_refused
from waystation.web.invocation_pages import STALLED_S
from waystation.web.logins import Login
from waystation.web.route_table import RouteRow
from waystation.web.typed_routes import HOLD_S, JSON, Body, BodyType
from waystation.web.web_services import WebServices

PATH = "/mcp"
TASKS = "io.modelcontextprotocol/tasks"
LIST_TTL_MS = 60_000
POLL_MS, POLL_WAITING_MS, MAX_POLL_MS = 2_000, 10_000, 60_000
"""How often clients should read a task that works, and one that waits for a person. Those of old tasks are longer."""
OPEN = ("running", "waiting", "held")
TASK_ENDS = {
    "completed": "completed",
    "failed": "completed",
    "canceled": "cancelled",
    "terminated": "failed",
    "timed_out": "failed",
}
"""The status of a task by that of its ended invocation. An agent that fails has completed the task with an error."""
FORM_S = 600.0
"""How long a call over standard input and output waits for the person of the client."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Agents with other names are started with `agent_start`."""
INSTRUCTIONS = (
    "Each agent is a tool. An agent may take long, or wait for a person. Then the result has an `invocation_id` and "
    "the calls that wait; read it again with `agent_get`. Use `agent_answer` only to send what a person has decided."
)
PROBLEMS = (RequestRefused, WaystationError, RPCError, TimeoutError)
"""The errors that have a text for the client."""
Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`."""

    input_responses: dict[str, Any] = {}


PLAIN_TOOLS: Mapping[str, tuple[type[Body], bool, str]] = {
    "agent_start": (StartArguments, True, "Start an agent and return its `invocation_id` at once."),
    "agent_get": (GetArguments, False, "Read the status, the result and the waiting calls of an invocation."),
    "agent_answer": (AnswerArguments, False, "Answer a call as a person has decided who has read it."),
    "agent_cancel": (ChosenInvocation, True, "Request the cancellation of an invocation."),
}
"""The tools for clients without the extension for tasks: arguments, whether only authors may use them, and help."""


class ProtocolServer:
    """The handlers of one server. The person comes from the request or, over standard input, is always `local`."""

    def __init__(self, services: WebServices, *, local: Login | None = None) -> None:
        self.tools, self._local = AgentTools(services), local
        self.server: Server[Any] = Server(
            "waystation",
            version=waystation_version(),
            instructions=INSTRUCTIONS,
            cache_hints={"tools/list": CacheHint(ttl_ms=LIST_TTL_MS)},
            get_tool_input_schema=lambda name: None,  # no parameter is a header
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )
        self.server.extensions = {TASKS: {}}
        self.server.add_request_handler("tasks/get", TaskParams, self.get_task)
        self.server.add_request_handler("tasks/update", UpdateParams, self.update_task)
        self.server.add_request_handler("tasks/cancel", TaskParams, self.cancel_task)

    async def serve(self, request: Request) -> ASGIApp:
        """Serve a request. A session manager of its own keeps nothing in memory, and needs no lifespan.

        A response counts as an open stream of the person, until the client has read it or takes too long.

        Raises:
            RequestRefused: The server, or this person, has too many open streams.
        """
        stream = self.tools.services.invocations.open_stream(request.state.login)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_in_time(message: Message) -> None:
                async with asyncio.timeout(STALLED_S):
                    await send(message)

            with stream:
                manager = StreamableHTTPSessionManager(self.server, stateless=True)
                async with manager.run():
                    await manager.handle_request(scope, receive, send_in_time)

        return respond

    async def list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """List the tools that the person may use."""
        login = self._find_login(ctx)
        async with _translate_problems():
            agents = await self.tools.list_agents(login)
        tools = [
            Tool(name=name, description=text, input_schema=arguments.model_json_schema())
            for name, (arguments, for_authors, text) in PLAIN_TOOLS.items()
            if "author" in login.roles or not for_authors
        ]
        schema = MessageArguments.model_json_schema()
        tools += [
            Tool(name=name, description=text or f"The agent {name}.", input_schema=schema)
            for name, text in sorted(agents.items())
            if TOOL_NAME.fullmatch(name) and name not in PLAIN_TOOLS
        ]
        return ListToolsResult(tools=tools)

    async def call_tool(
        self, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult | Any:
        """Call a tool. Refusals are results, so that a model can read them."""
        login = self._find_login(ctx)
        call = self._call_plain_tool if params.name in PLAIN_TOOLS else self.call_agent
        try:
            async with asyncio.timeout(HOLD_S):
                result = await call(ctx, login, params)
            return await self._ask_now(ctx, login, result) if isinstance(result, InvocationView) else result
        except PROBLEMS as error:
            return _make_result(_explain(error).message, is_error=True)

    async def _call_plain_tool(self, ctx: Context, login: Login, params: CallToolRequestParams) -> CallToolResult:
        arguments = _parse(PLAIN_TOOLS[params.name][0], params.arguments or {})
        match arguments:
            case AnswerArguments():
                return _format_outcome(await self.tools.answer(login, arguments.call_id, arguments))
            case StartArguments():
                view = await self.tools.read(login, await self.tools.start(login, arguments.agent, arguments))
            case GetArguments():
                view = await self.tools.wait(login, arguments.invocation_id, find_time() + arguments.wait_s)
            case _:
                assert isinstance(arguments, ChosenInvocation)
                view = await self.tools.cancel(login, arguments.invocation_id)
        return self._make_result(ctx, view)

    async def call_agent(self, ctx: Context, login: Login, params: CallToolRequestParams) -> Any:
        """Start an agent, and return a task, its result, a form for the person, or what the client should read later.

        An invocation is returned as it is if the server can send its forms to the client now. Other clients that answer
        a form call again with the state, which is the ID of the invocation. Like any ID from a client, it only leads to
        what the person may see.
        """
        until = find_time() + WAIT_S
        if params.name not in await self.tools.list_agents(login):
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]!r}.")
        if params.input_responses and params.request_state is None:  # starting the agent again could repeat effects
            raise MCPError(code=INVALID_PARAMS, message="The responses came without the request state.")
        if params.request_state is None:
            id = await self.start_agent(login, params.name, params.arguments or {})
            if self.makes_task(ctx, params.name):
                return {"resultType": "task", **self._make_task(ctx, await self.tools.read(login, id))}
            view = await self.tools.wait(login, id, until)
        else:
            async with _translate_problems():
                view = await self.tools.read(login, params.request_state)
            if view.found.input.agent != params.name:
                raise MCPError(code=INVALID_PARAMS, message="The request state belongs to another tool.")
            if params.input_responses:
                has_closed = any(getattr(each, "action", "") == "cancel" for each in params.input_responses.values())
                await self._answer_forms(login, view, params.input_responses)
                view = await self.tools.wait(login, view.found.invocation.id, until)
                if has_closed:
                    return self._make_result(ctx, view)
        if not _takes_forms(ctx) or not (forms := make_forms(view.calls)):
            return self._make_result(ctx, view)
        if ctx.session.can_send_request:
            return view
        requests: dict[str, InputRequest] = {key: request for key, (_, request) in forms.items()}
        return InputRequiredResult(input_requests=requests, request_state=view.found.invocation.id)

    async def start_agent(self, login: Login, agent: str, arguments: JsonObject) -> str:
        """Start an agent with the arguments of its tool, and return the ID of the invocation."""
        return await self.tools.start(login, agent, _parse(MessageArguments, arguments))

    def makes_task(self, ctx: Context, agent: str) -> bool:
        """Return whether the call of an agent becomes a task: if this request declares the extension."""
        capabilities = ctx.session.client_capabilities
        return capabilities is not None and TASKS in (capabilities.extensions or {})

    async def _ask_now(self, ctx: Context, login: Login, view: InvocationView) -> CallToolResult:
        """Show forms on a connection with which the server can send requests, as long as the person answers in time."""
        id, is_asking = view.found.invocation.id, True
        with suppress(TimeoutError):
            async with asyncio.timeout(FORM_S):
                while is_asking and (forms := make_forms(view.calls)):
                    responses = {}
                    for key, (_, request) in forms.items():
                        assert isinstance(request.params, ElicitRequestFormParams)
                        form = request.params
                        responses[key] = await ctx.session.elicit_form(
                            form.message, form.requested_schema, ctx.request_id
                        )
                    is_asking = all(response.action != "cancel" for response in responses.values())
                    await self._answer_forms(login, view, responses)
                    view = await self.tools.wait(login, id, find_time() + WAIT_S)
        return self._make_result(ctx, await self.tools.read(login, id))

    async def get_task(self, ctx: Context, params: TaskParams) -> JsonObject:
        """Read a task, with its result or the forms that the person can answer."""
        login = self._check_task(ctx, params)
        async with _translate_problems():
            view = await self.tools.read(login, params.task_id)
        task = self._make_task(ctx, view)
        if task["status"] == "input_required":
            task["inputRequests"] = {key: _dump(request) for key, (_, request) in make_forms(view.calls).items()}
        elif task["status"] == "failed":
            task["error"] = {"code": INTERNAL_ERROR, "message": f"The invocation was {view.status.replace('_', ' ')}."}
        elif task["status"] == "completed":
            task["result"] = _dump(self._make_result(ctx, view))
        return task

    async def update_task(self, ctx: Context, params: UpdateParams) -> JsonObject:
        """Answer some of the forms of a task."""
        login = self._check_task(ctx, params)
        async with _translate_problems():
            await self._answer_forms(login, await self.tools.read(login, params.task_id), params.input_responses)
        return {}

    async def cancel_task(self, ctx: Context, params: TaskParams) -> JsonObject:
        """Request the cancellation of a task."""
        login = self._check_task(ctx, params)
        async with _translate_problems():
            await self.tools.cancel(login, params.task_id)
        return {}

    def _find_login(self, ctx: Context) -> Login:
        login: Login = self._local or ctx.request.state.login  # type: ignore[union-attr]  # HTTP always has a request
        return login

    def _check_task(self, ctx: Context, params: TaskParams) -> Login:
        """Return the person of a request for a task, which has to declare the extension and to name the same task.

        The header may be missing, because the client of the package `mcp` cannot send it for methods of extensions.
        """
        require_client_extension(ctx, TASKS)
        header = ctx.request.headers.get(MCP_NAME_HEADER) if ctx.request is not None else None
        if header is not None and decode_header_value(header) != params.task_id:
            raise MCPError(code=HEADER_MISMATCH, message=f"The header {MCP_NAME_HEADER} must be the ID of the task.")
        return self._find_login(ctx)

    def _make_task(self, ctx: Context, view: InvocationView) -> JsonObject:
        """Return the fields of a task."""
        is_asking = _takes_forms(ctx) and bool(make_forms(view.calls))
        text = _describe_waits(view.describe(self._find_place(ctx))) if view.status in OPEN else ""
        created, changed = view.times
        return {
            "taskId": view.found.invocation.id,
            "status": TASK_ENDS.get(view.status, "input_required" if is_asking else "working"),
            **({"statusMessage": text} if text else {}),
            "createdAt": created.isoformat(),
            "lastUpdatedAt": changed.isoformat(),
            "ttlMs": None,
            "pollIntervalMs": find_poll_ms(view),
        }

    async def _answer_forms(self, login: Login, view: InvocationView, responses: Mapping[str, Any]) -> None:
        """Send the answers that forms contain.

        Raises:
            Refused: An answer does not count, and no other one does.
        """
        plain = {key: _dump(each) if isinstance(each, BaseModel) else each for key, each in responses.items()}
        for id, body in read_answers(make_forms(view.calls), plain).items():
            outcome = await self.tools.answer(login, id, body)
            if isinstance(outcome, RefusedAnswer) and outcome.outcome == "refused":
                raise RequestRefused(HTTPStatus(outcome.problem.status), "AnswerRefused", outcome.problem.detail)

    def _find_place(self, ctx: Context) -> str:
        """Return the address of the web application, or an empty string if there is none."""
        services = self.tools.services
        return (
            services.find_address(ctx.request) if ctx.request is not None else (services.settings.url or "").rstrip("/")
        )

    def _make_result(self, ctx: Context, view: InvocationView) -> CallToolResult:
        state = view.describe(self._find_place(ctx))
        is_complete = state["status"] == "completed" and not state["reason"]
        is_error = not is_complete and state["status"] not in (*OPEN, "canceled")
        return _make_result(state["text"] if is_complete else _describe_waits(state), state, is_error=is_error)


def make_rows(services: WebServices, /) -> Sequence[RouteRow]:
    """Return the route of the interface. Its handlers check what a person may do, because a request can do anything."""
    return [RouteRow("POST", PATH, ProtocolServer(services).serve, "login", accepts=(JSON,))]  # type: ignore[arg-type]  # an ASGI application is a response


async def serve_stdio(services: WebServices) -> None:
    """Serve one client over standard input and output, for the user of the operating system, who is not verified."""
    local = Login(login_name() or "", browser=False, vouched=False)
    server = ProtocolServer(services, local=local).server
    async with stdio_server() as (receiving, sending):
        await server.run(receiving, sending, server.create_initialization_options())


@asynccontextmanager
async def _translate_problems() -> AsyncIterator[None]:
    """Limit the time of a request, and translate errors to those of the protocol."""
    try:
        async with asyncio.timeout(HOLD_S):
            yield
    except PROBLEMS as error:
        refused = _explain(error)
        code = INTERNAL_ERROR if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR else INVALID_PARAMS
        raise MCPError(code=code, message=refused.message) from None


def _explain(error: Exception) -> RequestRefused:
    if isinstance(error, TimeoutError):
        text = f"This took longer than {HOLD_S:g} seconds. It may still have an effect; read the invocation again."
        return RequestRefused(HTTPStatus.GATEWAY_TIMEOUT, "TookTooLong", text)
    return to_refused(error)


def _parse(kind: type[BodyType], arguments: JsonObject) -> BodyType:
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        raise InvalidInput(f"The arguments are invalid: {describe_faults(error)}.") from None


def _takes_forms(ctx: Context) -> bool:
    """Return whether this request declares that the client shows forms. An empty capability means forms, too."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def find_poll_ms(view: InvocationView) -> int:
    """Return when to read a task again. A person's requests are limited, so old tasks are read less often."""
    age_ms = (datetime.now(UTC) - view.times[1]).total_seconds() * 1_000
    return int(min(MAX_POLL_MS, max(POLL_WAITING_MS if view.calls else POLL_MS, age_ms / 10)))


def _describe_waits(state: JsonObject) -> str:
    """Return sentences about an invocation without a complete result: why, and what the client can do."""
    status = state["status"]
    lines = [f"{state['agent']} is {status.replace('_', ' ')}.", state["reason"], state["text"]]
    for call in state["calls"]:
        who = "your answer" if call["allowed"] else call["waits_for"]
        link = call["link"]
        lines.append(f"The call {call['tool']} waits for {who}{f': {link}' if link else ''}.")
    if status in OPEN:
        lines.append(f"Read it later with agent_get and the invocation_id {state['invocation_id']}.")
    return "\n".join(filter(None, lines))


def _format_outcome(outcome: Accepted | Unconfirmed | RefusedAnswer) -> CallToolResult:
    if isinstance(outcome, RefusedAnswer):
        return _make_result(outcome.problem.detail, _dump(outcome), is_error=True)
    return _make_result(outcome.detail if isinstance(outcome, Unconfirmed) else "The answer counts.", _dump(outcome))


def _make_result(text: str, structured: JsonObject | None = None, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured, is_error=is_error)


def _dump(value: BaseModel) -> JsonObject:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)
