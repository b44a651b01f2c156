"""Run scenarios on Waystation through the client, with one server and one worker for all of them."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from verification.differential.record import Place, event_of, of_places, record
from verification.differential.scenario import (
    Answer,
    Cast,
    Elsewhere,
    Json,
    Problem,
    Refusal,
    Reply,
    Scenario,
    content_of,
    is_conversation,
)
from waystation.apps.registry import Registry, Root, tree_of
from waystation.artifacts.base_artifact_service import BaseArtifactService
from waystation.client import Session
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.budget import Budget
from waystation.core.contract import Event
from waystation.core.errors import ModelRefused
from waystation.core.log import Log, Wait, is_working, next_step
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.worker import announce_agents

LIMIT_S = 30.0


class Scripted(BaseLlm):
    """A model that returns the replies of a script, and records its requests."""

    def __init__(self, name: str, replies: Sequence[Reply], asked: list[Json]) -> None:
        self.model = name
        self._replies, self._asked = list(replies), asked

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next reply."""
        self._asked.append(request_of(request))
        reply = self._replies.pop(0) if self._replies else "(The script has no further reply.)"
        if isinstance(reply, Refusal):
            raise ModelRefused(reply.message)
        if isinstance(reply, Problem):
            return LlmResponse(error_code=reply.code, error_message=reply.message)
        return LlmResponse(content=content_of(reply))


def request_of(request: LlmRequest) -> Json:
    """Return the compared fields of a model request."""
    return {
        "contents": list(request.contents),
        "systemInstruction": request.system_instruction,
        "tools": [*request.tools, *request.native_tools],
        "config": request.config,
    }


class Pause(Interceptor):
    """Holds activities while the block runs."""

    def __init__(self) -> None:
        self._off = asyncio.Event()
        self._off.set()

    def __enter__(self) -> None:
        self._off.clear()

    def __exit__(self, *_: object) -> None:
        self._off.set()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `temporalio.worker.Interceptor`."""
        off = self._off

        class Held(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                await off.wait()
                return await super().execute_activity(input)

        return Held(next)


class Subject:
    """Waystation, ready for scenarios."""

    tenant: str | None = None
    """Separates sessions and state from those of another subject on the same server."""

    def __init__(self, client: AgentClient, registry: Registry, artifacts: BaseArtifactService, pause: Pause) -> None:
        self._client, self._registry, self._artifacts, self._pause = client, registry, artifacts, pause

    def create_model(self, name: str, replies: Sequence[Reply], asked: list[Json]) -> Any:
        """Return a model that returns the replies of a script."""
        return Scripted(name, replies, asked)

    def create_root(self, scenario: Scenario, agent: Any, compaction: Any) -> Root:
        """Return the root to serve for the scenario's agent."""
        plugins = tuple(scenario.plugins())
        return Root(agent, f"scenario {scenario.name!r}", tree_of(agent), plugins=plugins, compaction=compaction)

    async def run(self, scenario: Scenario) -> Json:
        """Run the conversation and return its record."""
        requests: dict[str, list[Json]] = {}

        def model(label: str) -> Any:
            return self.create_model(scenario.model, scenario.script[label], requests.setdefault(label, []))

        cast = Cast(scenario.name, model)
        compaction = scenario.compaction(cast) if scenario.compaction else None
        self._registry.add(self.create_root(scenario, scenario.agent(cast), compaction))
        # The worker announced its agents when it started, before this one was added.
        await announce_agents(self._client.temporal, self._registry, task_queue=self._client.task_queue)
        if is_conversation(scenario):
            return await Talk(self._client, scenario, self.tenant).record(requests)
        invocation = await self._client.start(
            scenario.name,
            scenario.message,
            state=scenario.state,
            user_id=scenario.name,
            app=scenario.name,  # a separate app, because `app:` state outlives the scenario
            tenant=self.tenant,
            budget=Budget(max_llm_calls=scenario.max_llm_calls) if scenario.max_llm_calls else None,
        )
        for answer in scenario.answers:
            assert not isinstance(answer, str | Elsewhere)
            log = await quiet(invocation)
            if log.state.outcome.ended:
                break
            waiting = log.state.waiting()
            with self._pause:  # ADK receives them in one message, so nothing runs in between
                for single in answer if isinstance(answer, tuple) else (answer,):
                    await send(invocation, waiting[single.call].id, single)
        log = await quiet(invocation)
        raised = await failure(invocation) if log.state.outcome.ended and log.state.outcome.ended == "failed" else None
        if not log.state.outcome.ended:
            await invocation.handle.terminate("the scenario is over")
        return record(
            [event_of(event.to_json(), final=event.is_final_response()) for event in log.state.events],
            {key: value for key, value in log.state.session.values.items() if not key.startswith("temp:")},
            requests,
            raised,
            parallel=scenario.parallel,
            artifacts=await self._saved(scenario, invocation.id),
        )

    async def _saved(self, scenario: Scenario, session_id: str) -> Json:
        where = {"app_name": scenario.name, "user_id": scenario.name, "session_id": session_id}
        names = await self._artifacts.list_artifact_keys(**where)
        return {name: await self._artifacts.list_versions(filename=name, **where) for name in names}


