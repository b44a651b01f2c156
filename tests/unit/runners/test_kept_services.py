"""In-memory services of a runner keep their content if the program is killed and resumed."""

from pathlib import Path
from typing import Any

from google.genai import types

from waystation.artifacts import InMemoryArtifactService
from waystation.events import Event
from waystation.memory import InMemoryMemoryService
from waystation.sessions import Session

PLACE: dict[str, Any] = {"app_name": "app", "user_id": "ann", "session_id": "s"}


def text(content: str) -> types.Part:
    """Return a part with text."""
    return types.Part(text=content)


async def saved(service: InMemoryArtifactService, *contents: str) -> list[int]:
    """Save versions of one artifact, and return their numbers."""
    return [await service.save_artifact(**PLACE, filename="a.txt", artifact=text(content)) for content in contents]


async def test_a_resumed_program_does_not_save_an_artifact_again(tmp_path: Path) -> None:
    """Artifacts from before and after the first message have the same versions in each run."""
    for service in (InMemoryArtifactService(), InMemoryArtifactService()):
        assert await saved(service, "early") == [0]
        await service.keep_in(tmp_path)
        assert await saved(service, "same", "same") == [1, 2]
        assert await service.list_versions(**PLACE, filename="a.txt") == [0, 1, 2]


async def test_an_artifact_of_a_tool_outlives_the_program(tmp_path: Path) -> None:
    """A finished tool does not run again, so its artifact must be found."""
    first, second = InMemoryArtifactService(), InMemoryArtifactService()
    await first.keep_in(tmp_path)
    await first.save_artifact_once(**PLACE, filename="a.txt", artifact=text("made"), idempotency_key="fc-1")
    await second.keep_in(tmp_path)
    assert await second.load_artifact(**PLACE, filename="a.txt") == text("made")


async def test_memories_outlive_the_program(tmp_path: Path) -> None:
    """A resumed program finds its memories, and adding its session again adds nothing."""
    event = Event(id="e1", author="user", content=types.Content(role="user", parts=[text("Sales rose.")]))
    session = Session(id="s", app_name="app", user_id="ann", events=[event])
    for number in range(2):
        service = InMemoryMemoryService()
        service.keep_in(tmp_path / "memories.json")
        matches = await service.search_memory(app_name="app", user_id="ann", query="sales")
        assert len(matches.memories) == number
        await service.add_session_to_memory(session)  # type: ignore[arg-type]
