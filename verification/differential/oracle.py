"""Answer with google-adk's results: one question per line on standard input, one answer per line on standard output.

Runs in the environment that has google-adk, with no network. A question names a scenario and the deviations for which
ADK has to be set up, or contains the source of functions to declare.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from verification.differential import names

names.stand_in()

from google.adk.agents import RunConfig  # noqa: E402  # after the alias, like all imports of scenarios
from google.adk.apps import App, ResumabilityConfig  # noqa: E402
from google.adk.artifacts import InMemoryArtifactService  # noqa: E402
from google.adk.events import Event  # noqa: E402
from google.adk.memory import InMemoryMemoryService  # noqa: E402
from google.adk.runners import Runner  # noqa: E402
from google.adk.sessions import InMemorySessionService  # noqa: E402
from google.adk.tools import FunctionTool  # noqa: E402
from google.genai import types  # noqa: E402

from verification.adk_agents.adk_scenarios import ADK_SCENARIOS  # noqa: E402
from verification.differential.adapted import adapted  # noqa: E402
from verification.differential.record import Place, event_of, of_places, record  # noqa: E402
from verification.differential.scenario import (  # noqa: E402
    Answer,
    Cast,
    Elsewhere,
    Json,
    Scenario,
)
from verification.differential.scripted_base_llm import Scripted, dumped  # noqa: E402
from verification.differential.signatures import functions_of  # noqa: E402
from verification.differential.tables import SCENARIOS  # noqa: E402

SESSION = "session"
REQUESTS = ("adk_request_confirmation", "adk_request_credential")


def user_content(message: str | Json) -> types.Content:
    """Return a user's message as a Content."""
    content = {"role": "user", "parts": [{"text": message}]} if isinstance(message, str) else message
    return types.Content.model_validate(content)


