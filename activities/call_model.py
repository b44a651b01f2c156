"""Call an agent's model with the conversation so far, and annotate what it wants done."""

import secrets
import time
import traceback
from datetime import timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.annotate import annotated, problem_of
from activities.heartbeat import beating
from activities.models.choice import Models
from activities.view import Views
from tools import declare, tools_of
from waystation.agents.agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.core import ids, prompt, summary
from waystation.core.entry import ModelReplied
from waystation.core.errors import ForeignHistory, ModelOverloaded, ModelRefused, NotJson, UnknownAgent
from waystation.core.log import Log
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, digest, encode, plain
from waystation.core.wire import ModelCallInput, ModelReply
from waystation.models import LlmRequest, LlmResponse

events = structlog.get_logger("waystation.activities")

MAX_RETRY_DELAY_S = 300.0
MAX_FAILURE_CHARS = 500
MAX_ERROR_CHARS = 4_000
MAX_REPLY_BYTES = 2_000_000
"""Content and annotations together. The server fails, and then repeats, an activity whose result is over 2 MiB."""


class ModelCaller:
    """Carries out the activity `call_model`."""

    def __init__(self, registry: Registry, views: Views, models: Models, *, search_attributes: bool) -> None:
        self._registry, self._views, self._models = registry, views, models
        self._search_attributes = search_attributes

    async def call(self, given: ModelCallInput) -> bytes:
        """Return an encoded `ModelReply`.

        Raises:
            ApplicationError: Typed as an InvocationError; retryable when another attempt may succeed.
        """
        info = activity.info()
        started = time.perf_counter()
        try:
            root, agent = self._registry.find(given.root, given.agent)
            log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
        except (UnknownAgent, ForeignHistory) as error:
            raise _failed(given.agent, type(error).__name__, str(error)) from None
        tools = tools_of(agent)
        request = LlmRequest(
            model=agent.model if isinstance(agent.model, str) else type(agent.model).__name__,
            contents=prompt.contents(log),
            system_instruction=system_instruction(agent),
            tools=[declared for tool in tools.values() if (declared := declare(tool))],
            config=config_of(agent),
            attempt=info.attempt,
        )
        with beating():
            response = await self._generate(agent, root.demo_model, request)
            reply = await self._reply(log, agent, response)
        if (size := len(reply.encode())) > MAX_REPLY_BYTES:
            reply = _unusable("MODEL_REPLY_TOO_LARGE", _too_large(size, MAX_REPLY_BYTES), response)
        reply = reply.model_copy(
            update={
                "definition": definition_digest(request),
                "search_attributes": self._search_attributes,
                "duration_s": round(time.perf_counter() - started, 4),
                "mark": secrets.token_hex(3),
            }
        )
        events.info(
            "model_call.completed",
            agent=agent.name,
            invocation_id=log.invocation_id,
            number=given.number,
            attempt=info.attempt,
            duration_s=reply.duration_s,
            calls=len(reply.calls),
            error_code=reply.error_code,
        )
        data = reply.encode()
        ref = ids.result(ids.model_replied(given.number), reply.mark)
        self._views.put(info.workflow_run_id or "", ref, ModelReplied(given.number, reply), len(data))
        return data

    async def _generate(self, agent: LlmAgent, demo: object, request: LlmRequest) -> LlmResponse:
        try:
            return await self._models.of(agent, demo).generate(request)
        except ModelRefused as error:
            raise _failed(agent.name, "ModelFailed", str(error)) from None
        except ModelOverloaded as error:
            raise _failed(agent.name, "ModelUnavailable", str(error), retry=True, delay_s=error.retry_after_s) from None
        except Exception as error:  # noqa: BLE001  # adapters raise anything; the text may quote the conversation
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"The model raised {type(error).__name__} at {where.filename}:{where.lineno}."
            raise _failed(agent.name, "ModelUnavailable", text, retry=True) from None

    async def _reply(self, log: Log, agent: LlmAgent, response: LlmResponse) -> ModelReply:
        try:
            content: JsonObject | None = plain(response.content) if response.content else None
        except NotJson as error:
            return _unusable("MODEL_REPLY_NOT_JSON", f"The model's reply cannot be recorded: {error}", response)
        if content is not None and (problem := problem_of(content)):
            return _unusable("MODEL_REPLY_NOT_CONTENT", f"The model's reply is not a content: {problem}", response)
        if content is not None and (size := len(encode(content))) > MAX_VALUE_BYTES:
            return _unusable("MODEL_REPLY_TOO_LARGE", _too_large(size, MAX_VALUE_BYTES), response)
        if content is not None and response.error_code:
            # Cut off by the provider: what it said is kept, what it may not have finished asking for is not done.
            content = {**content, "parts": [p for p in content.get("parts") or () if "functionCall" not in p]}
        content, calls = await annotated(content, log, tools_of(agent)) if content else (None, ())
        return ModelReply(
            content=content,
            calls=calls,
            finish_reason=response.finish_reason,
            error_code=response.error_code,
            error_message=summary.clip(response.error_message, MAX_ERROR_CHARS) if response.error_message else None,
            usage=response.usage,
            model_version=response.model_version,
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


def _unusable(code: str, text: str, response: LlmResponse) -> ModelReply:
    return ModelReply(error_code=code, error_message=text, usage=response.usage, model_version=response.model_version)


def system_instruction(agent: LlmAgent) -> str:
    """Return the system instruction: the agent's own, then who it is. Source: adk-semantics 9.3."""
    identity = f'You are an agent. Your internal name is "{agent.name}".'
    if agent.description:
        identity += f' The description about you is "{agent.description}".'
    return f"{agent.instruction}\n\n{identity}" if agent.instruction else identity


def config_of(agent: LlmAgent) -> JsonObject:
    """Return the agent's generation config as genai's JSON."""
    config = agent.generate_content_config
    if config is None:
        return {}
    if isinstance(config, dict):
        return config
    dumped: JsonObject = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def definition_digest(request: LlmRequest) -> str:
    """Return a digest of all that the agent's declaration contributed to a request, so that a change shows."""
    return digest([request.model, request.system_instruction, list(request.tools), request.config])[:12]
