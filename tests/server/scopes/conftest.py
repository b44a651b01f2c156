"""Scopes outlive a test, so each test has its own app. Its scopes are replayed afterwards."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.scopes.looking import scope_ids
from waystation.agents import BaseAgent
from waystation.replay import replay
from waystation.testing import AgentEnvironment


@pytest.fixture
def app() -> str:
    """Return the name of an app that no other test has."""
    return f"shop-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def serve(serve: Serve, app: str) -> Serve:
    """Serve as usual, then replay the scopes of the test's app and check that no workflow task failed."""

    @contextlib.asynccontextmanager
    async def serving(*agents: BaseAgent, **options: Any) -> AsyncIterator[AgentEnvironment]:
        async with serve(*agents, **options) as env:
            yield env
            for scope_id in await scope_ids(env, app):
                history = await env.temporal.get_workflow_handle(scope_id).fetch_history()
                failed = [e for e in history.events if e.HasField("workflow_task_failed_event_attributes")]
                assert failed == [], scope_id
                await replay(history)

    return serving
