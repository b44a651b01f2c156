"""`AgentClient` is made of parts; its own methods for them only delegate."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from waystation.client.agent_client import AgentClient
from waystation.client.invocation_handle import start_invocation
from waystation.core.errors import InvalidInput


class Recorder:
    """Records the one call that is made to a part, and returns a marker."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        async def record(*args: Any, **options: Any) -> str:
            self.calls.append((name, args, options))
            return "result"

        return record


@pytest.mark.parametrize(
    ("part", "method", "delegate", "args", "options"),
    [
        ("approvals", "pending", "pending", (), {"below": "i-1", "user_id": "ann", "tenant": "acme"}),
        ("_state", "user", "user_state", (), {"app": "shop", "user_id": "ann"}),
        ("_state", "app", "app_state", (), {"app": "shop"}),
        ("_state", "delete_user", "delete_user_state", (), {"app": "shop", "user_id": "ann"}),
        ("_state", "delete_app", "delete_app_state", (), {"app": "shop"}),
        ("sessions", "delete", "delete_session", ("s",), {"user_id": "ann", "app": "shop"}),
    ],
)
async def test_a_method_of_the_client_delegates_to_its_part(
    part: str, method: str, delegate: str, args: tuple[str, ...], options: dict[str, Any]
) -> None:
    """The method passes the same arguments and returns the same result."""
    client, recorder = AgentClient(None), Recorder()  # type: ignore[arg-type]  # nothing is sent
    setattr(client, part, recorder)
    assert await getattr(client, delegate)(*args, **options) == "result"
    [(called, given_args, given_kwargs)] = recorder.calls
    assert (called, given_args) == (method, args)
    assert given_kwargs.items() >= options.items()


async def test_sessions_are_listed_by_calling_them_too() -> None:
    """The call `client.sessions(...)` means `client.sessions.list(...)`."""

    class Server:
        def list_workflows(self, query: str) -> AsyncIterator[Any]:
            async def nothing() -> AsyncIterator[Any]:
                queries.append(query)
                for execution in list[Any]():
                    yield execution

            return nothing()

    queries: list[str] = []
    client = AgentClient(Server())  # type: ignore[arg-type]  # only lists
    assert [entry async for entry in client.sessions(agent="a")] == []
    assert [entry async for entry in client.sessions.list(agent="a")] == []
    assert len(queries) == 2
    assert len(set(queries)) == 1


def test_every_exported_name_exists() -> None:
    """Every exported name exists, even if it is loaded at first use."""
    import waystation.client
    import waystation.history

    for package in (waystation.client, waystation.history):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []


async def test_an_id_with_a_null_character_is_refused() -> None:
    """An ID with a null character is not sent, because a server on PostgreSQL would seem unavailable."""
    client: Any = None
    with pytest.raises(InvalidInput, match="null character"):
        await start_invocation(client, "a\0", {"agent": "payer", "message": "go"})
