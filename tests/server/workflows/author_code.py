"""Callbacks and tools of test agents, and the events that they cause."""

import pytest
from google.genai import types
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from waystation.client.agent_client import Invocation
from waystation.core.contract import Event


def content(text: str) -> types.Content:
    """Return a text as callbacks return it."""
    return types.Content(role="model", parts=[types.Part(text=text)])


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def fails() -> None:
    """Raise."""
    raise ValueError("out of order")


async def agent_events(invocation: Invocation) -> list[Event]:
    """Return the events of a finished invocation without the user's."""
    await invocation.result()
    return [event for event in (await invocation.log()).state.events if event.author != "user"]


def texts_of(events: list[Event]) -> list[str]:
    """Return the texts of events."""
    return [part["text"] for e in events for part in (e.content or {}).get("parts", ()) if "text" in part]


async def failure(invocation: Invocation) -> tuple[str, str]:
    """Return type and message with which an invocation failed."""
    with pytest.raises(WorkflowFailureError) as failed:
        await invocation.result()
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause.type or "", failed.value.cause.message
