"""The activity `call_model`: enter and leave agents, have their models asked, and record what came of it."""

import secrets
import time
from collections.abc import Sequence

import structlog
from temporalio import activity
from temporalio.service import RPCError

from waystation.activities.afterwards import afterwards
from waystation.activities.annotate import Asking
from waystation.activities.around_agent import Around, UserMessageChanged
from waystation.activities.ask_model import ModelTurn, Seen, failed, too_large, unusable
from waystation.activities.compaction import Compactor, Compacts
from waystation.activities.contexts import Contexts
from waystation.activities.fork import overridden
from waystation.activities.heartbeat import beating
from waystation.activities.hooks import CallbackRaised, Hooks
from waystation.activities.instructions import InstructionFailed
from waystation.activities.model_choice import Models
from waystation.activities.partials import telling
from waystation.activities.request import model_name
from waystation.activities.scopes import ReadsScopes
from waystation.activities.sessions import Conversations
from waystation.activities.view import Logs
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry, Root
from waystation.core import ids
from waystation.core.entry import ModelReplied
from waystation.core.errors import ForeignHistory, ScopeNameTooLong, StoreFailed, UnknownAgent
from waystation.core.log import Log
from waystation.core.model_call import ModelCallInput, ModelReply
from waystation.core.naming import a
from waystation.core.payload import JsonObject
from waystation.core.settings import ActivitySettings
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

MAX_REPLY_BYTES = 2_000_000
"""Content and annotations together. The server fails, and then repeats, an activity whose result is over 2 MiB."""


class ModelCaller:
    """Carries out the activity `call_model`."""

    def __init__(
        self,
        registry: Registry,
        views: Logs,
        sessions: Conversations,
        models: Models,
        *,
        search_attributes: bool = False,
        services: Services = NO_SERVICES,
        scopes: ReadsScopes | None = None,
        notify: Sequence[str] = (),
        compactor: Compacts | None = None,
        seen: Seen = lambda _request, _definition: None,
        limits: ActivitySettings | None = None,
    ) -> None:
        """`notify` names the channels that are told of whatever waits, unless a policy names others.

        `seen` is told of each request as the agent's declaration makes it, with the digest of that.
        """
        self._registry, self._views, self._models, self._sessions = registry, views, models, sessions
        self._services, self._scopes, self._limits = services, scopes, limits or ActivitySettings()
        self.search_attributes = search_attributes
        """Whether the namespace has the search attributes; recorded with each reply."""
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
            raise failed(given.agent, type(error).__name__, str(error)) from None
        except StoreFailed as error:
            raise failed(given.agent, type(error).__name__, str(error), retry=True) from None
        if given.phase == "turn" and not isinstance(agent, LlmAgent):
            text = f"Agent {agent.name!r} is {a(agent)} now; it has no model that could go on."
            raise failed(agent.name, "InvalidAgent", text)
        agent = overridden(agent, log.input)
        work = log.works[given.turn]
        hooks = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout)
        spending: JsonObject = {}
        scopes = await self._stored(root, log, given)
        said = await self._sessions.conversation(log)
        step = ids.model_replied(given.number)
        contexts = Contexts.of(
            log, work, self._services, step, scopes_read=root.state_scopes, said=said, limits=self._limits
        ).over(scopes)
        try:
            with beating() as heart:
                reply, after = await Around(agent, work, hooks, contexts).reply(given.phase)
                if isinstance(agent, LlmAgent) and given.phase != "leave" and not reply.skipped:
                    compaction = await self._compactor.compaction(root, agent, work, said, contexts.step)
                    on_text = telling(heart, log, hooks, number=given.number, attempt=info.attempt)
                    turn = ModelTurn(
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
            raise failed(agent.name, error.kind, str(error), retry=error.passing) from None
        except InstructionFailed as error:
            raise failed(agent.name, error.kind, str(error)) from None
        except UserMessageChanged as error:
            raise failed(agent.name, type(error).__name__, str(error)) from None
        told: JsonObject = {
            "search_attributes": self.search_attributes,
            "duration_s": round(time.perf_counter() - started, 4),
            "mark": secrets.token_hex(3),
            "notify": self._notify,
            "wrap_up": given.wrap_up,
            **spending,
            "scopes": scopes,
        }
        data = (whole := reply.model_copy(update=told)).encode()
        if (size := len(data)) > MAX_REPLY_BYTES:
            kept = ModelReply(shape=reply.shape, compaction=reply.compaction)
            short = unusable("MODEL_REPLY_TOO_LARGE", too_large(size, MAX_REPLY_BYTES), reply, kept)
            data = (whole := short.model_copy(update=told)).encode()
        afterwards(
            events.info,
            "model_call.completed",
            agent=agent.name,
            invocation_id=log.invocation_id,
            number=given.number,
            phase=given.phase,
            attempt=info.attempt,
            duration_s=whole.duration_s,
            calls=len(whole.calls),
            error_code=whole.error_code,
        )
        ref = ids.result(ids.model_replied(given.number), whole.mark)
        afterwards(self._views.put, info.workflow_run_id or "", ref, ModelReplied(given.number, whole), len(data))
        return data

    async def _stored(self, root: Root, log: Log, given: ModelCallInput) -> JsonObject | None:
        """Return what `user:` and `app:` state holds, when an invocation begins whose agents use it; else None."""
        begins = given.number == 1 and given.phase == "enter" and log.input is not None and log.input.origin is None
        if not (begins and root.state_scopes and self._scopes and log.input):
            return None
        try:
            return await self._scopes.read(log.input) or None
        except (ScopeNameTooLong, ForeignHistory) as error:
            raise failed(given.agent, type(error).__name__, str(error)) from None
        except RPCError as error:
            raise failed(given.agent, "StoreFailed", f"State is not read: {error.message}", retry=True) from None


def _spending(attempt: int, agent: LlmAgent, log: Log) -> JsonObject:
    """Return what is recorded of a model call for the sake of the budget."""
    priced = log.input is not None and log.input.budget.prices
    return {"attempt": attempt, "model": model_name(agent) if priced else None}
