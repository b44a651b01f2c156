"""Recorded forms omit values that other recorded values determine, and readers restore them."""

from typing import Any

import pytest

from waystation.core.approval import PendingCall, default_hint
from waystation.core.budget import Spent
from waystation.core.contract import (
    Call,
    Confirmation,
    InvocationInput,
    InvocationReport,
    InvocationResult,
    ModelReply,
    SessionLink,
    ToolOutcome,
)
from waystation.core.log import (
    CallLost,
    CallRef,
    CallReturned,
    Ended,
    Entry,
    Failure,
    ModelCalled,
    ModelReplied,
    parse_ref,
)
from waystation.core.payload import JsonObject, decode
from waystation.core.projection import entries_from_json, entries_to_json

TEXT = "It is on its way."
CONTENT: JsonObject = {"role": "model", "parts": [{"text": TEXT}]}
SIGNED: JsonObject = {"role": "model", "parts": [{"text": TEXT, "thoughtSignature": "c2ln"}]}


def entries(content: JsonObject) -> list[Entry]:
    """Return the entries of an invocation that only replies."""
    reply = ModelReply(content=content, finish_reason="STOP", attempt=1, mark="abc")
    bodies = (">1", ModelCalled(1)), ("m1.abc", ModelReplied(1, reply)), ("end", Ended("completed"))
    return [Entry(parse_ref(ref), 1_000.25, body) for ref, body in bodies]


def result(content: JsonObject) -> InvocationResult:
    """Return the result of an invocation of a session."""
    report = InvocationReport(since=1, entries=tuple(entries_to_json(entries(content))), state_delta={"seen": [1]})
    spent = Spent(model_calls=1)
    return InvocationResult(text=TEXT, content=content, state_delta={"seen": [1]}, spent=spent, report=report)


@pytest.mark.parametrize("content", [CONTENT, SIGNED])
def test_a_result_survives_a_round_trip(content: JsonObject) -> None:
    """The content, the entries and the state of the report are restored."""
    assert InvocationResult.model_validate(decode(result(content).encode())) == result(content)


def test_a_result_contains_its_text_once() -> None:
    """The content contains this text, and the entries of the report refer to the content."""
    assert result(CONTENT).encode().count(TEXT.encode()) == 1


def test_a_result_leaves_out_empty_fields() -> None:
    """Only the status and the text are always present."""
    assert decode(InvocationResult().encode()) == {"status": "completed", "text": ""}


def test_a_result_without_content_is_read_without_it() -> None:
    """A result without content is read without content, because its text may be only a part of the reply."""
    read = InvocationResult.model_validate({"text": TEXT, "omitted": ["content"]})
    assert read.content is None


def test_a_result_of_an_earlier_version_is_read() -> None:
    """A result of an earlier version has all fields, and is read without references between them."""
    whole = result(CONTENT)
    assert InvocationResult.model_validate(whole.model_dump(mode="json")) == whole


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply(content=CONTENT, finish_reason="STOP", attempt=1),
        ModelReply(content=CONTENT, finish_reason=None, attempt=2),
        ModelReply(),
        ModelReply(
            content={"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}, "id": "fc-1"}}]},
            calls=(Call(id="fc-1"),),
        ),
        ModelReply(
            content={"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}, "id": "fc-1"}}]},
            calls=(Call(id="fc-1", retries=2),),
        ),
    ],
)
def test_a_reply_survives_a_round_trip(reply: ModelReply) -> None:
    """Default values and calls without annotations are restored."""
    assert ModelReply.model_validate(decode(reply.encode())).restored() == reply


def test_a_reply_with_other_calls_than_annotations_is_refused() -> None:
    """The workflow would not know how to run the call."""
    parts = [{"functionCall": {"name": "look", "id": f"fc-{n}"}} for n in (1, 2)]
    reply = ModelReply.model_validate({"content": {"parts": parts}, "calls": [{"id": "fc-1"}]})
    with pytest.raises(ValueError, match="annotation"):
        reply.restored()


def pending(**fields: Any) -> PendingCall:
    """Return a pending confirmation, with other fields if given."""
    usual: JsonObject = {
        "function_call_id": "fc-1",
        "invocation_id": "inv",
        "agent": "payer",
        "tool": "pay",
        "args": {},
    }
    usual |= {"kind": "confirmation", "digest": "d", "requested_at": 1.0, "deadline": 2.0, "user_id": "dana"}
    return PendingCall.model_validate(usual | fields)


@pytest.mark.parametrize(
    "call",
    [
        pending(hint=default_hint("pay")),
        pending(hint=""),
        pending(hint="Really?", payload={"limit": 5}),
        pending(kind="long_running", approved_by=("ann",), level=1),
    ],
)
def test_a_pending_call_survives_a_round_trip_through_the_memo(call: PendingCall) -> None:
    """The invocation, the defaults and ADK's hint are restored from the reader's own knowledge."""
    assert PendingCall.from_memo(call.to_memo(1_000), "inv") == call


def test_the_memo_does_not_contain_the_default_hint() -> None:
    """The default hint is left out of the memo, because it is longer than all other fields."""
    assert "hint" not in pending(hint=default_hint("pay")).to_memo(1_000)


def test_a_default_hint_is_not_recorded() -> None:
    """A tool's own hint is recorded, even if it is empty."""
    usual, own, none = Confirmation(hint=default_hint("pay")), Confirmation(hint="Really?"), Confirmation()
    assert usual.shortened("pay").hint == ""
    assert [asked.shortened("pay").resolved("pay") for asked in (usual, own, none)] == [usual, own, none]


def test_entries_leave_out_what_their_references_contain() -> None:
    """The kind, the number and a repeated time are left out."""
    assert entries_to_json(entries(CONTENT))[0] == {"ref": ">1", "time": 1_000.25}
    assert "time" not in entries_to_json(entries(CONTENT))[1]


@pytest.mark.parametrize("run", [0, 1])
def test_entries_that_differ_from_their_references_survive_a_round_trip(run: int) -> None:
    """No value is lost, although a default is recorded nowhere else."""
    outcome = CallReturned(ToolOutcome(function_call_id="fc-1"), run)
    lost = CallLost("fc-2", Failure(kind="error"), run)
    written = [Entry(CallRef("fc-1", 1), 1.0, outcome), Entry(CallRef("fc-3"), 1.0, lost)]
    assert entries_from_json(entries_to_json(written)) == written


def test_entries_of_an_earlier_version_are_read() -> None:
    """Entries of an earlier version, which contain all fields, are read."""
    recorded = {"ref": ">1", "time": 1.0, "kind": "model_called", "body": {"number": 1}}
    assert entries_from_json([recorded]) == [Entry(parse_ref(">1"), 1.0, ModelCalled(1))]


def test_an_invocation_of_a_session_completes_its_input_from_its_parent() -> None:
    """The parent's ID contains the session ID, and the server reports both IDs of the parent."""
    parent = "session/app/dana/my%20session"
    link = SessionLink(id=parent, run_id="run", number=2, reports=("1@1",))
    started = InvocationInput(agent="a", message="m", session_id="my session", session=link)
    assert started.for_child() != started
    assert started.for_child().from_parent(parent, "run") == started


def test_an_input_without_a_parent_is_not_changed() -> None:
    """Any client can send an empty link."""
    started = InvocationInput(agent="a", message="m", session_id="s", session=SessionLink(number=1))
    assert started.from_parent("", "") == started
