"""Re-run recorded activities on this machine: tool calls, model calls, and the building of prompts.

The workers' code runs in an `ActivityEnvironment` and reads a recording instead of a history on the server. Nothing is
written to a server or a history. Side effects of agents, tools and callbacks are real.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from waystation.activities import (
    DEMO,
    Contexts,
    ConversationReader,
    Hooks,
    ModelCaller,
    Models,
    ToolCaller,
    build_request,
    close_plugins,
    definition_digest,
    request_processors,
    tools_for,
)
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.toolbox import close_toolsets
from waystation.apps.registry import Registry, discover
from waystation.core import ids, summary
from waystation.core.contract import (
    Compaction,
    Confirmation,
    InvocationInput,
    ModelCallInput,
    ModelReply,
    Position,
    ToolCallInput,
    ToolOutcome,
)
from waystation.core.conversation import Conversation
from waystation.core.errors import NoPrompt, WaystationError
from waystation.core.log import (
    Body,
    CallLost,
    CallRef,
    CallReturned,
    CallState,
    Ended,
    EntryRef,
    Failure,
    Log,
    ModelLost,
    ModelReplied,
    ModelReplyRef,
)
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import MODEL
from waystation.history import collect_attempts, read_json_content
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.replay.comparison import ModelRerun, ToolRerun, compare_json
from waystation.replay.model_prompt import Agents, Prompt, PromptContext
from waystation.replay.recording import Recording
from waystation.tools.base_tool import BaseTool
from waystation.tools.resources import Lifespans
from waystation.tools.services import Services
from waystation.worker.service_setup import create_lasting_services

OnText: TypeAlias = Callable[[str], None] | None
Ask: TypeAlias = Callable[[Callable[[], BaseLlm], LlmRequest, OnText], Awaitable[LlmResponse]]
"""Calls a model. The model is created only when it is called, so that building a prompt does not require an API key."""


class _EditablePrompt(BaseModel):
    """The JSON form of a prompt that users edit in a file. Fields missing from the file keep their values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = ""
    system_instruction: str | None = Field(default=None, alias="systemInstruction")
    contents: list[JsonObject] = Field(default=[], min_length=1)
    tools: list[JsonObject] = []
    native_tools: list[JsonObject] = Field(default=[], alias="nativeTools")
    config: JsonObject = {}


class NoSuchActivity(WaystationError):
    """The event does not identify one activity, or the recording lacks what is needed to re-run that activity.

    Choose an event that belongs to a tool call or a model call, and select one with `--call` if there are several.
    """


class NotApproved(WaystationError):
    """The tool call lacks a required approval, so it does not run unless `unapproved` is set.

    Type the tool's name when asked, or pass `--unapproved`, if its effects are acceptable.
    """

    def __init__(self, planned: "PreparedCall") -> None:
        super().__init__(
            f"{planned.what} was never approved: {planned.unapproved}. "
            "To run it on this machine anyway, pass `unapproved=True` or --unapproved."
        )


class ModelNotCalled(WaystationError):
    """A callback answered in place of the model, so the model was not called.

    Choose another event. The recorded reply is the callback's.
    """


class InvalidPrompt(WaystationError):
    """The edited prompt is not valid.

    Fix the file at the place that the message names.
    """


class _StopBeforeModel(BaseException):
    """Raised instead of calling the model. Derives from BaseException so that user code does not catch it."""


InputT = TypeVar("InputT", bound=Position)
ResultT = TypeVar("ResultT")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RecordedActivity(Generic[InputT, ResultT]):
    """A recorded model call, or one run of a recorded tool call."""

    log: Log
    """The log just before the activity was scheduled, or the last recorded log if it is a tool call that never ran."""
    scheduled: Mapping[str, Any] | None
    """The recorded fields of `activity.Info`, or None for a tool call that never ran."""
    input: InputT
    result: ResultT | None
    failure: Failure | None
    """The recorded failure, or None if the activity did not fail."""


