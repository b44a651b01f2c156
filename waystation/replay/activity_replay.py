"""Re-run recorded activities on this machine: a tool call, a model call, or building a prompt.

The workers' code runs in an `ActivityEnvironment` and reads a recording where workers read histories. Nothing is
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
from waystation.agents.registry import Registry, discover
from waystation.core import (
    MODEL,
    Body,
    CallLost,
    CallRef,
    CallReturned,
    CallState,
    Compaction,
    Confirmation,
    Conversation,
    Ended,
    EntryRef,
    Failure,
    InvocationInput,
    JsonObject,
    Log,
    ModelCallInput,
    ModelLost,
    ModelReplied,
    ModelReply,
    ModelReplyRef,
    NoPrompt,
    Position,
    ToolCallInput,
    ToolOutcome,
    WaystationError,
    encode,
    ids,
    summary,
    with_article,
)
from waystation.history import collect_attempts, read_json_content
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.replay.comparison import ModelRerun, ToolRerun, compare_json
from waystation.replay.model_prompt import Agents, Prompt, PromptContext
from waystation.replay.recording import Recording
from waystation.tools.base_tool import BaseTool
from waystation.tools.services import Services
from waystation.tools.toolbox import close_toolsets
from waystation.worker.service_setup import create_lasting_services

OnText: TypeAlias = Callable[[str], None] | None
Ask: TypeAlias = Callable[[Callable[[], BaseLlm], LlmRequest, OnText], Awaitable[LlmResponse]]
"""Calls a model. The model is created only when it is called, so that building a prompt needs no API key."""


class _EditablePrompt(BaseModel):
    """The JSON of a prompt in a file for editing. Fields missing from the file keep their values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = ""
    system_instruction: str | None = Field(default=None, alias="systemInstruction")
    contents: list[JsonObject] = Field(default=[], min_length=1)
    tools: list[JsonObject] = []
    native_tools: list[JsonObject] = Field(default=[], alias="nativeTools")
    config: JsonObject = {}


class NoSuchActivity(WaystationError):
    """The event has no such activity, or the input of the activity is not recorded."""


class NotApproved(WaystationError):
    """A tool call would run that nobody approved."""

    def __init__(self, planned: "PreparedCall") -> None:
        super().__init__(
            f"{planned.what} was never approved: {planned.unapproved}. "
            "To run it on this machine anyway, pass `unapproved=True` or --unapproved."
        )


class ModelNotCalled(WaystationError):
    """A callback answered in place of the model, so the model was not called."""


class InvalidPrompt(WaystationError):
    """The text of an edited prompt is not a valid prompt."""


class _StopBeforeModel(BaseException):
    """Raised instead of calling the model. A BaseException, so that author code does not catch it."""


InputT = TypeVar("InputT", bound=Position)
ResultT = TypeVar("ResultT")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RecordedActivity(Generic[InputT, ResultT]):
    """A model call, or one run of a tool call."""

    log: Log
    """The log just before the activity was scheduled; for a tool call that never ran, the last recorded log."""
    scheduled: Mapping[str, Any] | None
    """The recorded fields of `activity.Info`. None for a tool call that never ran."""
    input: InputT
    result: ResultT | None
    failure: Failure | None
    """Why the activity has no result. None for a tool call that never ran."""


