"""The requests of A2A as reads and updates of Temporal. Nothing is in memory between two requests."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from http import HTTPStatus

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from temporalio.service import RPCError

from waystation.approvers import check_role
from waystation.client import Invocation
from waystation.core.errors import MessageUnconfirmed, WaystationError
from waystation.core.log import Log
from waystation.core.payload import digest
from waystation.interfaces.a2a_server.agent_cards import extend_card, make_card
from waystation.interfaces.a2a_server.push_configs import PushConfigs
from waystation.interfaces.a2a_server.task_answers import answer_task, parse_answers
from waystation.interfaces.a2a_server.task_reads import TaskReader
from waystation.interfaces.a2a_server.task_views import (
    INTERRUPTED,
    MESSAGE_ID,
    TERMINAL,
    TaskRef,
    cut_history,
    list_changes,
    parse_parts,
)
from waystation.web.http_responses import RequestRefused, to_refused
from waystation.web.typed_routes import HOLD_S
from waystation.web.web_services import WebServices

READER, BASE = "reader", "base"
"""Keys in the state of a call: the `TaskReader` of the person, and the address of this server."""
CONFIRM_S, CANCEL_S = 30.0, 10.0
"""How long to wait for a worker to confirm a message, and for a canceled task to end."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert refusals and other expected errors to those of A2A.

    Raises:
        A2AError: The request is refused, or the Temporal server does not respond.
    """
    try:
        yield
    except (RequestRefused, WaystationError, RPCError) as error:
        refused = to_refused(error)
        match refused.status:
            case HTTPStatus.NOT_FOUND:
                kind: type[A2AError] = TaskNotFoundError
            case HTTPStatus.UNPROCESSABLE_ENTITY | HTTPStatus.BAD_REQUEST:
                kind = InvalidParamsError
            case HTTPStatus.FORBIDDEN | HTTPStatus.CONFLICT | HTTPStatus.TOO_MANY_REQUESTS:
                kind = InvalidRequestError
            case _:
                kind = InternalError
        raise kind(message=refused.message) from None


class TaskRequests(RequestHandler):
    """Handles the requests of all agents and people. The context says whose request it is."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        self._push = PushConfigs(services)

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Return a task."""
        with translate_errors():
            reader = find_reader(context)
            task = await reader.read(*await reader.find(params.id))
            return cut_history(task, params.history_length if params.HasField("history_length") else None)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the person's tasks."""
        with translate_errors():
            return await find_reader(context).read_page(params)

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        """Cancel a task, and wait a moment for its end, which is when its tools have ended."""
        with translate_errors():
            reader = find_reader(context)
            ref, log = await reader.find(params.id)
            check_role(reader.login, "author")
            if log is None:
                raise TaskNotCancelableError(message="The task is queued behind another one. Cancel that one first.")
            if log.state.outcome.ended or log.state.input is None or log.state.input.unknown:
                raise TaskNotCancelableError(message="The task has ended.")
            invocation = self._services.client.invocation(ref.invocation_id)
            await invocation.cancel()
            return await reader.wait(ref, invocation, CANCEL_S, ends=TERMINAL) or await reader.read(ref, log)

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Send a message, and return the task: when it has ended, when it waits for an answer, or after 55 s."""
        with translate_errors():
            reader, begin = find_reader(context), asyncio.get_running_loop().time()
            settings = params.configuration
            ref, invocation, log = await self._receive(params, reader)
            task: Task | None = None
            if not settings.return_immediately:
                rest_s = HOLD_S - 2 - (asyncio.get_running_loop().time() - begin)
                with self._services.invocations.open_stream(reader.login):
                    task = await reader.wait(ref, invocation, max(rest_s, 0.0), ends={*TERMINAL, *INTERRUPTED})
            task = task or await reader.read(ref, log)
            return cut_history(task, settings.history_length if settings.HasField("history_length") else None)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Send a message, and stream the task until it has ended, or asks the person who sent the message."""
        with translate_errors():
            reader = find_reader(context)
            ref, invocation, log = await self._receive(params, reader)
            ends = {*TERMINAL, TaskState.TASK_STATE_INPUT_REQUIRED}
            first = await reader.read(ref, log)
            # The state before a worker has applied an answer does not end the stream.
            async for event in stream_task(reader, ref, invocation, first, ends=ends):
                yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Stream a task until it has ended."""
        with translate_errors():
            reader = find_reader(context)
            ref, log = await reader.find(params.id)
            if log is not None and log.state.outcome.ended:
                raise UnsupportedOperationError(message="The task has ended. Read it instead.")
            invocation = self._services.client.invocation(ref.invocation_id)
            if log is None:
                number = int(ref.invocation_id.rpartition("/")[2])
                invocation = reader.open_session(ref).invocation(number)
            async for event in stream_task(reader, ref, invocation, await reader.read(ref, log), ends=TERMINAL):
                yield event

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Return the card for people who are logged in."""
        with translate_errors():
            agent = find_reader(context).agent
            agents = (await self._services.client.agents.describe()).get(agent)
            if agents is None:
                raise InvalidParamsError(message=f"There is no agent {agent[:100]!r}.")
            return extend_card(make_card(agent, context.state[BASE]), agents)

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Have the states of a task sent to a URL."""
        with translate_errors():
            self._push.check_supported()
            reader = find_reader(context)
            ref, _ = await reader.find(params.task_id)
            return await self._push.create(reader, ref, params)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return one of the person's configurations for a task."""
        with translate_errors():
            self._push.check_supported()
            reader = find_reader(context)
            ref, _ = await reader.find(params.task_id)
            for config in await self._push.read_all(reader, ref):
                if config.id == params.id:
                    return config
            raise TaskNotFoundError(message=f"The task has no push configuration {params.id[:100]!r} of yours.")

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the person's configurations for a task."""
        with translate_errors():
            self._push.check_supported()
            reader = find_reader(context)
            ref, _ = await reader.find(params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=await self._push.read_all(reader, ref))

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete one of the person's configurations. Deleting it again changes nothing."""
        with translate_errors():
            self._push.check_supported()
            reader = find_reader(context)
            ref, _ = await reader.find(params.task_id)
            await self._push.delete(reader, ref, params.id)

    async def _receive(self, params: SendMessageRequest, reader: TaskReader) -> tuple[TaskRef, Invocation, Log | None]:
        """Do what a message asks for. Return the task, its invocation, and its log if the task existed before."""
        message, log = params.message, None
        if has_push := params.configuration.HasField("task_push_notification_config"):
            self._push.check_supported()
        if not message.message_id or not message.parts:
            raise InvalidParamsError(message="The message lacks a `message_id` or `parts`.")
        if message.task_id:
            ref, log = await reader.find(message.task_id)
            if message.context_id and message.context_id != ref.session_id:
                raise InvalidParamsError(message="The task belongs to another context than the message names.")
            if log is not None and await self._answer(params, reader, ref, log):
                return ref, self._services.client.invocation(ref.invocation_id), log
            if not reader.is_own(ref):
                raise InvalidRequestError(message="Only the owner of the task can send it messages.")
        ref, invocation = await self._send(params, reader, message.task_id if log else "")
        if has_push:
            await self._push.create(reader, ref, params.configuration.task_push_notification_config)
        return ref, invocation, None

    async def _answer(self, params: SendMessageRequest, reader: TaskReader, ref: TaskRef, log: Log) -> bool:
        """Answer the calls that a task waits for. Return False if the task waits for none."""
        message = params.message
        calls = await reader.read_calls(ref, log)
        if log.state.outcome.ended and not parse_answers(message):
            raise UnsupportedOperationError(message="The task has ended. Start another one in the same context.")
        if not calls and not parse_answers(message):
            key = f"a2a-{digest([message.message_id])}"
            return any(key in call.receipts for call in log.state.calls.values())
        await answer_task(self._services, reader.login, message, log, calls)
        return True

    async def _send(self, params: SendMessageRequest, reader: TaskReader, task_id: str) -> tuple[TaskRef, Invocation]:
        """Send a message to the person's session, or to a task that is at work."""
        message, login = params.message, reader.login
        check_role(login, "author")
        known = TaskRef.parse(task_id) if task_id else None
        context = known.session_id if known else message.context_id or f"a2a-{digest([message.message_id])[:24]}"
        session = self._services.starter.session(login, context, agent=reader.agent)
        try:
            sent = await self._services.starter.send(
                login,
                session,
                parse_parts(message),
                message_id=message.message_id,
                metadata={MESSAGE_ID: message.message_id},
                agent=reader.agent,
                confirm_within=timedelta(seconds=CONFIRM_S),
                when_busy="join" if known else "queue",
            )
            async with asyncio.timeout(CONFIRM_S / 2):
                invocation = await sent.invocation() if known else sent
        except (MessageUnconfirmed, TimeoutError):
            text = "No worker has confirmed the message yet. Send it again with the same `message_id`."
            raise InternalError(message=text) from None
        ref = TaskRef.of(invocation.id)
        assert ref is not None
        return ref, invocation


async def stream_task(
    reader: TaskReader, ref: TaskRef, invocation: Invocation, first: Task, *, ends: Collection[TaskState]
) -> AsyncGenerator[Event]:
    """Yield a task and its changes, until it has one of the states in `ends`."""
    yield first
    before = first
    async with aclosing(reader.follow(ref, invocation)) as tasks:
        async for task in tasks:
            for event in list_changes(before, task):
                yield event
            before = task
            if task.status.state in ends:
                return


def find_reader(context: ServerCallContext) -> TaskReader:
    """Return the reader for the person whose request it is."""
    reader: TaskReader = context.state[READER]
    return reader
