"""The requests of A2A as reads and updates of Temporal. Nothing is in memory between two requests."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import timedelta
from http import HTTPStatus

import structlog
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
from pydantic import ValidationError
from temporalio.service import RPCError

from waystation.approvers import check_role
from waystation.client import Invocation
from waystation.core.actions import ACTIONS
from waystation.core.errors import MessageUnconfirmed, WaystationError
from waystation.core.log import Log
from waystation.core.payload import describe_faults, digest
from waystation.interfaces.a2a_server.agent_cards import extend_card, make_card
from waystation.interfaces.a2a_server.push_configs import (
    check_supported,
    create_config,
    delete_config,
    find_own_task,
    list_configs,
)
from waystation.interfaces.a2a_server.task_reads import TaskReader
from waystation.interfaces.a2a_server.task_views import (
    INTERRUPTED,
    MESSAGE_ID,
    TERMINAL,
    TaskRef,
    cut_history,
    describe_call,
    list_changes,
    parse_parts,
    read_data,
)
from waystation.interfaces.open_calls import OpenCall, may_accept
from waystation.web.call_api import AnswerBody, RefusedAnswer
from waystation.web.http_responses import RequestRefused, to_refused
from waystation.web.logins import Login
from waystation.web.typed_routes import HOLD_S
from waystation.web.web_services import WebServices

events = structlog.get_logger("waystation.web")

READER = "reader"
"""Key in the state of a call: the `TaskReader` of the person."""
CONFIRM_S, CANCEL_S = 30.0, 10.0
"""How long to wait for a worker to confirm a message, and for a canceled task to end."""

HOW = (
    "Send a data part such as "
    '{"action": "approve", "digest": "…"}, with the `digest` of the call in the metadata of the task\'s status.'
)

ERRORS: Mapping[int, type[A2AError]] = {
    HTTPStatus.NOT_FOUND: TaskNotFoundError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidParamsError,
    HTTPStatus.BAD_REQUEST: InvalidParamsError,
    HTTPStatus.FORBIDDEN: InvalidRequestError,
    HTTPStatus.CONFLICT: InvalidRequestError,
    HTTPStatus.TOO_MANY_REQUESTS: InvalidRequestError,
}
"""The errors of A2A for the statuses with which the JSON API refuses requests. All others are internal."""


@contextmanager
def serve_person(context: ServerCallContext) -> Iterator[TaskReader]:
    """Yield the reader for the person whose request it is, and convert expected errors to those of A2A.

    Raises:
        A2AError: The request is refused, or the Temporal server does not respond.
    """
    try:
        yield context.state[READER]
    except (RequestRefused, WaystationError, RPCError) as error:
        refused = to_refused(error)
        raise ERRORS.get(refused.status, InternalError)(message=refused.message) from None
    except A2AError:
        raise
    except Exception as error:  # noqa: BLE001  # the SDK would report its message, which may contain anything
        events.error("a2a.failed", error_type=type(error).__name__, at=traceback.format_tb(error.__traceback__)[-1])
        raise InternalError(message="The server failed in its own code.") from None


class TaskRequests(RequestHandler):
    """Handles the requests of all agents and people. The context says whose request it is."""

    def __init__(self, services: WebServices) -> None:
        self._services = services

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Return a task."""
        with serve_person(context) as reader:
            task = await reader.read(*await reader.find(params.id))
            return cut_history(task, params.history_length if params.HasField("history_length") else None)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the person's tasks."""
        with serve_person(context) as reader:
            return await reader.read_page(params)

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        """Cancel a task, and wait a moment for its end, which is when its tools have ended."""
        with serve_person(context) as reader:
            ref, log = await reader.find(params.id)
            check_role(reader.login, "author")
            if log is None:
                raise TaskNotCancelableError(message="The task is queued behind another one. Cancel that one first.")
            if log.state.outcome.ended or log.state.input is None or log.state.input.unknown:
                raise TaskNotCancelableError(message="The task has ended.")
            invocation = self._services.client.invocation(ref.invocation_id)
            await invocation.cancel()
            return await reader.wait(ref, invocation, log, CANCEL_S, ends=TERMINAL)

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Send a message, and return the task: when it has ended, when it waits for an answer, or after 55 s."""
        with serve_person(context) as reader:
            begin, settings = asyncio.get_running_loop().time(), params.configuration
            # A request that is refused for its number has sent nothing.
            with self._services.invocations.open_stream(reader.login):
                ref, invocation, log = await self._receive(params, reader)
                rest_s = HOLD_S - 2 - (asyncio.get_running_loop().time() - begin)
                limit_s = 0.0 if settings.return_immediately else max(rest_s, 0.0)
                task = await reader.wait(ref, invocation, log, limit_s, ends={*TERMINAL, *INTERRUPTED})
            return cut_history(task, settings.history_length if settings.HasField("history_length") else None)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Send a message, and stream the task until it has ended, or asks the person who sent the message."""
        with serve_person(context) as reader:
            self._services.invocations.open_stream(reader.login).close()  # refuses one too many before it is sent
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
        with serve_person(context) as reader:
            ref, log = await reader.find(params.id)
            if log is not None and log.state.outcome.ended:
                raise UnsupportedOperationError(message="The task has ended. Read it instead.")
            queued = reader.open_session(ref).invocation(int(ref.invocation_id.rpartition("/")[2]))
            invocation = self._services.client.invocation(ref.invocation_id) if log else queued
            async for event in stream_task(reader, ref, invocation, await reader.read(ref, log), ends=TERMINAL):
                yield event

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Return the card for people who are logged in."""
        with serve_person(context) as reader:
            agents = (await self._services.client.agents.describe()).get(reader.agent)
            if agents is None:
                raise InvalidParamsError(message=f"There is no agent {reader.agent[:100]!r}.")
            return extend_card(make_card(reader.agent, reader.base), agents)

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Have the states of a task sent to a URL."""
        with serve_person(context) as reader:
            return await create_config(reader, await find_own_task(reader, params.task_id), params)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return one of the configurations of a task."""
        with serve_person(context) as reader:
            for config in await list_configs(reader, await find_own_task(reader, params.task_id)):
                if config.id == params.id:
                    return config
            raise TaskNotFoundError(message=f"The task has no push configuration {params.id[:100]!r}.")

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the configurations of a task."""
        with serve_person(context) as reader:
            configs = await list_configs(reader, await find_own_task(reader, params.task_id))
            return ListTaskPushNotificationConfigsResponse(configs=configs)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete a configuration of a task. Deleting it again changes nothing."""
        with serve_person(context) as reader:
            await delete_config(reader, await find_own_task(reader, params.task_id), params.id)

    async def _receive(self, params: SendMessageRequest, reader: TaskReader) -> tuple[TaskRef, Invocation, Log | None]:
        """Do what a message asks for. Return the task, its invocation, and its log if the task existed before."""
        message, log = params.message, None
        if has_push := params.configuration.HasField("task_push_notification_config"):
            check_supported()
        if not message.message_id or not message.parts:
            raise InvalidParamsError(message="The message lacks a `message_id` or `parts`.")
        if message.task_id:
            ref, log = await reader.find(message.task_id)
            if message.context_id and message.context_id != ref.session_id:
                raise InvalidParamsError(message="The task belongs to another context than the message names.")
            if has_push and not reader.is_own(ref):
                raise InvalidRequestError(message="Only the owner of a task has push configurations.")
            if log is not None and await self._answer(message, reader, ref, log):
                invocation = self._services.client.invocation(ref.invocation_id)
            elif reader.is_own(ref):
                (ref, invocation), log = await self._send(message, reader, ref if log else None), None
            else:
                raise InvalidRequestError(message="Only the owner of the task can send it messages.")
        else:
            ref, invocation = await self._send(message, reader, None)
        if has_push:
            await create_config(reader, ref, params.configuration.task_push_notification_config)
        return ref, invocation, log

    async def _answer(self, message: Message, reader: TaskReader, ref: TaskRef, log: Log) -> bool:
        """Answer the calls that a task waits for. Return False if the task waits for none."""
        calls, answers = await reader.read_calls(ref, log), parse_answers(message)
        key = make_key(reader.login, message)
        # The message has been received before if its answer counts.
        is_repeated = not answers and any(key in call.receipts for call in log.state.calls.values())
        if log.state.outcome.ended and not answers and not is_repeated:
            raise UnsupportedOperationError(message="The task has ended. Start another one in the same context.")
        if calls and not answers and not is_repeated:
            answers = [make_reply(reader.login, message, log, calls)]
        for answer in answers:
            await send_answer(self._services, reader.login, answer, key, log, [call.view.id for call in calls])
        return is_repeated or bool(answers)

    async def _send(self, message: Message, reader: TaskReader, known: TaskRef | None) -> tuple[TaskRef, Invocation]:
        """Send a message to the person's session, or to a task that is at work."""
        login = reader.login
        check_role(login, "author")
        context = known.session_id if known else message.context_id or make_key(login, message)[:28]
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