RecordedModelCall: TypeAlias = RecordedActivity[ModelCallInput, ModelReply]
RecordedToolCall: TypeAlias = RecordedActivity[ToolCallInput, ToolOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """The request of a replayed model call."""

    sent: LlmRequest
    definition: str
    """Digest of the agent's declaration. Equal to the recorded one as long as the agent has not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A recorded tool call that is ready to run again."""

    step: RecordedToolCall
    what: str
    """Tool name and arguments on one line."""
    effect: str
    """`read`, `repeatable` or `once`, as the tool declares it now."""
    args: JsonObject
    idempotency_key: str
    unapproved: str | None
    """Why the call has no approval although it needs one; None if it has one or needs none."""

    @property
    def call(self) -> CallState:
        """The state of the call just before it ran."""
        return self.step.log.state.calls[self.step.input.function_call_id]


def find_model_call(recording: Recording, number: int) -> RecordedModelCall:
    """Return model call `number`.

    Raises:
        NoSuchStep: The recording has no such call, or the history of its run is missing.
    """
    unreadable = f"The input of model call {number} of {recording.source!r} cannot be read."
    if step := _find_activity(recording, ModelReplyRef(number), ModelCallInput, unreadable):
        return step
    raise NoSuchActivity(f"The histories of {recording.source!r} hold no model call {number}.")


def find_tool_call(recording: Recording, function_call_id: str) -> RecordedToolCall:
    """Return the last run of a tool call.

    Raises:
        NoSuchStep: The recording has no such call.
    """
    call = recording.log.state.calls.get(function_call_id)
    if call is None:
        known = ", ".join(recording.log.state.calls) or "none"
        raise NoSuchActivity(f"{recording.source!r} has no call {function_call_id!r}; its calls: {known}.")
    unreadable = f"{function_call_id!r} of {recording.source!r} calls an agent, not a tool."
    for run in range(call.run, -1, -1):
        if step := _find_activity(recording, CallRef(function_call_id, run), ToolCallInput, unreadable):
            return step
    return _plan_unscheduled(recording, function_call_id)


def _find_activity(
    recording: Recording, ref: ModelReplyRef | CallRef, input_type: type[InputT], unreadable: str
) -> RecordedActivity[InputT, Any] | None:
    """Return a recorded activity; None if it was never scheduled."""
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
        raise NoSuchActivity(f"The log before {str(ref)!r} of {recording.source!r} is lost with an earlier run.")
    result, failure = _find_result(recording.log, ref)
    return RecordedActivity(log=recording.after(entries), scheduled=info, input=params, result=result, failure=failure)


def _find_result(log: Log, ref: ModelReplyRef | CallRef) -> tuple[Any, Failure | None]:
    """Return the result of an activity, or its failure."""
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


def _plan_unscheduled(recording: Recording, function_call_id: str) -> RecordedToolCall:
    """Return a call without a recorded run, as it would have run at the end of the recording."""
    log = recording.after(len(recording.log.entries))
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
        root=log.state.root,
        run=call.run,
        effect=plan.effect,
        timeout_s=plan.timeout_s,
        retries=plan.retries,
        digest=call.approved_digest,
    )
    return RecordedToolCall(log=log, scheduled=None, input=params, result=call.outcome, failure=None)


def find_model_call_number(recording: Recording, event: int) -> int | None:
    """Return the number of the model call that produced an event; None if no model call did.

    Raises:
        NoSuchEvent: There is no such event.
    """
    body = recording.log.entries[recording.moment(event).entries - 1].body
    if isinstance(body, Ended):  # The last model call failed, which makes no event of its own.
        lost = [entry.body.number for entry in recording.log.entries if isinstance(entry.body, ModelLost)]
        return lost[-1] if lost else None
    return body.number if isinstance(body, ModelReplied) else None


