"""Ask an agent's model once, with what may change the request and the response around it, and annotate what it said."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import structlog
from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from waystation.activities.annotate import Annotator, Asking, problem_of
from waystation.activities.answer import closing_of, output_of, stored, structured
from waystation.activities.contexts import Contexts
from waystation.activities.definition import definition_digest
from waystation.activities.hooks import CallbackRaised, Hooks, recorded
from waystation.activities.model_choice import Models
from waystation.activities.request import request_of, speakers, tools_for
from waystation.agents.llm_agent import LlmAgent
from waystation.core import summary
from waystation.core.compaction import Compaction
from waystation.core.errors import ModelOverloaded, ModelRefused, NotJson
from waystation.core.event import NO_ACTIONS, EventActions, merge_actions
from waystation.core.model_call import ModelReply
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, encode, plain
from waystation.core.work import Work
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.output_schema import explained
from waystation.tools.places import place_of
from waystation.tools.tool_context import CallbackContext

events = structlog.get_logger("waystation.activities")

MAX_RETRY_DELAY_S = 300.0
MAX_FAILURE_CHARS = 500
MAX_ERROR_CHARS = 4_000
AROUND = "a callback around the model"
NO_CONTENT = "MODEL_RETURNED_NO_CONTENT"

Seen: TypeAlias = Callable[[LlmRequest, str], None]


@dataclass(slots=True)
class ModelTurn:
    """One model call of one agent."""

    agent: LlmAgent
    work: Work
    hooks: Hooks
    asking: Asking
    contexts: Contexts
    models: Models
    demo: object
    on_text: Callable[[str], None] | None
    """What the model calls with pieces of its text."""
    compaction: Compaction | None
    wrap_up: str | None
    """Why it has to answer now; it is then given no tools."""
    seen: Seen

    async def reply(self, entered: ModelReply) -> ModelReply:
        """Return `entered` with what the model said."""
        tools = {} if self.wrap_up else await tools_for(self.agent, self.contexts)
        attempt = activity.info().attempt
        request = await request_of(self.agent, self.work, self.contexts, tools, attempt, self.compaction, self.wrap_up)
        definition = definition_digest(self.agent, request)
        self.seen(request, definition)
        changing = [] if self.wrap_up else speakers(self.agent, tools)
        context = self.contexts.callback("model") if changing or self.hooks.around_models else None
        response = await (
            self._response(request) if context is None else self._changed_response(request, tools, changing, context)
        )
        entered = entered.model_copy(update={"definition": definition, "compaction": self.compaction})
        try:
            content = _content_of(response)
        except _Unusable as error:
            # What callbacks wrote is not kept with it; whether it could be is told besides.
            return unusable(error.code, f"{error}{_lost(context)}", response, entered)
        written = NO_ACTIONS if context is None else recorded(context, AROUND)
        return await self._annotated(response, content, tools, written, entered)

    async def _response(self, request: LlmRequest) -> LlmResponse:
        model = self._model()
        try:
            return _checked(await model.generate(request, on_text=self.on_text))
        except Exception as error:  # noqa: BLE001  # adapters raise anything
            raise self._failure(error) from None

    async def _changed_response(
        self,
        request: LlmRequest,
        tools: dict[str, BaseTool],
        changing: Sequence[BaseTool | BaseToolset],
        context: CallbackContext,
    ) -> LlmResponse:
        """Ask the model with the callbacks around it, and the tools that have a say in the request."""
        from waystation.activities.shaped import ShapedRequest, shaped_response

        model = self._model()
        try:
            shaped = ShapedRequest(request, tools)
            for speaker in changing:
                await self._changed(speaker, context, shaped.editable)
            answer = await self.hooks.before_model(context, shaped.editable)
            if answer is not None:
                return self._plain(answer)
            final = shaped.plain()
        except ValidationError as error:
            raise failed(self.agent.name, "ValidationError", explained(error)) from None
        except (NotJson, TypeError, ValueError) as error:
            # Of what callbacks put into the request; the text names places, not values.
            raise failed(self.agent.name, type(error).__name__, str(error)) from None
        try:
            given = await model.generate(final, on_text=self.on_text)
        except Exception as error:  # noqa: BLE001  # adapters raise anything
            answer = await self.hooks.on_model_error(context, shaped.editable, error)
            if answer is None:
                raise self._failure(error) from None
            given = self._plain(answer)
        if given.content is not None and problem_of(given.content):
            return given  # it has no form in which callbacks could be shown it
        shown = shaped_response(given)
        answer = await self.hooks.after_model(context, shown)
        return _checked(self._plain(shown if answer is None else answer, given))

    def _plain(self, response: LlmResponse, given: LlmResponse | None = None) -> LlmResponse:
        from waystation.activities.shaped import plain_response

        try:
            made = plain_response(response, given)
            if made.content is not None and (problem := problem_of(made.content)):
                raise TypeError(f"A callback gave what is no content for the model's reply: {problem}")
        except (NotJson, TypeError) as error:
            # Of what callbacks put into the response; another attempt would meet the same.
            raise failed(self.agent.name, type(error).__name__, str(error)) from None
        return made

    async def _changed(self, speaker: Any, context: CallbackContext, editable: Any) -> None:
        try:
            await speaker.process_llm_request(tool_context=context, llm_request=editable)
        except Exception as error:
            raise CallbackRaised(f"{type(speaker).__name__}.process_llm_request", error) from error

    def _model(self) -> BaseLlm:
        try:
            return self.models.of(self.agent, self.demo)
        except ModelRefused as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> ApplicationError:
        """Return how Temporal is told that a model raised. Never chain it: histories record causes."""
        match error:
            case ModelRefused():
                return failed(self.agent.name, "ModelFailed", str(error))
            case ModelOverloaded():
                delay = error.retry_after_s
                return failed(self.agent.name, "ModelUnavailable", str(error), retry=True, delay_s=delay)
            case _:
                # The text may quote the conversation.
                text = f"The model raised {type(error).__name__} at {place_of(error)}."
                return failed(self.agent.name, "ModelUnavailable", text, retry=True)

    async def _annotated(
        self,
        response: LlmResponse,
        content: JsonObject | None,
        tools: dict[str, BaseTool],
        written: EventActions,
        entered: ModelReply,
    ) -> ModelReply:
        """Return `entered` with what the model said and wants done; `written` is what callbacks around it did."""
        if content is not None and response.error_code:
            # Cut off by the provider: what it said is kept, what it may not have finished asking for is not done.
            content = {**content, "parts": [p for p in content.get("parts") or () if "functionCall" not in p]}
        contexts = self.contexts.after(None if written is NO_ACTIONS else written)
        annotator = Annotator(self.work, contexts, tools, self.hooks, self.asking)
        content = await annotator.annotate(content) if content else None
        reply = entered.model_copy(
            update={
                "content": content,
                "calls": tuple(annotator.calls),
                "finish_reason": response.finish_reason,
                "error_code": response.error_code,
                "error_message": summary.clip(response.error_message, MAX_ERROR_CHARS)
                if response.error_message
                else None,
                "usage": response.usage,
                "model_version": response.model_version,
                "grounding_metadata": _metadata(response.grounding_metadata),
                "citation_metadata": _metadata(response.citation_metadata),
            }
        )
        state = stored(self.agent, self.work, self.contexts.log, content)
        reply = structured(self.agent, reply, state)
        if annotator.answered:
            closing = closing_of(self.agent, annotator.answer)
            reply = reply.model_copy(update={"closing": closing, "output": output_of(annotator.answer)})
        actions = merge_actions([written, *annotator.written, EventActions(state_delta=state) if state else NO_ACTIONS])
        return reply if actions == NO_ACTIONS else reply.model_copy(update={"actions": actions})


class _Unusable(Exception):
    """What a model said cannot be recorded, or is no content."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


