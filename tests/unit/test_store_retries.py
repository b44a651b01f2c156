"""A store that is away for a moment is asked again, unless the work might then be done twice."""

from typing import Any

import pytest
from google.genai.types import Part
from temporalio.testing import ActivityEnvironment

from tests.unit.test_user_keys import SESSION, encode, keys, place, user_keys
from waystation.artifacts import InMemoryArtifactService
from waystation.core import KeyMissing, StoreFailed
from waystation.memory import InMemoryMemoryService, SearchMemoryResponse
from waystation.storage import store_retries
from waystation.tools import Services, ToolContext

__all__ = ["keys", "place"]


class Away:
    """Raises an error for the first two requests."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.requests, self._error = 0, error or StoreFailed("postgresql://h/x", "it does not answer")

    def answer(self) -> None:
        """Answer a request."""
        self.requests += 1
        if self.requests <= 2:
            raise self._error


class Memory(Away, InMemoryMemoryService):
    """Memories that cannot be searched at first."""

    async def search_memory(self, **about: Any) -> SearchMemoryResponse:
        """Return no memories."""
        self.answer()
        return SearchMemoryResponse()


class Artifacts(Away, InMemoryArtifactService):
    """Artifacts that cannot be saved at first."""

    async def save_artifact(self, **about: Any) -> int:
        """Save nothing."""
        self.answer()
        return 0


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(store_retries, "PAUSE_S", 0.0)


async def test_a_search_is_repeated_until_the_store_answers() -> None:
    """The tool does not notice that the store was away."""
    memory = Memory()
    context = ToolContext(services=Services(memory=memory), store_retry_s=15.0)
    assert (await context.search_memory("tea")).memories == []
    assert memory.requests == 3


@pytest.mark.parametrize(("error", "retry_s"), [(None, 0.0), (KeyMissing("no key"), 15.0)])
async def test_a_search_fails_at_once_if_waiting_does_not_help(error: Exception | None, retry_s: float) -> None:
    """A key that is missing does not arrive, and outside tool calls the activity itself is repeated."""
    memory = Memory(error)
    with pytest.raises(StoreFailed):
        await ToolContext(services=Services(memory=memory), store_retry_s=retry_s).search_memory("tea")
    assert memory.requests == 1


async def test_an_artifact_is_not_saved_again_without_an_idempotency_key() -> None:
    """The first request may have saved a version, although it failed."""
    artifacts = Artifacts()
    with pytest.raises(StoreFailed):
        await ToolContext(services=Services(artifacts=artifacts), store_retry_s=15.0).save_artifact("a", Part(text="a"))
    assert artifacts.requests == 1


@pytest.mark.usefixtures("keys")
async def test_the_result_of_an_activity_waits_for_the_store_of_user_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool has run, and its result would be lost."""
    found, read = Away(), user_keys()._read_current

    def read_late(*about: Any) -> Any:
        found.answer()
        return read(*about)

    monkeypatch.setattr(user_keys(), "_read_current", read_late)
    assert (await ActivityEnvironment().run(encode, SESSION)).metadata["encryption-key-id"].startswith(b"user-")