class Conversation:
    """One scenario on ADK's own runner."""

    def __init__(self, scenario: Scenario, deviations: Sequence[str]) -> None:
        self._scenario, self._deviations = scenario, deviations
        self.requests: dict[str, list[Json]] = {}
        self.raised: str | None = None
        self._closed: set[str] = set()
        self._where = (scenario.name, SESSION)
        """User and session of the next message."""

    def _model(self, label: str) -> Scripted:
        asked = self.requests.setdefault(label, [])
        return Scripted(self._scenario.model, self._scenario.script[label], asked)

    async def run(self) -> Json:
        """Run the conversation and return its record."""
        scenario = self._scenario
        cast = Cast(scenario.name, self._model)
        agent = scenario.agent(cast)
        facts = {name: scenario.deviations[name] for name in self._deviations}
        with adapted(agent, facts) as settings:
            app = App(
                name=scenario.name,
                root_agent=agent,
                plugins=list(scenario.plugins()),
                events_compaction_config=scenario.compaction(cast) if scenario.compaction else None,
                resumability_config=ResumabilityConfig(is_resumable=settings.resumable),
            )
            sessions = InMemorySessionService()
            artifacts = InMemoryArtifactService()
            runner = Runner(
                app=app, session_service=sessions, artifact_service=artifacts, memory_service=InMemoryMemoryService()
            )
            places = [self._where]
            await self._create(sessions, scenario.state)
            await self._say(runner, user_content(scenario.message))
            for answer in scenario.answers:
                if isinstance(answer, Elsewhere):
                    self._where = (answer.user or scenario.name, answer.session)
                    if self._where not in places:
                        places.append(self._where)
                        await self._create(sessions, answer.state)
                if isinstance(answer, str | Elsewhere):
                    if text := answer if isinstance(answer, str) else answer.text:
                        await self._say(runner, user_content(text))
                    continue
                if self.raised:
                    break
                session = await self._session(sessions, self._where)
                together = answer if isinstance(answer, tuple) else (answer,)
                waiting = self._waiting(session.events)
                if len(waiting) <= max(each.call for each in together):
                    break  # without the setup of a deviation, ADK may end earlier
                parts = [self._answer(waiting[each.call], each) for each in together]
                await self._say(runner, types.Content(role="user", parts=parts))
            found = {place: await self._session(sessions, place) for place in places}
        return record(
            [
                event_of(dumped(event), final=event.is_final_response())
                for session in found.values()
                for event in session.events
            ],
            of_places({place: dumped_state(session.state) for place, session in found.items()}),
            self.requests,
            self.raised,
            parallel=scenario.parallel,
            artifacts=await self._artifacts(artifacts),
        )

    async def _create(self, sessions: InMemorySessionService, state: Json) -> None:
        user, session = self._where
        await sessions.create_session(app_name=self._scenario.name, user_id=user, session_id=session, state=state)

    async def _session(self, sessions: InMemorySessionService, place: Place) -> Any:
        return await sessions.get_session(app_name=self._scenario.name, user_id=place[0], session_id=place[1])

    async def _say(self, runner: Runner, content: types.Content) -> None:
        limit = self._scenario.max_llm_calls
        config = RunConfig(max_llm_calls=limit) if limit else None
        try:
            async for _ in runner.run_async(
                user_id=self._where[0], session_id=self._where[1], new_message=content, run_config=config
            ):
                pass
        except Exception as error:  # noqa: BLE001  # whatever ADK raises is what is compared
            self.raised = type(error).__name__

    def _waiting(self, events: Sequence[Event]) -> list[types.FunctionCall]:
        """Return the pending calls that a client of ADK sees."""
        return [
            call
            for event in events
            for call in event.get_function_calls()
            if call.id in (event.long_running_tool_ids or ()) and call.id not in self._closed
        ]

    def _answer(self, call: types.FunctionCall, answer: Answer) -> types.Part:
        """Return the part with which a client of ADK answers a call."""
        if answer.action != "progress":
            self._closed.add(call.id or "")
        if call.name in REQUESTS:
            response: Json = {"confirmed": answer.action == "approve"}
            if answer.response:
                response["payload"] = answer.response
        else:
            response = answer.response
        return types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))

    async def _artifacts(self, artifacts: InMemoryArtifactService) -> Json:
        where = {"app_name": self._scenario.name, "user_id": self._scenario.name, "session_id": SESSION}
        return {
            name: await artifacts.list_versions(filename=name, **where)
            for name in await artifacts.list_artifact_keys(**where)
        }


def dumped_state(state: Json) -> Json:
    """Return the state as a database would store it, because ADK's in-memory service keeps live objects."""
    stored: Json = dumped(Event(author="user", actions={"state_delta": state})).get("actions", {}).get("stateDelta", {})
    return stored


def declarations(source: str) -> Json:
    """Return the declaration of each function in `source`, or the name of the exception that it raised."""
    found: Json = {}
    for name, function in functions_of(source).items():
        try:
            found[name] = dumped(FunctionTool(function)._get_declaration())
        except Exception as error:  # noqa: BLE001  # part of the answer
            found[name] = {"raised": type(error).__name__}
    return found


def answer(question: Json) -> Json:
    """Return the answer to one question."""
    if "source" in question:
        os.environ["GOOGLE_GENAI_USE_VERTEXAI"] = str(question["vertex"])
        try:
            return declarations(question["source"])
        finally:
            del os.environ["GOOGLE_GENAI_USE_VERTEXAI"]
    return asyncio.run(Conversation({**SCENARIOS, **ADK_SCENARIOS}[question["scenario"]], question["deviations"]).run())


def questions() -> Iterator[Json]:
    """Yield the questions until standard input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Answer until standard input ends."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    answers = sys.stdout
    for question in questions():
        with contextlib.redirect_stdout(sys.stderr):  # tools may print
            try:
                reply: Json = {"answer": answer(question)}
            except Exception:  # noqa: BLE001  # reported to the caller
                reply = {"failed": traceback.format_exc()}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