def find_calls(recording: Recording, event: int) -> list[str]:
    """Return the ids of the tool calls that an event makes, requests input for, or responds to, in order."""
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
    """Return input and info of the activity last scheduled under an id. A reset can schedule it twice."""
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
    """Re-runs recorded activities with the present agents. Close it, or use it in `async with`."""

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
            agents: A registry, or the folders of the agents.
            models: Creates models by name.
            services: The artifact, memory and credential services; by default those of a worker in this folder.
            conversations: Reads earlier invocations of the session; without it they are left out.
            on_heartbeat: Called with the details of each heartbeat of a running activity.

        Raises:
            AuthoringError: An agent is invalid; the first error is raised.
        """
        self.registry = load_registry(agents)
        self._models, self._services = models or Models(), services or create_lasting_services()
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
        """Prepare a tool call of an event to run again.

        Args:
            recording: The recording.
            event: Number of the event with the call, or with its response.
            call: The function call id, if the event has several calls.
            args: Arguments to use instead of the recorded ones.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: The event has no such call, or has several.
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
            NotApproved: Nobody approved the call, and `unapproved` is not set.
        """
        step, call = planned.step, planned.call
        if planned.unapproved and not unapproved:
            raise NotApproved(planned)
        remarks = [f"The tool got the recorded idempotency key, {planned.idempotency_key}."]
        if planned.unapproved:
            asks = call.asks or call.call.confirmation or Confirmation()
            confirmation = {"confirmed": True, "hint": asks.hint, "payload": asks.payload}
            step = replace(step, input=step.input.model_copy(update={"confirmation": confirmation}))
            remarks.append(f"Nobody has approved this call: {planned.unapproved}.")
        elif step.scheduled is None:
            remarks.append("The call never ran before. Its context is that of the last recorded moment.")
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
        """Return the present prompt of the model call that produced an event, in the form for editing.

        Callbacks before the model call run; the model is not called.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: No model produced the event.
            NotAsked: A callback answers in place of the model.
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
        """Repeat the model call that produced an event, with its prompt or an edited one.

        Args:
            recording: The recording.
            event: Number of the event with the reply or the error.
            prompt: JSON as `prompt` returns it; missing fields keep their values.
            instruction: Replaces the system instruction.
            model: A model or its name, to call instead of the agent's.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: No model produced the event.
            NotAPrompt: The prompt is not valid.
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
        """Run a tool call once, including its callbacks.

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
        return ToolOutcome.model_validate_json(data)

    async def call_model(
        self, step: RecordedModelCall, *, ask: Ask | None = None
    ) -> tuple[ModelReply, ReplayedRequest | None]:
        """Run a model call including its callbacks. Return the reply, and the request unless no model was called.

        A summary of the conversation and `user:` and `app:` state are taken from the recorded reply.

        Args:
            step: The recorded call.
            ask: Called in place of the model.

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
            search_attributes=False,
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
            reply = ModelReply.model_validate_json(data)
        if not (definitions and models.requests):
            return reply, None
        return reply, ReplayedRequest(sent=models.requests[-1], definition=definitions[-1])

    async def request(self, step: RecordedModelCall) -> ReplayedRequest:
        """Return the request of a model call. Callbacks before the model call run; the model is not called.

        Raises:
            NotAsked: A callback answers in place of the model.
            ApplicationError: The request cannot be built.
        """

        async def stop(_model: Callable[[], BaseLlm], _request: LlmRequest, _on_text: OnText) -> LlmResponse:
            raise _StopBeforeModel

        _, request = await self.call_model(step, ask=stop)
        if request is None:
            raise ModelNotCalled(f"A callback of {step.input.agent!r} answers in place of its model.")
        return request

    async def _find_tool(self, step: RecordedToolCall) -> BaseTool | None:
        """Return the present tool of a call; None if the agent does not have it any more.

        Raises:
            UnknownAgent: The agent does not exist.
        """
        call, log = step.log.state.calls[step.input.function_call_id], step.log
        root, agent = self.registry.find(step.input.root, call.agent)
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
        self.registry.find(step.input.root, step.input.agent)
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

        running = asyncio.ensure_future(environment.run(activity, params))
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

    The tool gets the recorded arguments (as edited by an approver, if they were), state and context, and the same
    idempotency key.

    Args:
        recording: The recording.
        event: Number of the event with the call, or with its response.
        agents: A registry, or the folders of the agents.
        call: The function call id, if the event has several calls.
        args: Arguments to use instead of the recorded ones.
        unapproved: Also run a call that needed an approval and never got one.
        services: The artifact, memory and credential services; by default those of a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchStep: The event has no such call, or has several.
        NotApproved: Nobody approved the call, and `unapproved` is not set.
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
    """Repeat the model call that produced an event, with its prompt or an edited one.

    Args:
        recording: The recording.
        event: Number of the event with the reply or the error.
        agents: A registry, or the folders of the agents.
        prompt: Replaces parts of the prompt, such as `{"contents": […]}`; `ModelRerun.request` shows the names.
        instruction: Replaces the system instruction.
        model: A model or its name, to call instead of the agent's; `demo` for the agent's demo model.
        services: The artifact, memory and credential services; by default those of a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchStep: No model produced the event.
        NotAPrompt: The prompt is not valid.
        UnknownAgent: The agent does not exist.
    """
    edited = None if prompt is None else encode(prompt)
    models, model = (Models(DEMO), None) if model == DEMO else (None, model)
    async with Workshop(agents, models=models, services=services) as workshop:
        return await workshop.rerun_model(recording, event, prompt=edited, instruction=instruction, model=model)


def request_to_json(request: LlmRequest) -> JsonObject:
    """Return a request in the form for editing, without empty fields other than `contents`."""
    fields = _EditablePrompt.model_fields.items()
    values = {field.alias or name: getattr(request, name) for name, field in fields}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value or name == "contents"
    }


def parse_prompt(text: str | bytes) -> JsonObject:
    """Return the fields of an edited prompt, as keyword arguments of `dataclasses.replace`.

    Raises:
        NotAPrompt: The text is not a prompt, such as `{"contents": […]}`.
    """
    try:
        return _EditablePrompt.model_validate_json(text).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = f" at `{'.'.join(map(str, first['loc']))}`" if first["loc"] else ""
        problem = f"The prompt is not valid{place}: {first['msg']}. See what --write-prompt writes."
        raise InvalidPrompt(problem) from None


def load_registry(agents: Agents) -> Registry:
    """Return the registry, or load the agents of folders into one.

    Raises:
        AuthoringError: No agent is valid; the first error is raised.
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
    """Add to a prompt what the agent's present declaration contributes: instruction, tools and settings.

    Raises:
        UnknownAgent: The agent does not exist.
        NoPrompt: The agent has no model now.
        InstructionFailed: The instruction cannot be built.
        ApplicationError: A callback raised.
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
        remarks.append(f"{names} may have changed the prompt and did not run now. Run with --callbacks (`callbacks=`).")
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
        yield "The agent has changed since. Model, instruction, tools and settings are the present ones."
    if same is None:
        why = "gave no reply" if context.call else "was not called"
        yield f"The model {why}, so it is unknown whether the agent has changed."
    if functions:
        yield f"Called again, because it is a function: {', '.join(functions)}."


def _request_changers(agent: LlmAgent, hooks: Hooks, tools: dict[str, BaseTool]) -> list[str]:
    """Return the names of tools and callbacks that may change a finished request."""
    names = (
        [getattr(speaker, "name", None) or type(speaker).__name__ for speaker in request_processors(agent, tools)]
        if tools
        else []
    )
    return [*names, "`before_model_callback`"] if hooks.has("before_model_callback") else names


def _instruction_functions(agent: LlmAgent) -> list[str]:
    """Return the names of instructions that are functions. Their results are not part of the recorded digest."""
    owners = {"global_instruction": agent.root_agent, "instruction": agent}
    return [name for name, owner in owners.items() if callable(getattr(owner, name, ""))]


async def _sent_request(
    recording: Recording, context: PromptContext, workshop: Workshop
) -> tuple[LlmRequest | None, str]:
    """Return the request after callbacks and tools changed it, and a remark about that."""
    if context.call is None:
        return None, "Callbacks did not run, because this model call was never made."
    try:
        sent = (await workshop.request(find_model_call(recording, context.call))).sent
    except ModelNotCalled as error:
        return None, f"Callbacks ran again. {error}"
    return sent, "Callbacks ran again, on this machine. Their original changes are not recorded."


async def _result_or_failure(replayed: Awaitable[T]) -> tuple[T | None, Failure | None]:
    try:
        return await replayed, None
    except ApplicationError as error:
        return None, Failure(kind="error", error_type=error.type or "Error", message=error.message)


def _choose_call(recording: Recording, event: int, call: str | None) -> str:
    """Return the id of the only tool call of an event, or `call` if the event has that call."""
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
    """Return why a call that never ran has no approval; None if it has one or needs none."""
    call = recording.log.state.calls[step.input.function_call_id]
    if step.scheduled is not None or call.gate in ("none", "passed"):
        return None
    if call.answer and call.answer.action == "reject":
        return f"{call.answered_by or 'somebody'} rejected it"
    if call.expired:
        return "nobody answered in time"
    return (
        "it is still pending" if call.gate == "waiting" and not recording.log.state.outcome.ended else "nobody answered"
    )


def _compare_definitions(step: RecordedModelCall, definition: str | None) -> tuple[bool | None, list[str]]:
    """Return whether the agent has changed since the recording, and a remark about that."""
    if definition is None or step.result is None or not step.result.definition:
        return None, []
    if definition == step.result.definition:
        return False, ["The agent has not changed: same model, instruction, tools and settings."]
    return True, ["The agent has changed since. The prompt has its present instruction, tools and settings."]


class _RecordedInputs:
    """The recorded log, conversation and scopes, for activities that normally read them from histories and stores."""

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

    async def read(self, started: InvocationInput) -> JsonObject:
        return (self._reply.scopes if self._reply else None) or {}

    async def compaction(self, *_: object) -> Compaction | None:
        return self._reply.compaction if self._reply else None


class _InterceptedModels(Models):
    """Passes the requests to models through a function, and collects them."""

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
