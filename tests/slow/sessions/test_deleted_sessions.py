"""Sessions of a program that are deleted and created again. The server deletes a workflow after about 30 seconds."""

import contextlib
from pathlib import Path

import pytest
from google.genai import types

from waystation.agents import Agent
from waystation.embedded import EmbeddedServer
from waystation.errors import SessionNotFoundError
from waystation.runners import Runner
from waystation.sessions import BACKGROUND, InMemorySessionService
from waystation.sessions.program_run import ProgramRun
from waystation.testing import FunctionModel, says

APP, USER, SESSION = "app", "ann", "s"


async def test_a_deleted_session_does_not_exist_and_can_be_created_again(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner finds no session, and the new session has no data of the deleted one."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ProgramRun, "_opened", {})
    service = InMemorySessionService()
    model = FunctionModel(lambda request: says(f"{len(request.contents)} so far"))
    runner = Runner(agent=Agent(name="clerk", model=model), app_name=APP, session_service=service)

    async def say() -> list[str]:
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        events = runner.run_async(user_id=USER, session_id=SESSION, new_message=message)
        return [part.text or "" async for event in events if event.content for part in event.content.parts or ()]

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(lambda: BACKGROUND.call(BACKGROUND.stop_workers()))
        await service.create_session(app_name=APP, user_id=USER, session_id=SESSION, state={"city": "Bern"})
        assert await say() == ["1 so far"]
        assert await say() == ["3 so far"]
        await service.delete_session(app_name=APP, user_id=USER, session_id=SESSION)
        assert await service.get_session(app_name=APP, user_id=USER, session_id=SESSION) is None
        assert (await service.list_sessions(app_name=APP, user_id=USER)).sessions == []
        with pytest.raises(SessionNotFoundError):
            await say()
        created = await service.create_session(app_name=APP, user_id=USER, session_id=SESSION)
        assert (created.state, created.events) == ({}, [])
        assert await say() == ["1 so far"]