RecordedModelCall: TypeAlias = RecordedActivity[ModelCallInput, ModelReply]
RecordedToolCall: TypeAlias = RecordedActivity[ToolCallInput, ToolOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """The request built for a replayed model call."""

    sent: LlmRequest
    definition: str
    """Digest of the agent's declaration. It equals the recorded digest as long as the agent has not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A recorded tool call that is ready to run again."""

    step: RecordedToolCall
    what: str
    """The tool's name and arguments on one line."""
    effect: str
    """The effect that the tool currently declares: `read`, `repeatable` or `once`. If the agent no longer has the tool,
    the recorded effect."""
    args: JsonObject
    idempotency_key: str
    unapproved: str | None
    """Why the call lacks the approval that it requires, or None if it does not lack an approval."""

    @property
    def call(self) -> CallState:
        """The state of the call just before it ran."""
        return self.step.log.state.calls[self.step.input.function_call_id]


def find_model_call(recording: Recording, number: int) -> RecordedModelCall:
    """Find a recorded model call by its number in the invocation.

    Raises:
        NoSuchActivity: The recording has no such call, its input cannot be read, or an earlier run is missing.
    """
    unreadable = f"The input of model call {number} of {recording.source!r} cannot be read."
    if step := _find_activity(recording, ModelReplyRef(number), ModelCallInput, unreadable):
        return step
    raise NoSuchActivity(f"The histories of {recording.source!r} contain no model call {number}.")


def find_tool_call(recording: Recording, function_call_id: str) -> RecordedToolCall:
    """Find the last run of a recorded tool call. If the call never ran, return the run that would come next.

    The input of a local activity is not recorded, so it is created again.

    Raises:
        NoSuchActivity: The recording has no such call, the call has no tool to run, or an earlier run is missing.
    """
    call = recording.log.state.calls.get(function_call_id)
    if call is None:
        known = ", ".join(recording.log.state.calls) or "none"
        raise NoSuchActivity(f"{recording.source!r} has no call {function_call_id!r}; its calls: {known}.")
    if call.call.target:
        raise NoSuchActivity(
            f"{function_call_id!r} of {recording.source!r} runs the {call.call.target.kind} {call.call.target.name!r}, "
            "which this machine may not have. There is no tool to run."
        )
    unreadable = f"{function_call_id!r} of {recording.source!r} calls an agent, not a tool."
    for run in range(call.run, -1, -1):
        if step := _find_activity(recording, CallRef(function_call_id, run), ToolCallInput, unreadable):
            return step
    return _plan_call(recording, function_call_id)


def _find_activity(
    recording: Recording, ref: ModelReplyRef | CallRef, input_type: type[InputT], unreadable: str
) -> RecordedActivity[InputT, Any] | None:
    """Return a recorded activity, or None if it was never scheduled.

    Raises:
        NoSuchActivity: The input is not of `input_type`, or an earlier run is missing.
    """
    scheduled = _find_scheduled(recording, str(ref))
    if scheduled is None:
        return None
    data, info = scheduled
    try:
        params = input_type.model_validate_json(data)
    except ValidationError:
        raise NoSuchActivity(unreadable) from None
    entries = params.at + len(params.new) - recording.log.entries_before
    if entries < 0:
        raise NoSuchActivity(f"{recording.source!r} lacks the log before {str(ref)!r}: an earlier run is missing.")
    result, failure = _find_result(recording.log, ref)
    return RecordedActivity(log=recording.after(entries), scheduled=info, input=params, result=result, failure=failure)


def _find_result(log: Log, ref: ModelReplyRef | CallRef) -> tuple[Any, Failure | None]:
    """Return the result and the failure of an activity. At least one is None; both are if no end was recorded."""
    for entry in log.entries:
        match entry.body:
            case ModelReplied(number, result) if ModelReplyRef(number) == ref:
                return result, None
            case CallReturned(result, run) if CallRef(result.function_call_id, run) == ref:
                return result, None
            case ModelLost(number, failure) if ModelReplyRef(number) == ref:
                return None, failure
            case CallLost(id, failure, run) if CallRef(id, run) == ref:
                return None, failure
    return None, None


def _plan_call(recording: Recording, function_call_id: str) -> RecordedToolCall:
    """Return a call that ran as a local activity, with its input, or a call that never ran, with the input that it
    would have had at the end of the recording.

    Raises:
        NoSuchActivity: The call has no tool to run.
    """
    bodies = [entry.body for entry in recording.log.entries]
    returned = (
        number
        for number, body in enumerate(bodies)
        if isinstance(body, CallReturned) and body.outcome.function_call_id == function_call_id
    )
    ran = next(returned, None)
    log = recording.after(len(bodies) if ran is None else ran)
    call = log.state.calls[function_call_id]
    if call.call.kind in ("agent", "answered"):
        what = "calls an agent" if call.call.kind == "agent" else "was answered when the model's reply was read"
        raise NoSuchActivity(f"{function_call_id!r} of {recording.source!r} {what}. There is no tool to run.")
    plan = call.call
    params = ToolCallInput(
        at=log.length,
        new=(),
        function_call_id=call.id,
        confirmation=call.tool_confirmation(),
        run=call.run,
        effect=plan.effect,
        timeout_s=plan.timeout_s,
        retries=plan.retries,
        digest=call.approved_digest,
    )
    result, failure = _find_result(recording.log, CallRef(call.id, call.run))
    return RecordedToolCall(
        log=log, scheduled=None if ran is None else {}, input=params, result=result, failure=failure
    )


def find_model_call_number(recording: Recording, event: int) -> int | None:
    """Return the number of the model call that produced an event, or None if no model call did.

    For the event that ends the invocation, return the last model call that failed, if any: failed calls have no events.

    Raises:
        NoSuchEvent: There is no such event.
    """
    body = recording.log.entries[recording.moment(event).entries - 1].body
    if isinstance(body, Ended):  # A failed model call ends the invocation without producing its own event.
        lost = [entry.body.number for entry in recording.log.entries if isinstance(entry.body, ModelLost)]
        return lost[-1] if lost else None
    return body.number if isinstance(body, ModelReplied) else None


def find_calls(recording: Recording, event: int) -> list[str]:
    """Return the IDs, in order, of the tool calls that an event makes, requests input for, or responds to."""
    source = recording.moment(event).event
    content = source.content if source else None
    call_ids = dict.fromkeys(
        ids.requesting_call(str(call.get("id")))
        for part in (content or {}).get("parts") or ()
        for call in (part.get("functionCall"), part.get("functionResponse"))
        if call
    )
    return [id for id in call_ids if id in recording.log.state.calls]


def _find_scheduled(recording: Recording, activity_id: str) -> tuple[bytes, Mapping[str, Any]] | None:
    """Return the input and info of the activity last scheduled under an ID, or None if there is none.

    After a reset, several activities can have the same ID.
    """
    for history in reversed(recording.histories):
        for attempts in reversed(collect_attempts([history])):
            scheduled = history.events[attempts.event_id - 1].activity_task_scheduled_event_attributes
            if scheduled.activity_id == activity_id:
                started = history.events[0].workflow_execution_started_event_attributes
                return read_json_content(scheduled.input.payloads), {
                    "workflow_run_id": started.original_execution_run_id,
                    "task_queue": scheduled.task_queue.name,
                    "heartbeat_timeout": scheduled.heartbeat_timeout.ToTimedelta() or None,
                    "attempt": attempts.count or 1,
                }
    return None


class Workshop:
    """Re-runs recorded activities with the current agents. Use it in `async with`, which closes toolsets and models."""

    def __init__(
        self,
        agents: Agents,
        *,
        models: Models | None = None,
        services: Services | None = None,
        conversations: ConversationReader | None = None,
        on_heartbeat: Callable[..., None] = lambda *_: None,
    ) -> None:
        """Load the agents.

        Args:
            agents: A registry, or the folders that contain the agents.
            models: Creates the models of agents. Defaults to those that the agents declare.
            services: The artifact, memory and credential services. Defaults to those of a worker in this folder.
            conversations: Reads earlier invocations of the session. Without it, they are left out of prompts.
            on_heartbeat: Called with the details of each heartbeat of a running activity.

        Raises:
            AuthoringError: All agents have errors. The first error is raised.
        """
        self.registry = load_registry(agents)
        self._models, self._lifespans = models or Models(), Lifespans(self.registry.list_lifespans)
        self._services = replace(services or create_lasting_services(), lifespans=self._lifespans)
        self._conversations, self._on_heartbeat = conversations, on_heartbeat

    async def __aenter__(self) -> "Workshop":
        return self

    async def __aexit__(self, *_: object) -> None:
        roots = self.registry.roots.values()
        await close_toolsets([root.agent for root in roots])
        await close_plugins([plugin for root in roots for plugin in root.plugins])
        await self._models.close()

    async def planned(
        self, recording: Recording, event: int, *, call: str | None = None, args: JsonObject | None = None
    ) -> PreparedCall:
        """Prepare to run a tool call of an event again.

        Args:
            recording: The recording.
            event: Number of the event that contains the call or its response.
            call: The function call ID. Required if the event has several calls.
            args: Arguments to use instead of the recorded ones.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchActivity: The event has no such call, or it has several and `call` is not set.
            UnknownAgent: The agent does not exist.
        """
        step = find_tool_call(recording, _choose_call(recording, event, call))
        recorded = step.log.state.calls[step.input.function_call_id]
        tool = await self._find_tool(step)
        confirmed = recorded.call.confirmation is not None
        args = recorded.args if args is None else args
        return PreparedCall(
            step=step,
            what=summary.call(recorded.name, args),
            effect=tool.effect_when(confirmed=confirmed) if tool else step.input.effect,
            args=args,
            idempotency_key=ids.idempotency_key(step.log.invocation_id, recorded.id),
            unapproved=_explain_missing_approval(recording, step),
        )

    async def rerun_tool(self, recording: Recording, planned: PreparedCall, *, unapproved: bool = False) -> ToolRerun:
        """Run a prepared tool call.

        Raises:
            NotApproved: The call lacks a required approval, and `unapproved` is not set.
        """
        step, call = planned.step, planned.call
        if planned.unapproved and not unapproved:
            raise NotApproved(planned)
        remarks = [f"The tool received the recorded idempotency key, {planned.idempotency_key}."]
        if planned.unapproved:
            asks = call.asks or (call.call.confirmation or Confirmation()).resolved(call.name)
            confirmation = {"confirmed": True, "hint": asks.hint, "payload": asks.payload}
            step = replace(step, input=step.input.model_copy(update={"confirmation": confirmation}))
            remarks.append(f"No one has approved this call: {planned.unapproved}.")
        elif step.scheduled is None:
            remarks.append("The call never ran before, so its context comes from the last recorded moment.")
        args = None if planned.args == call.args else planned.args
        now, failure = await _result_or_failure(self.call_tool(step, args=args))
        return ToolRerun(
            source=recording.source,
            what=f"{planned.what}, call {call.id} of {recording.id}",
            agent=call.agent,
            tool=call.name,
            function_call_id=call.id,
            args=planned.args,
            idempotency_key=planned.idempotency_key,
            recorded=step.result,
            recorded_failure=step.failure,
            now=now,
            failure=failure,
            remarks=[*remarks, *self._session_remarks(recording)],
        )

    async def prompt(self, recording: Recording, event: int) -> JsonObject:
        """Return the prompt that the model call behind an event would send now, in the form for editing.

        The `before_model` callbacks run, but the model is not called.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchActivity: No model produced the event.
            ModelNotCalled: A callback answers in place of the model.
            UnknownAgent: The agent does not exist.
            ApplicationError: The request cannot be built.
        """
        return request_to_json((await self.request(self._model_step(recording, event))).sent)

    async def rerun_model(
        self,
        recording: Recording,
        event: int,
        *,
        prompt: str | bytes | None = None,
        instruction: str | None = None,
        model: str | BaseLlm | None = None,
    ) -> ModelRerun:
        """Repeat the model call that produced an event, optionally with an edited prompt.

        Args:
            recording: The recording.
            event: Number of the event that contains the reply or the error.
            prompt: JSON in the form that `prompt` returns. Missing fields keep their values.
            instruction: Replaces the system instruction, including one in `prompt`.
            model: The model to call instead of the agent's model, as an object or by name.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchActivity: No model produced the event.
            InvalidPrompt: The prompt is not valid.
            UnknownAgent: The agent does not exist.
        """
        step = self._model_step(recording, event)
        replaced = {"system_instruction": instruction, "model": model if isinstance(model, str) else None}
        edits = {} if prompt is None else parse_prompt(prompt)
        edits |= {name: value for name, value in replaced.items() if value is not None}
        requests: list[tuple[LlmRequest, LlmRequest]] = []

        async def ask(own: Callable[[], BaseLlm], request: LlmRequest, on_text: OnText) -> LlmResponse:
            sent = replace(request, **edits)
            requests.append((request, sent))
            if isinstance(model, BaseLlm):
                return await model.generate(sent, on_text=on_text)
            other = own() if sent.model == request.model else self._models.named(sent.model, step.input.agent)
            return await other.generate(sent, on_text=on_text)

        call, failure = await _result_or_failure(self.call_model(step, ask=ask))
        reply, request = call or (None, None)
        changed, remarks = _compare_definitions(step, request.definition if request else None)
        unedited, sent = map(request_to_json, requests[-1]) if requests else (None, None)
        if sent is None and failure is None:
            remarks.append("A callback answered in place of the model, which was not called.")
        return ModelRerun(
            source=recording.source,
            what=f"model call {step.input.number} of {step.input.agent}, of {recording.id}",
            agent=step.input.agent,
            number=step.input.number,
            request=sent,
            edited=list(compare_json(unedited, sent)),
            changed=changed,
            recorded=step.result,
            recorded_failure=step.failure,
            now=reply,
            failure=failure,
            remarks=[*remarks, *self._session_remarks(recording)],
        )

    async def call_tool(self, step: RecordedToolCall, *, args: JsonObject | None = None) -> ToolOutcome:
        """Run a tool call once, with its callbacks.

        Args:
            step: The recorded call.
            args: Arguments to use instead of the recorded ones.

        Raises:
            ApplicationError: The activity failed.
        """
        call = step.log.state.calls[step.input.function_call_id]
        params = step.input.model_copy(update={"retries": 0})  # report a failure instead of retrying
        log = step.log
        if args is not None:
            log = copy.copy(log)
            log.state.calls = {**log.state.calls, call.id: replace(call, args=args)}
            params = params.model_copy(update={"digest": log.state.calls[call.id].approved_digest})
        inputs = _RecordedInputs(log)
        caller = ToolCaller(self.registry, inputs, self._conversations or inputs, services=self._services)
        data = await self._run(log, step.scheduled, f"{call.agent}.{call.name}", caller.call, params)
        return ToolOutcome.model_validate_json(data).model_copy(update={"function_call_id": call.id})

    async def call_model(
        self, step: RecordedModelCall, *, ask: Ask | None = None
    ) -> tuple[ModelReply, ReplayedRequest | None]:
        """Run a model call with its callbacks. Return the reply and the request.

        The request is None if the model was not called. The conversation summary, if there is one, and `user:` and
        `app:` state are taken from the recorded reply.

        Args:
            step: The recorded call.
            ask: Called in place of the model. By default, the model is called.

        Raises:
            ApplicationError: The activity failed.
        """
        definitions: list[str] = []
        models = _InterceptedModels(self._models, ask)
        inputs = _RecordedInputs(step.log, step.result)
        caller = ModelCaller(
            self.registry,
            inputs,
            self._conversations or inputs,
            models,
            services=self._services,
            scopes=inputs,
            compactor=inputs,
            seen=lambda _, definition: definitions.append(definition),
        )
        try:
            data = await self._run(step.log, step.scheduled, MODEL.name, caller.call, step.input)
        except _StopBeforeModel:
            reply = ModelReply()
        else:
            reply = ModelReply.model_validate_json(data).restored()
        if not (definitions and models.requests):
            return reply, None
        return reply, ReplayedRequest(sent=models.requests[-1], definition=definitions[-1])

    async def request(self, step: RecordedModelCall) -> ReplayedRequest:
        """Return the request of a model call. The `before_model` callbacks run, but the model is not called.

        Raises:
            ModelNotCalled: A callback answers in place of the model.
            ApplicationError: The request cannot be built.
        """

        async def stop(_model: Callable[[], BaseLlm], _request: LlmRequest, _on_text: OnText) -> LlmResponse:
            raise _StopBeforeModel

        _, request = await self.call_model(step, ask=stop)
        if request is None:
            raise ModelNotCalled(f"A callback of {step.input.agent!r} answers in place of its model.")
        return request

    async def _find_tool(self, step: RecordedToolCall) -> BaseTool | None:
        """Return the tool that a call would use now, or None if the agent no longer has it.

        Raises:
            UnknownAgent: The agent does not exist.
        """
        call, log = step.log.state.calls[step.input.function_call_id], step.log
        root, agent = self.registry.find(log.state.root, call.agent)
        if not isinstance(agent, LlmAgent):
            return None
        contexts = Contexts.of(
            Conversation(log), log.state.runs[call.turn], self._services, scopes_read=root.state_scopes
        )
        return (await tools_for(agent, contexts, wanted=call.name)).get(call.name)

    def _model_step(self, recording: Recording, event: int) -> RecordedModelCall:
        number = find_model_call_number(recording, event)
        if number is None:
            raise NoSuchActivity(
                f"No model produced event {event} of {recording.source!r}. `waystation events` lists the events."
            )
        step = find_model_call(recording, number)
        self.registry.find(step.input.root or step.input.agent, step.input.agent)
        return step

    def _session_remarks(self, recording: Recording) -> list[str]:
        started = recording.log.state.input
        if started is None or started.session is None or self._conversations is not None:
            return []
        return ["Earlier invocations of the session were not read, so the model sees only this one."]

    async def _run(
        self,
        log: Log,
        scheduled: Mapping[str, Any] | None,
        name: str,
        activity: Callable[[Any], Awaitable[bytes]],
        params: Position,
    ) -> bytes:
        environment = ActivityEnvironment()
        environment.on_heartbeat = self._on_heartbeat
        environment.info = replace(
            environment.info, activity_type=name, workflow_id=log.invocation_id, **(scheduled or {})
        )

        async with self._lifespans.opened():
            return await self._finish(environment, environment.run(activity, params))

    async def _finish(self, environment: ActivityEnvironment, run: Awaitable[bytes]) -> bytes:
        running = asyncio.ensure_future(run)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            environment.cancel()  # like a worker: gives the tool time to clean up
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()
            raise


async def rerun_tool(
    recording: Recording,
    event: int,
    *,
    agents: Agents,
    call: str | None = None,
    args: JsonObject | None = None,
    unapproved: bool = False,
    services: Services | None = None,
) -> ToolRerun:
    """Run the tool call of an event again, on this machine. Its side effects are real.

    The tool receives the recorded arguments (including an approver's edits) unless `args` replaces them, the recorded
    state and context, and the same idempotency key.

    Args:
        recording: The recording.
        event: Number of the event that contains the call or its response.
        agents: A registry, or the folders that contain the agents.
        call: The function call ID. Required if the event has several calls.
        args: Arguments to use instead of the recorded ones.
        unapproved: Run the call even if it lacks a required approval.
        services: The artifact, memory and credential services. Defaults to those of a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchActivity: The event has no such call, or it has several and `call` is not set.
        NotApproved: The call lacks a required approval, and `unapproved` is not set.
        UnknownAgent: The agent does not exist.
    """
    async with Workshop(agents, services=services) as workshop:
        planned = await workshop.planned(recording, event, call=call, args=args)
        return await workshop.rerun_tool(recording, planned, unapproved=unapproved)


async def rerun_model(
    recording: Recording,
    event: int,
    *,
    agents: Agents,
    prompt: JsonObject | None = None,
    instruction: str | None = None,
    model: str | BaseLlm | None = None,
    services: Services | None = None,
) -> ModelRerun:
    """Repeat the model call that produced an event, optionally with an edited prompt.

    Args:
        recording: The recording.
        event: Number of the event that contains the reply or the error.
        agents: A registry, or the folders that contain the agents.
        prompt: Fields of the prompt to replace, such as `{"contents": […]}`; `ModelRerun.request` shows their names.
        instruction: Replaces the system instruction.
        model: The model to call instead of the agent's, as an object or by name. `demo` selects the agent's demo model.
        services: The artifact, memory and credential services. Defaults to those of a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchActivity: No model produced the event.
        InvalidPrompt: The prompt is not valid.
        UnknownAgent: The agent does not exist.
    """
    edited = None if prompt is None else encode(prompt)
    models, model = (Models(DEMO), None) if model == DEMO else (None, model)
    async with Workshop(agents, models=models, services=services) as workshop:
        return await workshop.rerun_model(recording, event, prompt=edited, instruction=instruction, model=model)


def request_to_json(request: LlmRequest) -> JsonObject:
    """Return a request in the JSON form that users edit. Empty fields are left out, except for `contents`."""
    fields = _EditablePrompt.model_fields.items()
    values = {field.alias or name: getattr(request, name) for name, field in fields}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value or name == "contents"
    }


