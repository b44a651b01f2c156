"""The activity `call_model`, which enters and leaves agents, calls their models and records the replies.

Callbacks around agents and models, structured answers and `output_key` work as in ADK 2.13.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog
from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from waystation.activities.activity_attempt import HOLD_AFTER, Heartbeater, activity_failure, send_heartbeats
from waystation.activities.callbacks import AgentCallbacks, CallbackRaised, Hooks, UserMessageChanged, collect_actions
from waystation.activities.carry_over import apply_overrides
from waystation.activities.contexts import Contexts, tools_for
from waystation.activities.log_cache import Logs
from waystation.activities.model_call.agent_body import continue_body
from waystation.activities.model_call.annotate import Annotator, ReplyApprovals, find_content_problem
from waystation.activities.model_call.compactor import Compactor, SummarizesEvents
from waystation.activities.model_call.planning import can_change_reply, plan_reply, plan_request
from waystation.activities.model_call.repair import add_remedy, repair_response
from waystation.activities.model_call.request import (
    InstructionFailed,
    build_request,
    definition_digest,
    model_name,
    model_names,
    request_processors,
)
from waystation.activities.model_choice import Models
from waystation.activities.proofs import NO_PROOFS, ProofFactory, may_need_verified_approval
from waystation.activities.scope_delivery import ScopeSource
from waystation.activities.session_history import ConversationReader
from waystation.agents import ApprovalRule, BaseAgent, LlmAgent
from waystation.agents.custom_agent import BodyFailed, CustomAgent
from waystation.agents.toolbox import ToolMap, ToolsetFailure
from waystation.agents.tree import kind_of
from waystation.apps.registry import Registry, Root
from waystation.core import summary
from waystation.core.approval import SignedRequest
from waystation.core.budget import Budget, Price
from waystation.core.contract import (
    ENGINE_METADATA,
    MIN_HEARTBEAT_INTERVAL,
    NO_ACTIONS,
    ActivitySettings,
    CallbackResult,
    EventActions,
    ModelCallInput,
    ModelReply,
    TextWindow,
    merge_actions,
    text_of,
)
from waystation.core.errors import (
    BudgetExhausted,
    ForeignHistory,
    IdentityUnavailable,
    InvalidInput,
    ModelOverloaded,
    ModelRefused,
    NotAllowed,
    NotJson,
    RateLimited,
    ScopeNameTooLong,
    StoreFailed,
    UnknownAgent,
)
from waystation.core.log import AgentRun, Endpoints, HoldReason, Log, ModelReplied, ModelReplyRef
from waystation.core.naming import with_article
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, encode, normalize_json, to_plain_json
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.known_models import known_models
from waystation.models.reply_reasons import NO_CONTENT
from waystation.storage import StoreIds
from waystation.tools import BaseTool, BaseToolset, CallbackContext
from waystation.tools.output_schema import OUTPUT_SCHEMA, explain_schema_errors, parse_answer_text
from waystation.tools.places import find_author_line
from waystation.tools.services import NO_SERVICES, Services

if TYPE_CHECKING:
    from waystation.activities.model_call.metered_model import Meters

events = structlog.get_logger("waystation.activities")

_NO_PRICE = (
    "The model {!r} was not called: the budget limits the cost, and the model has no price. Add it to the budget's "
    "`prices`, or limit the tokens instead."
)
MAX_RETRY_DELAY_S = 300.0
HOLD_AFTER_WAITS = 7
"""Number of attempts after which a model call that waits for a rate limit is held. It is more than for other reasons,
because waiting is expected, and a hold adds events to the history. The server makes at most eight attempts."""
MAX_ERROR_CHARS = 4_000
AROUND = "a callback around the model"
MAX_REPLY_BYTES = 2_000_000
"""Maximum size of a reply's content and annotations together. A larger reply fails the call. The server would fail and
retry an activity whose result exceeds 2 MiB."""

Seen: TypeAlias = Callable[[LlmRequest, str], None]


async def _announce_none(_agent: str) -> bool:
    return False


class ModelCaller:
    """Runs the activity `call_model`."""

    def __init__(
        self,
        registry: Registry,
        logs: Logs,
        sessions: ConversationReader,
        models: Models,
        *,
        search_attributes: Callable[[str | None], bool] = lambda _tenant: False,
        services: Services = NO_SERVICES,
        scopes: ScopeSource | None = None,
        notify: Sequence[str] = (),
        notify_operators: Sequence[str] = (),
        endpoints: Callable[[str], Endpoints] = lambda _agent: {},
        compactor: SummarizesEvents | None = None,
        seen: Seen = lambda _request, _definition: None,
        limits: ActivitySettings | None = None,
        proofs: ProofFactory = NO_PROOFS,
        stores: StoreIds | None = None,
        is_announced: Callable[[str], Awaitable[bool]] = _announce_none,
        quick_calls: bool = False,
        meters: "Meters | None" = None,
    ) -> None:
        """Store the settings.

        `search_attributes` returns whether the namespace has Waystation's search attributes, which is recorded with
        each reply. `notify` names the channels for pending calls whose policy does not name any, and
        `notify_operators` those for calls whose outcome is unknown. `endpoints` returns the endpoints for the events
        of a root agent, which are recorded, too. `seen` is called with each request, before callbacks and tools change
        it, and with the digest of the agent's definition. The IDs of `stores` are recorded. `is_announced` returns
        whether any worker has ever announced a root agent with a given name. `quick_calls` is whether calls of quick
        tools can be local activities. `meters` reserves the model calls.
        """
        self._registry, self._logs, self._models, self._sessions = registry, logs, models, sessions
        self._services, self._scopes, self._limits = services, scopes, limits or ActivitySettings()
        self._search_attributes, self._is_announced = search_attributes, is_announced
        channels = {"notify": tuple(notify), "notify_operators": tuple(notify_operators)}
        self._list_recipients: Callable[[str], JsonObject] = lambda agent: channels | {"endpoints": endpoints(agent)}
        self._proofs, self._stores = proofs, stores or StoreIds()
        self._compactor, self._seen = compactor or Compactor(models), seen
        self._quick_calls, self._meters = quick_calls, meters

    async def call(self, params: ModelCallInput) -> bytes:
        """Return an encoded `ModelReply`.

        Raises:
            ApplicationError: The call failed. The error's type is one of Waystation's, such as `ModelFailed`, or the
                name of an exception from user code. It is retryable if another attempt may succeed.
        """
        recipients = self._list_recipients(params.root or params.agent)
        try:
            return await self._call(params, recipients)
        except ApplicationError as error:
            if not recipients["endpoints"]:
                raise
            raise ApplicationError(
                error.message,
                *error.details,
                {"endpoints": recipients["endpoints"]},
                type=error.type,
                non_retryable=error.non_retryable,
                next_retry_delay=error.next_retry_delay,
                category=error.category,
            ) from error.__cause__

    async def _call(self, params: ModelCallInput, recipients: JsonObject) -> bytes:
        started = time.perf_counter()
        try:
            reply = await self._reply(params)
        except (
            BodyFailed,
            BudgetExhausted,
            CallbackRaised,
            ForeignHistory,
            IdentityUnavailable,
            InstructionFailed,
            ModelRefused,
            NotAllowed,
            RateLimited,
            RPCError,
            ScopeNameTooLong,
            StoreFailed,
            UserMessageChanged,
        ) as error:
            raise fail_model_call(params.agent, error) from None
        except UnknownAgent as error:
            # An agent that has run or been announced is missing only from this worker, so the call is held.
            is_known = params.number > 1 or await self._is_announced(params.root or params.agent)
            hold: HoldReason | None = "agent_missing" if is_known else None
            raise build_failure(params.agent, "UnknownAgent", str(error), hold=hold) from None
        about: JsonObject = {
            "search_attributes": reply.search_attributes,
            "duration_s": round(time.perf_counter() - started, 4),
            "measured": True,
            "mark": secrets.token_hex(3),
            **recipients,
            "wrap_up": params.wrap_up,
        }
        if not self._quick_calls:
            about["calls"] = tuple(call.model_copy(update={"quick": False}) for call in reply.calls)
        reply = reply.model_copy(update=about)
        data = reply.encode()
        if (size := len(data)) > MAX_REPLY_BYTES:
            raise fail_model_call(params.agent, ModelRefused(format_too_large(f"{size:,}", MAX_REPLY_BYTES)))
        # `_report` runs while the SDK sends the result, so logging does not delay the result.
        asyncio.get_running_loop().call_soon(self._report, activity.info(), params, reply, len(data))
        return data

    def _report(self, info: activity.Info, params: ModelCallInput, reply: ModelReply, size: int) -> None:
        ref = ModelReplyRef(params.number, reply.mark)
        self._logs.put(info.workflow_run_id or "", ref, ModelReplied(params.number, reply), size)
        events.info(
            "model_call.completed",
            agent=params.agent,
            invocation_id=info.workflow_id,
            number=params.number,
            phase=params.phase,
            attempt=info.attempt,
            duration_s=reply.duration_s,
            calls=len(reply.calls),
            error_code=reply.error_code,
        )

    async def _reply(self, params: ModelCallInput) -> ModelReply:
        info = activity.info()
        log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
        root, agent = self._registry.find(log.state.root, params.agent)  # anyone can forge `params.root`
        if params.phase == "turn":
            _check_kind(agent, log.state.runs[params.turn])
        agent = apply_overrides(root, agent, log.state.input)
        hooks = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout)
        scopes = await self._read_scopes(root, log, params)
        conversation = await self._sessions.conversation(log)
        contexts = Contexts.of(
            conversation,
            _rename(log.state.runs[params.turn], agent),
            self._services.for_app(root.lifespan),
            str(ModelReplyRef(params.number)),
            scopes_read=root.state_scopes,
            limits=self._limits,
        ).over(scopes)
        with send_heartbeats(cancel_within=self._limits.cancel_within) as heart:
            signed = await self._proofs.sign_request(log)
            reply = ModelReply()
            if params.phase == "leave":
                reply = ModelReply(after=await AgentCallbacks(hooks, contexts).leave())
            elif params.phase == "enter":
                reply = await AgentCallbacks(hooks, contexts).enter()
                contexts = contexts.after(reply.before.actions if reply.before else None)
            if isinstance(agent, CustomAgent) and params.phase != "leave" and not reply.skipped:
                reply = reply.model_copy(update=await continue_body(agent, contexts, root.plugins_of(agent)))
            if isinstance(agent, LlmAgent) and params.phase != "leave" and not reply.skipped:
                # Before compaction, which may call a model: retries until the toolsets are available would repeat it.
                tools = ToolMap() if params.wrap_up else await _list_tools(agent, contexts)
                compaction = await self._compactor.compaction(root, agent, contexts)
                request = await build_request(agent, contexts, tools, info.attempt, compaction, params.wrap_up)
                definition = definition_digest(agent, request)
                self._seen(request, definition)
                budget = log.state.input.budget if log.state.input else Budget()
                name = model_name(agent)
                _check_prices(budget, agent)
                model, meter = self._models.of(agent, root.demo_model), self._meters and self._meters.of(contexts)
                turn = ModelTurn(
                    agent=agent,
                    contexts=contexts,
                    hooks=hooks,
                    approvals=await self._approvals(root.rules_of(agent), tools.values(), log, params, signed),
                    model=meter.wrap(model) if meter and not model.is_free else model,
                    request=request,
                    tools=tools,
                    changing=[] if params.wrap_up else request_processors(agent, tools),
                    on_text=_text_listener(heart, log, hooks, params.number, text_interval=self._limits.text_interval),
                )
                update = {"definition": definition, "compaction": compaction}
                update |= {"model": name if budget.prices or budget.max_cost else None}
                reply = add_remedy(await turn.reply(reply.model_copy(update=update)), contexts, params.wrap_up)
                names = (reply.model, reply.model_version, compaction.model if compaction else None)
                called = info.attempt - (meter.waits if meter else 0)
                reply = reply.model_copy(update={"prices": _table_prices(budget, *names), "attempt": called})
        tenant = log.state.input.tenant if log.state.input else None
        searchable = params.check_search and self._search_attributes(tenant)
        known: JsonObject = {"scopes": scopes, "search_attributes": searchable}
        known |= {"signed_request": signed, "stores": await self._stores.compare(log.state.stores)}
        return reply.model_copy(update=known)

    async def _approvals(
        self,
        rules: Sequence[ApprovalRule],
        tools: Iterable[BaseTool],
        log: Log,
        params: ModelCallInput,
        signed: SignedRequest | None,
    ) -> ReplyApprovals:
        remembered, proofs = log.state.remembered_by_origin(params.standing), None
        if any(may_need_verified_approval(tool, rules) for tool in tools):
            proofs = await self._proofs.proofs(with_scope=bool(remembered))
        requesters = await self._proofs.find_requesters(log, signed) if remembered else ()
        has_completion_key = self._proofs.completions is not None
        return ReplyApprovals(rules, remembered, proofs, not self._proofs.required, requesters, has_completion_key)

    async def _read_scopes(self, root: Root, log: Log, params: ModelCallInput) -> JsonObject | None:
        """Return the `user:` and `app:` state for a new invocation, or None if there is none or no agent uses it.

        Also return None for later model calls and for an agent called by another agent.

        Raises:
            ApplicationError: The invocation may not begin, or the state cannot be read. Then, the server retries the
                activity.
        """
        started, first = log.state.input, params.number == 1 and params.phase == "enter"
        if not (first and started and started.origin is None and self._scopes):
            return None
        try:
            await self._scopes.check_start(log.invocation_id, started)
            return (await self._scopes.read(started) or None) if root.state_scopes else None
        except InvalidInput as error:
            raise build_failure(params.agent, type(error).__name__, str(error)) from None
        except RPCError as error:
            text = f"`user:` and `app:` state cannot be read: {error.message}"
            raise build_failure(params.agent, "StoreFailed", text, hold="store_failed") from None


def _rename(work: AgentRun, agent: BaseAgent) -> AgentRun:
    """Return a run with the agent's own name. Until the agent has started, it has the name under which it is served."""
    return replace(work, shape=work.shape.model_copy(update={"name": agent.name}))