class TaskAnswer(AnswerBody):
    """A data part that answers a call."""

    call: str | None = None
    """The approval ID of the call. Needed if the task waits for several."""


def parse_answers(message: Message) -> list[TaskAnswer]:
    """Return the answers in the data parts of a message.

    Raises:
        InvalidParamsError: A data part with an action is not a valid answer.
    """
    answers = []
    for part in message.parts:
        data = read_data(part) if part.WhichOneof("content") == "data" else None
        if isinstance(data, dict) and "action" in data:
            try:
                answers.append(TaskAnswer.model_validate(data))
            except ValidationError as error:
                raise InvalidParamsError(message=f"The answer is invalid: {describe_faults(error)}.") from None
    return answers


async def send_answer(
    services: WebServices, login: Login, answer: TaskAnswer, key: str, log: Log, waiting: Sequence[str]
) -> None:
    """Send one answer.

    Raises:
        InvalidParamsError: The answer is refused, or does not name its call or the call's digest.
    """
    if answer.call is None and len(waiting) != 1:
        raise InvalidParamsError(message=f"The task waits for {len(waiting)} calls. Name one of them as `call`.")
    id = answer.call or waiting[0]
    if not id.startswith(f"{log.invocation_id}/"):
        raise InvalidParamsError(message=f"{id[:200]!r} is not a call of this task.")
    if ACTIONS[answer.action].decides and answer.digest is None and answer.question is None:
        raise InvalidParamsError(message=f"The answer lacks the `digest` of the call, as you saw it. {HOW}")
    (view,) = await services.approvals.answers.view_all(login, [id])
    (outcome,) = await services.calls.answer(login, {id: (view, answer)}, answer, key)
    if isinstance(outcome, RefusedAnswer):
        raise InvalidParamsError(message=outcome.problem.detail)