def parse_prompt(text: str | bytes) -> JsonObject:
    """Return the fields of an edited prompt as keyword arguments for `dataclasses.replace`.

    Raises:
        InvalidPrompt: The text is not JSON in the form of a prompt, such as `{"contents": […]}`.
    """
    try:
        return _EditablePrompt.model_validate_json(text).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = f" at `{'.'.join(map(str, first['loc']))}`" if first["loc"] else ""
        problem = f"The prompt is not valid{place}: {first['msg']}. See what --write-prompt writes."
        raise InvalidPrompt(problem) from None


def load_registry(agents: Agents) -> Registry:
    """Return a registry unchanged, or load the agents from folders into a new registry.

    Agents with errors are left out.

    Raises:
        AuthoringError: All agents have errors. The first error is raised.
    """
    if isinstance(agents, Registry):
        return agents
    folders: Sequence[Path | str] = [agents] if isinstance(agents, Path | str) else agents
    registry, problems = discover([Path(folder) for folder in folders])
    if problems and not registry.roots:
        raise problems[0].error
    return registry


async def add_declaration(
    prompt: Prompt,
    recording: Recording,
    context: PromptContext,
    conversation: Conversation,
    agents: Agents,
    *,
    callbacks: bool = False,
    services: Services | None = None,
) -> Prompt:
    """Add the instruction, tools and settings from the agent's current declaration to a prompt.

    Raises:
        UnknownAgent: The agent does not exist.
        NoPrompt: The agent no longer has a model.
        InstructionFailed: The instruction cannot be built.
        ApplicationError: A callback raised an exception.
    """
    registry = load_registry(agents)
    root, agent = registry.find(context.log.state.root, context.work.agent)
    if not isinstance(agent, LlmAgent):
        raise NoPrompt(f"Agent {agent.name!r} is {with_article(agent)} now; it has no model.")
    services = services or create_lasting_services()
    contexts = Contexts.of(
        conversation,
        context.work,
        services,
        str(ModelReplyRef(context.call or context.log.state.steps + 1)),
        scopes_read=root.state_scopes,
    )
    request, tools = await ActivityEnvironment().run(_declared_request, agent, context, contexts)
    recorded = context.reply.definition if context.reply else ""
    same = definition_digest(agent, request) == recorded if recorded else None
    functions = _instruction_functions(agent)
    remarks = [*prompt.remarks, *_remarks(context, functions, same=same)]
    changing = _request_changers(agent, Hooks(agent, root.plugins_of(agent)), tools)
    if changing and callbacks:
        inputs = _RecordedInputs(context.log, conversation=conversation)
        workshop = Workshop(registry, services=services, conversations=inputs)
        sent, remark = await _sent_request(recording, context, workshop)
        request = sent or request
        remarks.append(remark)
    elif changing:
        names = ", ".join(changing)
        remarks.append(f"{names} may have changed the prompt but did not run. Run with --callbacks (`callbacks=`).")
    certain = not (prompt.remarks or changing or functions)
    return replace(
        prompt,
        contents=request.contents,
        model=request.model,
        instruction=request.system_instruction,
        tools=request.tools,
        native_tools=request.native_tools,
        config=request.config,
        whole=True,
        exact=(True if certain else None) if same else same,
        remarks=remarks,
    )