def _check_kind(agent: BaseAgent, work: AgentRun) -> None:
    """Raise an ApplicationError if a deployment changed the kind of an agent that continues."""
    kind = work.shape.kind
    if kind_of(agent) != kind:
        needed = "model" if kind == "llm" else "body"
        text = f"Agent {agent.name!r} is {with_article(agent)} now; it has no {needed} to continue with."
        raise build_failure(agent.name, "InvalidAgent", text)


def _check_prices(budget: Budget, agent: LlmAgent) -> None:
    """Raise ModelRefused if a budget limits the cost, and a model that may answer has no price."""
    is_free = getattr(agent.declared_model, "is_free", False)
    for name in model_names(agent) if budget.max_cost and not is_free else ():
        if not (budget.price([name]) or _table_prices(budget, name)):
            raise ModelRefused(_NO_PRICE.format(name))


def _table_prices(budget: Budget, *names: str | None) -> dict[str, Price]:
    """Return this worker's prices of the models that have no price in a budget. Return {} if it has no `max_cost`."""
    rows = {name: known_models().find(name) for name in names if name and budget.max_cost and not budget.price([name])}
    return {name: row.price for name, row in rows.items() if row and row.price}


async def _list_tools(agent: LlmAgent, contexts: Contexts) -> ToolMap:
    """Return the agent's tools by name.

    Raises:
        ApplicationError: A toolset that is not optional is not available. The server retries the activity.
    """
    failed: list[ToolsetFailure] = []
    tools = await tools_for(agent, contexts, failed=failed)
    if problems := [failure.description for failure in failed if failure.must_wait]:
        remedy = "To call the model without these tools in the meantime, set `optional=True` on the toolset."
        raise build_failure(agent.name, "ToolsetFailed", " ".join([*problems, remedy]), hold="toolset_failed")
    return tools


