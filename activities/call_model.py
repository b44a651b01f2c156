"""Call an agent's model with the conversation so far, and annotate what it wants done; enter and leave agents."""

import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import structlog
from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from activities.annotate import Annotator, Asking, problem_of
from activities.answer import closing_of, output_of, stored, structured
from activities.around_agent import Around, UserMessageChanged
from activities.compaction import Compactor, Compacts
from activities.contexts import Contexts
from activities.definition import definition_digest
from activities.fork import overridden
from activities.heartbeat import beating
from activities.hooks import CallbackRaised, Hooks, recorded
from activities.instructions import InstructionFailed
from activities.models.choice import Models
from activities.partials import telling
from activities.request import model_name, request_of, speakers, tools_for
from activities.scopes import ReadsScopes
from activities.sessions import Conversations
from activities.view import Logs
from tools.base import BaseTool
from tools.context import CallbackContext
from tools.output_schema import explained
from tools.services import NO_SERVICES, Services
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry, Root
from waystation.core import ids, summary
from waystation.core.compaction import Compaction
from waystation.core.entry import ModelReplied
from waystation.core.errors import (
    ForeignHistory,
    ModelOverloaded,
    ModelRefused,
    NotJson,
    ScopeNameTooLong,
    StoreFailed,
    UnknownAgent,
)
from waystation.core.event import NO_ACTIONS, EventActions, merge_actions
from waystation.core.log import Log
from waystation.core.model_call import ModelCallInput, ModelReply
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, encode, plain
from waystation.core.work import Work
from waystation.models import BaseLlm, LlmRequest, LlmResponse

events = structlog.get_logger("waystation.activities")

MAX_RETRY_DELAY_S = 300.0
MAX_FAILURE_CHARS = 500
MAX_ERROR_CHARS = 4_000
MAX_REPLY_BYTES = 2_000_000
"""Content and annotations together. The server fails, and then repeats, an activity whose result is over 2 MiB."""
NO_CONTENT = "MODEL_RETURNED_NO_CONTENT"

Seen: TypeAlias = Callable[[LlmRequest, str], None]