def _content_of(response: LlmResponse) -> JsonObject | None:
    """Return what a model said as it is recorded.

    Raises:
        _Unusable: It cannot be recorded.
    """
    if not response.content:
        return None
    try:
        content: JsonObject = plain(response.content)
    except NotJson as error:
        raise _Unusable("MODEL_REPLY_NOT_JSON", f"The model's reply cannot be recorded: {error}") from None
    if problem := problem_of(content):
        raise _Unusable("MODEL_REPLY_NOT_CONTENT", f"The model's reply is not a content: {problem}")
    if (size := len(encode(content))) > MAX_VALUE_BYTES:
        raise _Unusable("MODEL_REPLY_TOO_LARGE", too_large(size, MAX_VALUE_BYTES))
    return content


def _lost(context: CallbackContext | None) -> str:
    """Return what is wrong with what callbacks around a model wrote, to be told after what is wrong with its reply."""
    try:
        if context is not None:
            recorded(context, AROUND)
    except CallbackRaised as error:
        return f" Besides, {error}"
    return ""


def _checked(response: LlmResponse) -> LlmResponse:
    """Return a response, with an error in it when the model stopped and said nothing. Source: adk-semantics 9.4."""
    if response.error_code or response.finish_reason != "STOP" or _says_something(response.content):
        return response
    parts = response.content.get("parts") if isinstance(response.content, dict) else None
    what = (
        "actionable content (finish_reason=STOP with thought-only or whitespace-only parts)"
        if parts
        else ("content (finish_reason=STOP with empty parts)")
    )
    response.error_code, response.error_message = NO_CONTENT, f"The model returned no {what}."
    return response


def _metadata(value: Any) -> JsonObject | None:
    """Return what an answer rests on as JSON, whatever a model gave it as; None when it has no such form."""
    try:
        found = plain(value) if value else None
    except NotJson:
        return None
    return found if isinstance(found, dict) else None


def _says_something(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        return False
    silent = {"text", "thought", "thoughtSignature"}
    return any(
        not isinstance(part, dict)
        or part.keys() - silent
        or (not part.get("thought") and str(part.get("text") or "").strip())
        for part in content["parts"]
    )


def too_large(size: int, limit: int) -> str:
    return f"The model's reply is {size} bytes; at most {limit} can be recorded."


def failed(agent: str, kind: str, text: str, *, retry: bool = False, delay_s: float | None = None) -> ApplicationError:
    """Log a failed attempt and return how Temporal is told; short, because it is kept."""
    info = activity.info()
    events.warning(
        "model_call.failed",
        agent=agent,
        invocation_id=info.workflow_id,
        error_type=kind,
        problem=text[:MAX_FAILURE_CHARS],
        attempt=info.attempt,
        retry=retry,
    )
    return ApplicationError(
        text[:MAX_FAILURE_CHARS],
        type=kind,
        non_retryable=not retry,
        next_retry_delay=None if delay_s is None else timedelta(seconds=min(delay_s, MAX_RETRY_DELAY_S)),
        # It is logged above; the SDK would add a stack trace, and with it content.
        category=ApplicationErrorCategory.BENIGN,
    )


def unusable(code: str, text: str, response: LlmResponse | ModelReply, entered: ModelReply | None = None) -> ModelReply:
    told = {"error_code": code, "error_message": text, "usage": response.usage, "model_version": response.model_version}
    return (entered or ModelReply()).model_copy(update=told)