def _text_listener(
    heart: Heartbeater, log: Log, hooks: Hooks, number: int, *, text_interval: timedelta
) -> Callable[[str], None] | None:
    """Return a listener that streams a model's text in heartbeats, or None if the text is not streamed.

    Text is streamed only if the invocation requests it and no callback or planner may change the reply, because a
    callback may remove parts of the text.
    """
    started, attempt = log.state.input, activity.info().attempt
    may_change = hooks.has("after_model_callback", "on_model_error_callback")
    if not (started and started.streaming) or may_change or can_change_reply(getattr(hooks.agent, "planner", None)):
        return None
    wanted_s = started.text_interval_s or max(text_interval, MIN_HEARTBEAT_INTERVAL).total_seconds()
    heart.details_interval_s = interval_s = min(wanted_s, heart.interval_s)
    mark = secrets.token_hex(3)
    window = TextWindow(agent=hooks.agent.name, number=number, attempt=attempt, mark=mark, interval_s=interval_s)

    def on_text(text: str) -> None:
        window.add(text)
        if window.newest.length > MAX_VALUE_BYTES:
            raise ModelRefused(format_too_large(f"more than {MAX_VALUE_BYTES:,}"))
        heart.send(lambda: [window.newest.model_dump(mode="json")])

    return on_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """One model call of one agent."""

    agent: LlmAgent
    contexts: Contexts
    hooks: Hooks
    approvals: ReplyApprovals
    model: BaseLlm
    request: LlmRequest
    """The request before callbacks and tools change it."""
    tools: ToolMap
    """The tools that the model may call."""
    changing: Sequence[BaseTool | BaseToolset]
    """The toolsets and tools that change the request, in the order they run."""
    on_text: Callable[[str], None] | None
    """A function that receives chunks of the model's text as they arrive, or None if the text is not streamed."""

    async def reply(self, entered: ModelReply) -> ModelReply:
        """Call the model and return `entered` with the model's reply added.

        If the reply cannot be recorded, add an error instead.

        Raises:
            ApplicationError: The model raised an exception, or callbacks made the request or response invalid.
            CallbackRaised: A callback raised an exception, or its actions cannot be recorded.
        """
        has_author_code = self.changing or self.hooks.has_model_callbacks or self.agent.planner is not None
        context = self.contexts.callback("model") if has_author_code else None
        if context is None:
            try:
                response = _check_not_empty(await self._generate(self.request))
            except Exception as error:  # noqa: BLE001  # adapters raise anything
                raise fail_model_call(self.agent.name, error) from None
        else:
            response = self._plan_reply(await self._ask_with_callbacks(context), context)
        try:
            content = _content_of(response)
        except _Unusable as error:
            code, problem = error.args
            return mark_unusable(code, problem, response, entered)  # The callbacks' actions are discarded, too.
        actions = NO_ACTIONS if context is None else collect_actions(context, AROUND)
        return await self._annotate_reply(response, content, actions, entered)

    async def _generate(self, request: LlmRequest) -> LlmResponse:
        limit_s = self.contexts.limits.model_timeout.total_seconds()
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                return repair_response(await self.model.generate(request, on_text=self.on_text))
        except TimeoutError:
            if not timer.expired():
                raise
            raise ModelOverloaded(f"The model did not complete its reply within {limit_s:g} s.") from None

    async def _ask_with_callbacks(self, context: CallbackContext) -> LlmResponse:
        """Call the model, running its callbacks and the tools that change the request.

        Return the model's response, or the one that a callback returned instead.
        """
        from waystation.activities.model_call.conversion import TypedRequest, to_genai_response

        try:
            typed_request = TypedRequest(self.request, self.tools)
            if self.agent.planner is not None:
                plan_request(self.agent.planner, self.contexts.readonly(), typed_request.editable)
            for tool in self.changing:
                await self._change_request(tool, context, typed_request.editable)
            answer = await self.hooks.around_model("before_model_callback", context, llm_request=typed_request.editable)
            if answer is not None:
                return self._to_plain(answer)
            request = typed_request.plain()
        except ValidationError as error:
            raise build_failure(self.agent.name, "ValidationError", explain_schema_errors(error)) from None
        except (NotJson, TypeError, ValueError) as error:
            # A callback or a tool made the request invalid. The message names fields, not their values.
            raise build_failure(self.agent.name, type(error).__name__, str(error)) from None
        try:
            response = await self._generate(request)
        except Exception as error:  # noqa: BLE001  # adapters raise anything
            answer = await self.hooks.around_model(
                "on_model_error_callback", context, llm_request=typed_request.editable, error=error
            )
            if answer is None:
                raise fail_model_call(self.agent.name, error) from None
            response = self._to_plain(answer)
        if response.content is not None and find_content_problem(response.content):
            return response  # it cannot be converted for callbacks
        typed = to_genai_response(response)
        answer = await self.hooks.around_model("after_model_callback", context, llm_response=typed)
        return _check_not_empty(self._to_plain(typed if answer is None else answer, response))

    async def _change_request(self, tool: Any, context: CallbackContext, editable: Any) -> None:
        try:
            await tool.process_llm_request(tool_context=context, llm_request=editable)
        except Exception as error:
            raise CallbackRaised(f"{type(tool).__name__}.process_llm_request", error) from error

    def _plan_reply(self, response: LlmResponse, context: CallbackContext) -> LlmResponse:
        from waystation.activities.model_call.conversion import to_genai_response

        planner, content = self.agent.planner, response.content
        if not can_change_reply(planner) or not content or not content.get("parts") or find_content_problem(content):
            return response
        typed = to_genai_response(response)
        typed.content.parts = plan_reply(planner, context, typed.content.parts)
        return self._to_plain(typed, response)

    def _to_plain(self, response: LlmResponse, original: LlmResponse | None = None) -> LlmResponse:
        from waystation.activities.model_call.conversion import to_plain_response

        try:
            result = repair_response(to_plain_response(response, original))
            if result.content is not None and (problem := find_content_problem(result.content)):
                raise TypeError(f"A callback returned invalid content for the model's reply: {problem}")
        except (NotJson, TypeError) as error:
            # Callbacks made the response invalid. Another attempt would fail the same way.
            raise build_failure(self.agent.name, type(error).__name__, str(error)) from None
        return result

    async def _annotate_reply(
        self, response: LlmResponse, content: JsonObject | None, actions: EventActions, entered: ModelReply
    ) -> ModelReply:
        """Return `entered` with the model's content and calls and the model callbacks' actions added."""
        if content is not None and response.error_code:
            # The provider may have cut off the reply. Keep the text, but drop the calls, which may be incomplete.
            content = {**content, "parts": [p for p in content.get("parts") or () if "functionCall" not in p]}
        contexts = self.contexts.after(None if actions is NO_ACTIONS else actions)
        annotator = Annotator(contexts, self.tools, self.hooks, self.approvals)
        content = await annotator.annotate(content) if content else None
        message = response.error_message
        update: JsonObject = {
            "content": content,
            "calls": tuple(annotator.calls),
            "finish_reason": response.finish_reason,
            "error_code": response.error_code,
            "error_message": summary.clip(message, MAX_ERROR_CHARS) if message else None,
            "usage": response.usage,
            "model_version": response.model_version,
            "model": response.model or entered.model,
            "grounding_metadata": _metadata(response.grounding_metadata),
            "citation_metadata": _metadata(response.citation_metadata),
            "custom_metadata": _custom_metadata(response.custom_metadata),
        }
        state = self._output_state(content)
        text = text_of(content)
        if self.agent.output_schema and not annotator.calls and not response.error_code and text.strip():
            try:
                value = parse_answer_text(self.agent.output_schema, text)
            except ValueError as error:
                problem = f"The answer of {self.agent.name!r} does not fit its output_schema: {error}"
                update |= {"error_code": OUTPUT_SCHEMA, "error_message": problem}
            else:
                update |= {"output": _wrap_output(value)}
                if self.agent.output_key:
                    state = {self.agent.output_key: value}
        if annotator.has_answer:
            update |= {"closing": self._build_closing_event(annotator.answer), "output": _wrap_output(annotator.answer)}
        actions = merge_actions([actions, *annotator.written, EventActions(state_delta=state) if state else NO_ACTIONS])
        if actions != NO_ACTIONS:
            update |= {"actions": actions}
        return entered.model_copy(update=update)

    def _output_state(self, content: JsonObject | None) -> JsonObject:
        """Return the state that `output_key` stores: the agent's joined text from this turn, ending with `content`.

        Return an empty object if there is nothing to store, or if the agent has an output schema.

        A turn ends with text that has no calls. After that, the agent continues only if a late answer arrives, which
        starts a new turn.
        """
        agent, work = self.agent, self.contexts.work
        if not agent.output_key or agent.output_schema or not (text := text_of(content)):
            return {}
        events = self.contexts.log.state.events[work.entered_at :]
        own_events = [event for event in events if event.author == agent.name and event.branch == work.branch]
        # Skip function responses, because text next to a function response comes from a called agent.
        texts = [event for event in own_events if text_of(event.content) and not event.function_responses()]
        ends = [i for i, event in enumerate(texts) if not event.function_calls()]
        earlier_text = "".join(text_of(event.content) for event in texts[ends[-1] + 1 if ends else 0 :])
        return {agent.output_key: earlier_text + text}

    def _build_closing_event(self, value: Any) -> CallbackResult:
        """Return the content and actions of the text event that ends the agent's turn with a structured answer."""
        key, text = self.agent.output_key, json.dumps(value, ensure_ascii=False)
        actions = EventActions(state_delta={key: value}) if key else None
        return CallbackResult(content={"role": "model", "parts": [{"text": text}]}, actions=actions)