async def _declared_request(
    agent: LlmAgent, context: PromptContext, contexts: Contexts
) -> tuple[LlmRequest, dict[str, BaseTool]]:
    reply = context.reply
    contexts = contexts.over(reply.scopes if reply else None)
    if reply and reply.before:
        contexts = contexts.after(reply.before.actions)
    tools = {} if context.wrap_up else await tools_for(agent, contexts)
    compaction, attempt = (reply.compaction, reply.attempt) if reply else (None, 1)
    return await build_request(agent, contexts, tools, attempt or 1, compaction, context.wrap_up), tools


def _remarks(context: PromptContext, functions: Sequence[str], *, same: bool | None) -> Iterator[str]:
    if same is False:
        yield "The agent has changed since then. This is its current model, instruction, tools and settings."
    if same is None:
        why = "gave no reply" if context.call else "was not called"
        yield f"The model {why}, so it is unknown whether the agent has changed."
    if functions:
        yield f"Called again, because it is a function: {', '.join(functions)}."


def _request_changers(agent: LlmAgent, hooks: Hooks, tools: dict[str, BaseTool]) -> list[str]:
    """Return the names of the tools and callbacks that may change a request after it was built."""
    names = (
        [getattr(speaker, "name", None) or type(speaker).__name__ for speaker in request_processors(agent, tools)]
        if tools
        else []
    )
    return [*names, "`before_model_callback`"] if hooks.has("before_model_callback") else names