def make_reply(login: Login, message: Message, log: Log, calls: Sequence[OpenCall]) -> TaskAnswer:
    """Return the answer that a text is to the only question of a task. A text never approves a call.

    Raises:
        InvalidParamsError: The task does not ask this person for a text.
        UnsupportedOperationError: The task waits for somebody else.
    """
    own = [call for call in calls if may_accept(call, login.subject)]
    if not own:
        lines = " ".join(describe_call(call, login.subject) for call in calls)
        raise UnsupportedOperationError(message=f"The task waits for others, so it accepts no message. {lines}")
    questions = [call for call in own if "respond" in call.actions and not call.view.pending.response_schema]
    text = "\n".join(part.text for part in message.parts if part.text)
    if len(calls) != 1 or not questions or not text or questions[0].view.pending.invocation_id != log.invocation_id:
        raise InvalidParamsError(message=f"The task waits for an answer that a text cannot give. {HOW}")
    pending = questions[0].view.pending
    return TaskAnswer(
        action="respond",
        response={"text": text},
        call=pending.approval_id,
        digest=pending.digest,
        question=pending.question,
    )


def make_key(login: Login, message: Message) -> str:
    """Return the key with which a message that its sender sends again counts once."""
    return f"a2a-{digest([login.subject, message.message_id])}"