class _Unusable(Exception):
    """A model's reply cannot be recorded. The arguments are an error code and a description of the problem."""


def _content_of(response: LlmResponse) -> JsonObject | None:
    """Return the content of a response as JSON, or None if it is empty.

    Raises:
        ModelRefused: The content is too large.
        _Unusable: The content cannot be recorded.
    """
    if not response.content:
        return None
    try:
        content: JsonObject = normalize_json(response.content)
    except NotJson as error:
        raise _Unusable("MODEL_REPLY_NOT_JSON", f"The model's reply cannot be recorded: {error}") from None
    if problem := find_content_problem(content):
        raise _Unusable("MODEL_REPLY_NOT_CONTENT", f"The model's reply is not a valid content: {problem}")
    if (size := len(encode(content))) > MAX_VALUE_BYTES:
        raise ModelRefused(format_too_large(f"{size:,}"))
    parts = content.get("parts") or []
    if not _has_output(content):  # White space is handled as an empty reply.
        parts = [part for part in parts if part.get("thought")]
    return {**content, "role": "user" if content.get("role") == "user" else "model", "parts": parts}


def _check_not_empty(response: LlmResponse) -> LlmResponse:
    """Add an error to a response that stopped normally but has only thoughts, whitespace or nothing, as in ADK 2.13."""
    if response.error_code or response.finish_reason != "STOP" or _has_output(response.content):
        return response
    has_parts = isinstance(response.content, dict) and response.content.get("parts")
    response.error_code = NO_CONTENT
    response.error_message = (
        "The model returned no actionable content (finish_reason=STOP with thought-only or whitespace-only parts)."
        if has_parts
        else "The model returned no content (finish_reason=STOP with empty parts)."
    )
    return response