def _instruction_functions(agent: LlmAgent) -> list[str]:
    """Return the agent's instruction fields that are functions. The recorded digest does not cover their results."""
    owners = {"global_instruction": agent.root_agent, "instruction": agent}
    return [name for name, owner in owners.items() if callable(getattr(owner, name, ""))]


async def _sent_request(
    recording: Recording, context: PromptContext, workshop: Workshop
) -> tuple[LlmRequest | None, str]:
    """Return the request as changed by callbacks and tools, and a remark about those changes.

    The request is None if the model call was never made, or if a callback now answers in place of the model.
    """
    if context.call is None:
        return None, "Callbacks did not run, because this model call was never made."
    try:
        sent = (await workshop.request(find_model_call(recording, context.call))).sent
    except ModelNotCalled as error:
        return None, f"Callbacks ran again. {error}"
    return sent, "Callbacks ran again on this machine, because their original changes were not recorded."


async def _result_or_failure(replayed: Awaitable[T]) -> tuple[T | None, Failure | None]:
    try:
        return await replayed, None
    except ApplicationError as error:
        return None, Failure(kind="error", error_type=error.type or "Error", message=error.message)


def _choose_call(recording: Recording, event: int, call: str | None) -> str:
    """Return `call` if the event has that call, or by default the ID of the event's only tool call.

    Raises:
        NoSuchActivity: The event has no such call, or it has several and `call` is None.
    """
    calls = find_calls(recording, event)
    where = f"Event {event} of {recording.source!r}"
    if call is not None and call not in calls:
        raise NoSuchActivity(f"{where} has no call {call!r}; it has: {', '.join(calls) or 'none'}.")
    if not calls:
        raise NoSuchActivity(f"{where} has no tool call. `waystation events` lists the events.")
    if call is None and len(calls) > 1:
        raise NoSuchActivity(f"{where} has several calls: {', '.join(calls)}. Choose one with `call=` or --call.")
    return call or calls[0]