class ModelCaller:
    """Carries out the activity `call_model`."""

    def __init__(
        self,
        registry: Registry,
        views: Logs,
        sessions: Conversations,
        models: Models,
        *,
        search_attributes: bool,
        services: Services = NO_SERVICES,
        scopes: ReadsScopes | None = None,
        notify: Sequence[str] = (),
        compactor: Compacts | None = None,
        seen: Seen = lambda _request, _definition: None,
    ) -> None:
        """`notify` names the channels that are told of whatever waits, unless a policy names others.

        `seen` is told of each request as the agent's declaration makes it, with the digest of that.
        """
        self._registry, self._views, self._models, self._sessions = registry, views, models, sessions
        self._search_attributes, self._services, self._scopes = search_attributes, services, scopes
        self._notify = tuple(notify)
        self._compactor, self._seen = compactor or Compactor(models), seen

    async def call(self, given: ModelCallInput) -> bytes:
        """Return an encoded `ModelReply`.

        Raises:
            ApplicationError: Typed as an InvocationError, or by the name of what author code raised; retryable when
                another attempt may succeed.
        """
        info = activity.info()
        started = time.perf_counter()
        try:
            root, agent = self._registry.find(given.root, given.agent)
            log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
        except (UnknownAgent, ForeignHistory) as error:
            raise _failed(given.agent, type(error).__name__, str(error)) from None
        except StoreFailed as error:
            raise _failed(given.agent, type(error).__name__, str(error), retry=True) from None
        if given.phase == "turn" and not isinstance(agent, LlmAgent):
            text = f"Agent {agent.name!r} is a {type(agent).__name__} now; it has no model that could go on."
            raise _failed(agent.name, "InvalidAgent", text)
        agent = overridden(agent, log.input)
        work = log.works[given.turn]
        hooks = Hooks(agent, root.plugins_of(agent))
        spending: JsonObject = {}
        scopes = await self._stored(root, log, given)
        said = await self._sessions.conversation(log)
        step = ids.model_replied(given.number)
        contexts = Contexts.of(log, work, self._services, step, scopes_read=root.state_scopes, said=said).over(scopes)
        try:
            with beating() as heart:
                reply, after = await Around(agent, work, hooks, contexts).reply(given.phase)
                if isinstance(agent, LlmAgent) and given.phase != "leave" and not reply.skipped:
                    compaction = await self._compactor.compaction(root, agent, work, said, contexts.step)
                    on_text = telling(heart, log, hooks, number=given.number, attempt=info.attempt)
                    turn = _Turn(
                        agent,
                        work,
                        hooks,
                        Asking(root.rules_of(agent), log.in_force(given.standing)),
                        after,
                        self._models,
                        root.demo_model,
                        on_text,
                        compaction,
                        given.wrap_up,
                        self._seen,
                    )
                    reply = await turn.reply(reply)
                    spending = _spending(info.attempt, agent, log)
        except CallbackRaised as error:
            raise _failed(agent.name, error.kind, str(error), retry=error.passing) from None
        except InstructionFailed as error:
            raise _failed(agent.name, error.kind, str(error)) from None
        except UserMessageChanged as error:
            raise _failed(agent.name, type(error).__name__, str(error)) from None
        if (size := len(reply.encode()) + (len(encode(scopes)) if scopes else 0)) > MAX_REPLY_BYTES:
            text = _too_large(size, MAX_REPLY_BYTES)
            reply = _unusable(
                "MODEL_REPLY_TOO_LARGE", text, reply, ModelReply(shape=reply.shape, compaction=reply.compaction)
            )
        reply = reply.model_copy(
            update={
                "search_attributes": self._search_attributes,
                "duration_s": round(time.perf_counter() - started, 4),
                "mark": secrets.token_hex(3),
                "notify": self._notify,
                "wrap_up": given.wrap_up,
                **spending,
                "scopes": scopes,
            }
        )
        events.info(
            "model_call.completed",
            agent=agent.name,
            invocation_id=log.invocation_id,
            number=given.number,
            phase=given.phase,
            attempt=info.attempt,
            duration_s=reply.duration_s,
            calls=len(reply.calls),
            error_code=reply.error_code,
        )
        data = reply.encode()
        ref = ids.result(ids.model_replied(given.number), reply.mark)
        self._views.put(info.workflow_run_id or "", ref, ModelReplied(given.number, reply), len(data))
        return data

    async def _stored(self, root: Root, log: Log, given: ModelCallInput) -> JsonObject | None:
        """Return what `user:` and `app:` state holds, when an invocation begins whose agents use it; else None."""
        begins = given.number == 1 and given.phase == "enter" and log.input is not None and log.input.origin is None
        if not (begins and root.state_scopes and self._scopes and log.input):
            return None
        try:
            return await self._scopes.read(log.input) or None
        except (ScopeNameTooLong, ForeignHistory) as error:
            raise _failed(given.agent, type(error).__name__, str(error)) from None
        except RPCError as error:
            raise _failed(given.agent, "StoreFailed", f"State is not read: {error.message}", retry=True) from None