def _metadata(value: Any) -> JsonObject | None:
    """Return grounding or citation metadata as JSON, or None if there is none or it cannot be converted."""
    try:
        metadata = to_plain_json(value) if value else None
    except NotJson:
        return None
    return metadata if isinstance(metadata, dict) else None


def _custom_metadata(metadata: Any) -> JsonObject | None:
    """Return what a model or a callback adds to the event, without the engine's keys and values that are not JSON."""
    items = metadata.items() if isinstance(metadata, dict) else ()
    kept = [_metadata({key: value}) or {} for key, value in items if key not in ENGINE_METADATA]
    return {key: value for item in kept for key, value in item.items()} or None


def _has_output(content: Any) -> bool:
    parts = content.get("parts") if isinstance(content, dict) else None
    return isinstance(parts, list) and any(
        not isinstance(part, dict)
        or part.keys() - {"text", "thought", "thoughtSignature"}
        or (not part.get("thought") and str(part.get("text") or "").strip())
        for part in parts
    )


def format_too_large(size: str, limit: int = MAX_VALUE_BYTES) -> str:
    return (
        f"The model's reply has {size} bytes; at most {limit:,} can be recorded. Limit the reply with "
        "`max_output_tokens`, or have the agent save large content as an artifact."
    )


def _wrap_output(value: Any) -> JsonObject:
    """Return a structured answer as a JSON object. Values of other types become `{"result": value}`, as for tools."""
    return value if isinstance(value, dict) else {"result": value}