def _explain_missing_approval(recording: Recording, step: RecordedToolCall) -> str | None:
    """Return why a call that never ran lacks a required approval, or None if it does not lack one."""
    call = recording.log.state.calls[step.input.function_call_id]
    if step.scheduled is not None or call.gate in ("none", "passed"):
        return None
    if call.answer and call.answer.action == "reject":
        return f"{call.answered_by or 'someone'} rejected it"
    if call.expired:
        return "no one answered in time"
    return (
        "it is still pending" if call.gate == "waiting" and not recording.log.state.outcome.ended else "no one answered"
    )


def _compare_definitions(step: RecordedModelCall, definition: str | None) -> tuple[bool | None, list[str]]:
    """Return whether the agent has changed since the recording, and a remark. If unknown, return None and no remark."""
    if definition is None or step.result is None or not step.result.definition:
        return None, []
    if definition == step.result.definition:
        return False, ["The agent has not changed: same model, instruction, tools and settings."]
    return True, ["The agent has changed since then. The prompt has its current instruction, tools and settings."]


class _RecordedInputs:
    """Provides the recorded log, conversation and scopes, which activities normally read from histories and stores."""

    def __init__(self, log: Log, reply: ModelReply | None = None, conversation: Conversation | None = None) -> None:
        self._log, self._reply, self._conversation = log, reply, conversation

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        return self._log

    async def keep(self, data: bytes) -> None:
        pass

    def put(self, run_id: str, ref: EntryRef, body: Body, size: int) -> None:
        pass

    async def conversation(self, log: Log) -> Conversation:
        before = self._conversation
        return Conversation(log, before.earlier, before.count) if before else Conversation(log)

    async def check_start(self, invocation_id: str, started: InvocationInput) -> None:
        pass

    async def read(self, started: InvocationInput) -> JsonObject:
        return (self._reply.scopes if self._reply else None) or {}

    async def compaction(self, *_: object) -> Compaction | None:
        return self._reply.compaction if self._reply else None


class _InterceptedModels(Models):
    """Collects the requests to models, and passes each to the `ask` function or, if there is none, to the model."""

    def __init__(self, models: Models, ask: Ask | None) -> None:
        super().__init__()
        self._intercepted, self.ask = models, ask
        self.requests: list[LlmRequest] = []

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        return _InterceptedModel(lambda: self._intercepted.of(agent, demo), self)


class _InterceptedModel(BaseLlm):
    def __init__(self, model: Callable[[], BaseLlm], models: _InterceptedModels) -> None:
        self._model, self._models = model, models

    async def generate(self, request: LlmRequest, *, on_text: OnText = None) -> LlmResponse:
        self._models.requests.append(request)
        ask = self._models.ask
        return await (ask(self._model, request, on_text) if ask else self._model().generate(request, on_text=on_text))