@dataclass(slots=True)
class _Turn:
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
        context = self.contexts.callback("model")
        tools = {} if self.wrap_up else await tools_for(self.agent, self.contexts)
        attempt = activity.info().attempt
        request = await request_of(self.agent, self.work, self.contexts, tools, attempt, self.compaction, self.wrap_up)
        definition = definition_digest(self.agent, request)
        self.seen(request, definition)
        response = await self._response(request, tools, context)
        reply = await self._annotated(response, tools, context, entered)
        return reply.model_copy(update={"definition": definition, "compaction": self.compaction})

    async def _response(self, request: LlmRequest, tools: dict[str, BaseTool], context: CallbackContext) -> LlmResponse:
        model, changing = self._model(), [] if self.wrap_up else speakers(self.agent, tools)
        if not (changing or self.hooks.around_models):
            try:
                return _checked(await model.generate(request, on_text=self.on_text))
            except Exception as error:  # noqa: BLE001  # adapters raise anything
                raise self._failure(error) from None
        from activities.shaped import ShapedRequest, shaped_response

        try:
            shaped = ShapedRequest(request, tools)
            for speaker in changing:
                await self._changed(speaker, context, shaped.editable)
            answer = await self.hooks.before_model(context, shaped.editable)
            if answer is not None:
                return self._plain(answer)
            final = shaped.plain()
        except ValidationError as error:
            raise _failed(self.agent.name, "ValidationError", explained(error)) from None
        except (NotJson, TypeError, ValueError) as error:
            # Of what callbacks put into the request; the text names places, not values.
            raise _failed(self.agent.name, type(error).__name__, str(error)) from None
        try:
            given = await model.generate(final, on_text=self.on_text)
        except Exception as error:  # noqa: BLE001  # adapters raise anything
            answer = await self.hooks.on_model_error(context, shaped.editable, error)
            if answer is None:
                raise self._failure(error) from None
            given = self._plain(answer)
        shown = shaped_response(given)
        answer = await self.hooks.after_model(context, shown)
        return _checked(self._plain(shown if answer is None else answer, given))

    def _plain(self, response: LlmResponse, given: LlmResponse | None = None) -> LlmResponse:
        from activities.shaped import plain_response

        try:
            return plain_response(response, given)
        except (NotJson, TypeError) as error:
            # Of what callbacks put into the response; another attempt would meet the same.
            raise _failed(self.agent.name, type(error).__name__, str(error)) from None

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
                return _failed(self.agent.name, "ModelFailed", str(error))
            case ModelOverloaded():
                delay = error.retry_after_s
                return _failed(self.agent.name, "ModelUnavailable", str(error), retry=True, delay_s=delay)
            case _:
                # The text may quote the conversation.
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"The model raised {type(error).__name__} at {where.filename}:{where.lineno}."
                return _failed(self.agent.name, "ModelUnavailable", text, retry=True)

    async def _annotated(
        self, response: LlmResponse, tools: dict[str, BaseTool], context: CallbackContext, entered: ModelReply
    ) -> ModelReply:
        try:
            content: JsonObject | None = plain(response.content) if response.content else None
        except NotJson as error:
            text = f"The model's reply cannot be recorded: {error}"
            return _unusable("MODEL_REPLY_NOT_JSON", text, response, entered)
        if content is not None and (problem := problem_of(content)):
            text = f"The model's reply is not a content: {problem}"
            return _unusable("MODEL_REPLY_NOT_CONTENT", text, response, entered)
        if content is not None and (size := len(encode(content))) > MAX_VALUE_BYTES:
            return _unusable("MODEL_REPLY_TOO_LARGE", _too_large(size, MAX_VALUE_BYTES), response, entered)
        if content is not None and response.error_code:
            # Cut off by the provider: what it said is kept, what it may not have finished asking for is not done.
            content = {**content, "parts": [p for p in content.get("parts") or () if "functionCall" not in p]}
        own = recorded(context, "a callback around the model")
        annotator = Annotator(self.work, self.contexts.after(own), tools, self.hooks, self.asking)
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
        actions = merge_actions([own, *annotator.written, EventActions(state_delta=state) if state else NO_ACTIONS])
        return reply.model_copy(update={"actions": None if actions == NO_ACTIONS else actions})


def _spending(attempt: int, agent: LlmAgent, log: Log) -> JsonObject:
    """Return what is recorded of a model call for the sake of the budget."""
    priced = log.input is not None and log.input.budget.prices
    return {"attempt": attempt, "model": model_name(agent) if priced else None}


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


def _too_large(size: int, limit: int) -> str:
    return f"The model's reply is {size} bytes; at most {limit} can be recorded."


def _failed(agent: str, kind: str, text: str, *, retry: bool = False, delay_s: float | None = None) -> ApplicationError:
    """Log a failed attempt and return how Temporal is told; short, because it is kept."""
    events.warning("model_call.failed", agent=agent, error_type=kind, attempt=activity.info().attempt, retry=retry)
    return ApplicationError(
        text[:MAX_FAILURE_CHARS],
        type=kind,
        non_retryable=not retry,
        next_retry_delay=None if delay_s is None else timedelta(seconds=min(delay_s, MAX_RETRY_DELAY_S)),
        # It is logged above; the SDK would add a stack trace, and with it content.
        category=ApplicationErrorCategory.BENIGN,
    )


def _unusable(
    code: str, text: str, response: LlmResponse | ModelReply, entered: ModelReply | None = None
) -> ModelReply:
    told = {"error_code": code, "error_message": text, "usage": response.usage, "model_version": response.model_version}
    return (entered or ModelReply()).model_copy(update=told)
