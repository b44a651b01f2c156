"""Runners with ADK's methods. Agents run in a worker in the program's process, and histories are in Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from google.genai import types

from waystation.activities import close_plugins
from waystation.agents import BaseAgent, RunConfig
from waystation.agents.toolbox import close_toolsets
from waystation.apps import App
from waystation.apps.registry import Registry
from waystation.artifacts import BaseArtifactService, InMemoryArtifactService
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject
from waystation.errors import SessionNotFoundError
from waystation.events import Event
from waystation.extensions import adapt_plugins, find_adapter
from waystation.memory import BaseMemoryService, InMemoryMemoryService
from waystation.runners.app_worker import AppWorker, check_agents
from waystation.runners.debug_output import print_event
from waystation.runners.session_turns import SessionTurns
from waystation.sessions import BACKGROUND, BaseSessionService, InMemorySessionService, RecordedSessionService
from waystation.tools.services import Services

if TYPE_CHECKING:
    from waystation.auth import BaseCredentialService
    from waystation.client import Invocation
    from waystation.plugins import BasePlugin

T = TypeVar("T")


class Runner:
    """Runs an agent in sessions. The constructor and the methods match ADK 2.13.

    The server is the one that TEMPORAL_ADDRESS or the profile specifies, or else an embedded server that the programs
    of a folder share. It keeps running when the program ends.
    """

    def __init__(
        self,
        *,
        app: App | None = None,
        app_name: str | None = None,
        agent: BaseAgent | None = None,
        node: Any = None,
        plugins: list[BasePlugin] | None = None,
        artifact_service: BaseArtifactService | None = None,
        session_service: BaseSessionService,
        memory_service: BaseMemoryService | None = None,
        credential_service: BaseCredentialService | None = None,
        plugin_close_timeout: float = 5.0,
        auto_create_session: bool = False,
    ) -> None:
        """Create a runner for an app or an agent, also of google-adk. Nothing is started before the first message.

        Raises:
            ValueError: Not exactly one of `app` and `agent` is given, or an agent without `app_name`.
            TypeError: The session service is not one of Waystation's.
            AuthoringError: An agent is declared incorrectly, or no installed adapter serves its model's name.
        """
        self.app = _resolve_app(app, app_name, agent, node, plugins)
        self.app_name = app_name or self.app.name
        self.agent = self.app.root_agent
        if not isinstance(session_service, RecordedSessionService):
            raise TypeError(
                f"`session_service` is {type(session_service).__name__}, which does not record histories in Temporal. "
                "Use InMemorySessionService or DatabaseSessionService from waystation.sessions."
            )
        self.session_service = session_service
        self.artifact_service = artifact_service
        self.memory_service = memory_service
        self.credential_service = credential_service
        self.auto_create_session = auto_create_session
        (self._root,) = Registry.of(self.app).roots.values()
        check_agents(self._root, credentials=False)
        self._is_checked = False
        self._turns: dict[tuple[str, str, int], SessionTurns] = {}
        """The turns in each session, by user ID, session ID, and number of deleted sessions with that ID."""
        self._current: dict[tuple[str, str], Invocation] = {}
        """The invocation that was followed most recently, by user ID and session ID."""

    def run(
        self,
        *,
        user_id: str,
        session_id: str,
        new_message: types.Content,
        state_delta: dict[str, Any] | None = None,
        run_config: RunConfig | None = None,
    ) -> Generator[Event]:
        """Run the agent, and yield the events, as `run_async` does."""
        stream = self._stream(user_id, session_id, None, new_message, state_delta, run_config)
        try:
            while (event := BACKGROUND.submit(_advance(stream)).result()) is not None:
                yield event
        finally:
            BACKGROUND.discard(stream)

    async def run_async(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str | None = None,
        new_message: types.Content | None = None,
        state_delta: dict[str, Any] | None = None,
        run_config: RunConfig | None = None,
        yield_user_message: bool = False,
        abort_signal: asyncio.Event | None = None,
    ) -> AsyncGenerator[Event]:
        """Send a message or function responses, and yield the events until the agent has finished or waits.

        If the caller stops early, the invocation continues for as long as the program runs.

        Args:
            user_id: The session's user.
            session_id: ID of the session.
            invocation_id: The invocation to continue to follow. Used only without `new_message`.
            new_message: A message, or responses to the pending calls of one invocation.
            state_delta: Changes to the session's state, applied before the agent runs. Not for function responses.
            run_config: Limits and options.
            yield_user_message: Whether to yield the message first.
            abort_signal: Cancels the invocation when it is set.

        Raises:
            SessionNotFoundError: The session does not exist.
            ValueError: The message is not valid, for example because the response to a request for a confirmation does
                not say whether the call is confirmed. Nothing was sent.
            AuthoringError: An agent's model has no credentials.
            InvocationError: The invocation failed.
        """
        stream = self._stream(user_id, session_id, invocation_id, new_message, state_delta, run_config)
        if yield_user_message and new_message is not None:
            yield Event(author="user", content=new_message)
        try:
            while (event := await self._advance(stream, abort_signal)) is not None:
                yield event
            if abort_signal is not None and abort_signal.is_set() and (user_id, session_id) in self._current:
                await BACKGROUND.call(self._current[user_id, session_id].handle.cancel())
        finally:
            BACKGROUND.discard(stream)

    async def run_debug(
        self,
        user_messages: str | list[str],
        *,
        user_id: str = "debug_user_id",
        session_id: str = "debug_session_id",
        run_config: RunConfig | None = None,
        quiet: bool = False,
        verbose: bool = False,
    ) -> list[Event]:
        """Send messages, print the replies unless `quiet` is set, and return all events.

        With `verbose`, calls and their results are printed, too. The session is created if it does not exist.
        """
        service, app_name = self.session_service, self.app_name
        if await service.get_session(app_name=app_name, user_id=user_id, session_id=session_id) is None:
            await service.create_session(app_name=app_name, user_id=user_id, session_id=session_id)
        collected: list[Event] = []
        for message in [user_messages] if isinstance(user_messages, str) else user_messages:
            content = types.UserContent(parts=[types.Part(text=message)])
            events = self.run_async(user_id=user_id, session_id=session_id, new_message=content, run_config=run_config)
            async with contextlib.aclosing(events):
                async for event in events:
                    collected.append(event)
                    if not quiet:
                        print_event(event, verbose=verbose)
        return collected

    async def run_live(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        live_request_queue: Any,
        run_config: RunConfig | None = None,
        session: Any = None,
    ) -> AsyncGenerator[Event]:
        """Refuse live mode.

        Raises:
            NotImplementedError: Always. Audio streams cannot be recorded.
        """
        raise NotImplementedError(
            "`run_live` is not supported, because live audio and video are not recorded. Use `run_async`, with "
            "`RunConfig(streaming_mode=StreamingMode.SSE)` for text while it is generated."
        )
        yield Event()  # makes this an async generator, as in ADK

    async def rewind_async(
        self,
        *,
        user_id: str,
        session_id: str,
        rewind_before_invocation_id: str,
        run_config: RunConfig | None = None,
    ) -> None:
        """Refuse to rewind a session.

        Raises:
            NotImplementedError: Always. Recorded events are not removed.
        """
        raise NotImplementedError(
            f"`rewind_async` is not supported: what invocation {rewind_before_invocation_id!r} and later ones did is "
            "recorded and stays visible. Fork an earlier invocation with `AgentClient.forks` or `waystation fork`."
        )

    async def close(self) -> None:
        """Stop serving the agent, and close its toolsets and plugins."""

        async def close() -> None:
            AppWorker.remove(self._root)
            await close_plugins(self._root.plugins)
            await close_toolsets([self._root.agent])

        await BACKGROUND.call(close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _stream(
        self,
        user_id: str,
        session_id: str,
        invocation_id: str | None,
        message: types.Content | None,
        state_delta: dict[str, Any] | None,
        run_config: RunConfig | None,
    ) -> AsyncGenerator[Event]:
        """Yield the events of one turn. This generator belongs to the background's event loop."""
        responses = _check_message(message, invocation_id)
        if responses and state_delta:
            raise ValueError(
                "`state_delta` cannot be sent with function responses, because a waiting invocation keeps its state. "
                "Put the values into the response, or send the change with the next message."
            )
        if not self._is_checked:  # the program may set the credentials after it has created the runner
            check_agents(self._root)
            self._is_checked = True
        if isinstance(self.artifact_service, InMemoryArtifactService):
            await self.artifact_service.keep_in(self.session_service.run.folder / "artifacts")
        if isinstance(self.memory_service, InMemoryMemoryService):
            self.memory_service.keep_in(self.session_service.run.folder / "memories.json")
        turns = await self._find_turns(user_id, session_id)
        worker = await AppWorker.serving(
            self.session_service.task_queue(self.app_name),
            self._root,
            Services(artifacts=self.artifact_service, memory=self.memory_service, credentials=self.credential_service),
        )
        own: list[int] = []
        if message is None:
            invocation, start = await turns.find(invocation_id or "")
        elif responses:
            invocation, own = await worker.waiting_for(turns.respond(responses))
            start = min(own)
        else:
            sending = turns.send(_to_json(message), state_delta, run_config)
            invocation, start = await worker.waiting_for(sending)
        self._current[user_id, session_id] = invocation
        streaming = run_config is not None and run_config.streaming
        events = turns.events(invocation, start, worker.pace, own=own, streaming=streaming)
        async with contextlib.aclosing(events):
            while (event := await worker.waiting_for(anext(events, None))) is not None:
                yield Event.from_recorded(event)

    async def _advance(self, stream: AsyncGenerator[Event], abort_signal: asyncio.Event | None) -> Event | None:
        """Return the next event, or None if there is none or `abort_signal` is set."""
        advance = asyncio.ensure_future(BACKGROUND.call(_advance(stream)))
        waiting = [advance] if abort_signal is None else [advance, asyncio.ensure_future(abort_signal.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return advance.result() if advance.done() else None
        finally:
            for task in waiting:
                task.cancel()

    async def _find_turns(self, user_id: str, session_id: str) -> SessionTurns:
        service = self.session_service
        key = user_id, session_id, service.deletions[self.app_name, user_id, session_id]
        if turns := self._turns.get(key):
            return turns
        session = await service.handle(self.app_name, user_id, session_id, self._root.agent.name)
        if not await service.exists(session):
            if not self.auto_create_session:
                raise SessionNotFoundError(f"Session not found: {session_id}")
            await service.start(await service.handle(self.app_name, user_id, session_id))
        self._turns[key] = turns = SessionTurns(service, session)
        return turns


async def _advance(stream: AsyncGenerator[Event]) -> Event | None:
    return await anext(stream, None)


def _resolve_app(
    app: App | None, app_name: str | None, agent: BaseAgent | None, node: Any, plugins: list[BasePlugin] | None
) -> App:
    if node is not None:
        raise ValueError("`node` is not supported, because workflow nodes are not. Pass an agent or an app.")
    if app is not None and agent is not None:
        raise ValueError("Only one of app, agent, or node may be provided. Pass exactly one to Runner().")
    if app is not None:
        if plugins is not None:
            raise ValueError("When app is provided, plugins should not be provided and should be provided in the app.")
        return _adapt(app, App, "app")
    if agent is None:
        raise ValueError("One of app, agent, or node must be provided. Got none. Pass exactly one to Runner().")
    if not app_name:
        raise ValueError("app_name is required when agent is provided without app.")
    if plugins is not None:
        warnings.warn("The `plugins` argument is deprecated. Please use the `app` argument.", DeprecationWarning, 3)
    # As in ADK, the name may be one that `App` refuses.
    root_agent = _adapt(agent, BaseAgent, "agent")
    return App.model_construct(name=app_name, root_agent=root_agent, plugins=adapt_plugins(plugins or []))


def _adapt(given: object, kind: type[T], name: str) -> T:
    """Return an agent or app, adapted if it is one of google-adk.

    Raises:
        TypeError: It is neither.
        AuthoringError: google-adk is not installed, or the agent cannot run.
    """
    adapter = find_adapter(given)
    adapted = adapter.adapt_agent(given) if adapter else given
    if not isinstance(adapted, kind):
        raise TypeError(f"`{name}` is {with_article(given)}; pass an instance of {kind.__name__}.")
    return adapted


def _check_message(message: types.Content | None, invocation_id: str | None) -> list[types.FunctionResponse]:
    """Return the function responses in a message.

    Raises:
        ValueError: The message is not valid.
    """
    if message is None:
        if invocation_id is None:
            raise ValueError("Running an agent requires either a new_message or an invocation_id.")
        return []
    parts = message.parts or []
    if any(part.function_call for part in parts):
        raise ValueError("User message cannot contain function calls.")
    responses = [part.function_response for part in parts if part.function_response]
    if responses and any(part.text for part in parts):
        raise ValueError(
            "Message cannot contain both function responses and text. Function responses resume an existing invocation "
            "while text starts a new one."
        )
    return responses


def _to_json(message: types.Content) -> JsonObject:
    content: JsonObject = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    return content | {"role": "user"}


class InMemoryRunner(Runner):
    """A runner with its own in-memory services. Sessions are recorded nevertheless; see `InMemorySessionService`."""

    def __init__(
        self,
        agent: BaseAgent | None = None,
        *,
        node: Any = None,
        app_name: str | None = None,
        plugins: list[BasePlugin] | None = None,
        app: App | None = None,
        plugin_close_timeout: float = 5.0,
    ) -> None:
        """Create a runner; see `Runner`. Without an app, `app_name` is `InMemoryRunner` by default."""
        super().__init__(
            app=app,
            app_name=app_name or (None if app else "InMemoryRunner"),
            agent=agent,
            node=node,
            plugins=plugins,
            artifact_service=InMemoryArtifactService(),
            session_service=InMemorySessionService(),
            memory_service=InMemoryMemoryService(),
            plugin_close_timeout=plugin_close_timeout,
        )