class Talk:
    """A conversation of several messages, in a session."""

    def __init__(self, client: AgentClient, scenario: Scenario, tenant: str | None) -> None:
        self._client, self._scenario, self._tenant = client, scenario, tenant
        self._where: Place = (scenario.name, "session")
        """User and session of the next message."""
        self._sessions: dict[Place, Session] = {}
        self._invocations: dict[Place, list[Invocation]] = {}

    async def record(self, requests: dict[str, list[Json]]) -> Json:
        """Run the conversation and return its record; `requests` receives the requests of the models."""
        await self._begin(self._scenario.state)
        await self._say(self._scenario.message)
        for sent in self._scenario.answers:
            if isinstance(sent, Elsewhere):
                self._where = (sent.user or self._scenario.name, sent.session)
                await self._begin(sent.state)
            if isinstance(sent, str | Elsewhere):
                if text := sent if isinstance(sent, str) else sent.text:
                    await self._say(text)
                continue
            for single in sent if isinstance(sent, tuple) else (sent,):
                invocations = self._invocations[self._where]
                waiting = [(each, call) for each in invocations for call in (await quiet(each)).state.waiting()]
                invocation, call = waiting[single.call]
                await send(invocation, call.id, single)
            await self._settled()
        everything = [each for invocations in self._invocations.values() for each in invocations]
        raised = [await failure(each) for each in everything if (await quiet(each)).state.outcome.ended]
        whole = record(
            [
                self._event(nth, event)
                for nth, session in enumerate(self._sessions.values())
                for event in await session.events()
            ],
            of_places({place: await session.state() for place, session in self._sessions.items()}),
            requests,
            next(filter(None, raised), None),
            parallel=self._scenario.parallel,
            artifacts={},
        )
        for session in self._sessions.values():
            await session.cancel()
        return whole

    async def _begin(self, state: Json) -> None:
        user, name = self._where
        if self._where not in self._sessions:
            agent = app = self._scenario.name
            self._sessions[self._where] = self._client.session(
                agent=agent, session_id=name, user_id=user, app=app, tenant=self._tenant
            )
            self._invocations[self._where] = []
            await self._sessions[self._where].create(state)

    async def _say(self, message: str | Json) -> None:
        self._invocations[self._where].append(await self._sessions[self._where].send(message))
        await self._settled()

    async def _settled(self) -> None:
        """Wait until no work is in flight, and the session has the events of all messages."""
        events = sum([len((await quiet(each)).state.events) for each in self._invocations[self._where]])
        async with asyncio.timeout(LIMIT_S):
            while len(await self._sessions[self._where].events()) < events:
                await asyncio.sleep(0.02)

    def _event(self, nth: int, event: Event) -> Json:
        """Return the compared fields of an event, with IDs of calls that are unique among invocations and sessions."""
        number = event.invocation_id.rpartition("/")[2]
        renumbered = re.sub(r"\bfc-(\d)", rf"fc-{nth or ''}0{number}000\1", json.dumps(event.to_json()))
        return event_of(json.loads(renumbered), final=event.is_final_response())


async def quiet(invocation: Invocation) -> Log:
    """Follow the invocation until it waits for a person or ends."""
    async with asyncio.timeout(LIMIT_S):
        async for log in invocation.follow():
            parked = isinstance(next_step(log), Wait) and log.state.waiting() and not is_working(log.state)
            if log.state.outcome.ended or (parked and log.state.unflushed() is None):
                return log
    raise AssertionError("The history ended without an end.")


async def send(invocation: Invocation, function_call_id: str, answer: Answer) -> JsonObject:
    """Send the answer of an ADK client: a confirmation, or a response to a long-running call."""
    fields: dict[str, Any] = {"response": answer.response} if answer.response else {}
    return await invocation.answer(answer.action, function_call_id, **fields)


async def failure(invocation: Invocation) -> str | None:
    """Return the type of the error with which the invocation failed."""
    try:
        await invocation.handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        return cause.type if isinstance(cause, ApplicationError) else type(cause).__name__
    return None
