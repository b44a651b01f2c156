"""Values of models in the messages of A2A."""

from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.utils.errors import InternalError
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from structlog.testing import CapturingLogger

from waystation.interfaces.a2a_server import task_requests
from waystation.interfaces.a2a_server.task_requests import READER, serve_person
from waystation.interfaces.a2a_server.task_views import EXTENSION, TaskRef, to_json


def nest(depth: int) -> Any:
    """Return a list in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [nest(20), nest(58), nest(199), 10**400, {"a": [None, 1.5, "x"]}, None])
def test_every_value_of_a_model_fits_into_metadata(value: Any) -> None:
    """A value that no message can contain becomes its JSON text, so that the task can still be read."""
    shown = to_json(value)
    assert ParseDict({EXTENSION: {"calls": [{"args": shown}]}}, Struct())
    assert shown == value or isinstance(shown, str)


@pytest.mark.parametrize(
    "id",
    [
        "inv-1",
        "session/app/dana/s",
        "session/app/dana/s/1/fc-1",
        "session/app/dana/s/1/7",
        "session/app/dana/s/1/push:0",
        "session/app/da%6ea/s/1",
        "session/app/dana/../s/1",
        "scope/app/dana/1",
    ],
)
def test_only_invocations_of_sessions_are_tasks(id: str) -> None:
    """Sessions, called agents, deliveries and other spellings of an owner have no task ID."""
    assert TaskRef.of(id) is None


def test_an_unexpected_error_reveals_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of an error in our own code, which may quote a token, reaches neither the client nor the log."""
    context, logger = ServerCallContext(state={READER: None}), CapturingLogger()
    monkeypatch.setattr(task_requests, "events", logger)
    with pytest.raises(InternalError) as raised, serve_person(context):
        raise KeyError(f"token-{context.state[READER]}")
    assert "token-None" not in f"{raised.value.message} {logger.calls}"
    assert [(call.args, call.kwargs["error_type"]) for call in logger.calls] == [(("a2a.failed",), "KeyError")]