def fail_model_call(agent: str, error: Exception) -> ApplicationError:
    """Log a failed attempt at a model call and return the error, which must be raised `from None`.

    Temporal records an error's cause in the history, and the original message may quote the conversation.
    """
    match error:
        case ModelRefused():
            return build_failure(agent, "ModelFailed", str(error))
        case RateLimited():
            return build_failure(
                agent,
                "RateLimited",
                str(error),
                hold="rate_limited",
                hold_after=HOLD_AFTER_WAITS,
                delay_s=error.retry_after_s,
            )
        case BudgetExhausted():
            hold: HoldReason | None = "budget_exhausted" if error.is_held else None
            return build_failure(
                agent, "BudgetExhausted", str(error), hold=hold, hold_after=1, delay_s=error.retry_after_s
            )
        case ModelOverloaded():
            return build_failure(
                agent, "ModelUnavailable", str(error), hold="model_unavailable", delay_s=error.retry_after_s
            )
        case StoreFailed() | CallbackRaised(retryable=True):
            kind = error.kind if isinstance(error, CallbackRaised) else type(error).__name__
            return build_failure(agent, kind, str(error), hold="store_failed")
        case RPCError():
            return build_failure(agent, "StoreFailed", f"The history cannot be read: {error}", hold="store_failed")
        case IdentityUnavailable():
            return build_failure(agent, "IdentityUnavailable", str(error), hold="identity_unavailable")
        case CallbackRaised() | InstructionFailed():
            return build_failure(agent, error.kind, str(error))
        case BodyFailed() | ForeignHistory() | NotAllowed() | ScopeNameTooLong() | UserMessageChanged():
            return build_failure(agent, type(error).__name__, str(error))
        case _:
            # Leave out the exception's message, which may quote the conversation.
            text = f"The model raised {type(error).__name__} at {find_author_line(error)}."
            return build_failure(agent, "ModelUnavailable", text, hold="model_unavailable")


def build_failure(
    agent: str,
    kind: str,
    text: str,
    *,
    hold: HoldReason | None = None,
    hold_after: int = HOLD_AFTER,
    delay_s: float | None = None,
) -> ApplicationError:
    """Log a failed attempt at a model call and return the error to raise. Only attempts with `hold` are repeated.

    `delay_s` is the delay before the next attempt. It is reduced to `MAX_RETRY_DELAY_S` if it is longer.
    """
    delay = None if delay_s is None else timedelta(seconds=min(delay_s, MAX_RETRY_DELAY_S))
    return activity_failure("model_call.failed", kind, text, hold=hold, hold_after=hold_after, delay=delay, agent=agent)


def mark_unusable(code: str, text: str, response: LlmResponse | ModelReply, entered: ModelReply) -> ModelReply:
    return entered.model_copy(
        update={
            "error_code": code,
            "error_message": text,
            "usage": response.usage,
            "model_version": response.model_version,
            "model": response.model or entered.model,
        }
    )
