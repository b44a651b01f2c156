"""The model's response contains what the approver added."""

from typing import Any

import pytest

from tests.unit.core.story import (
    answered,
    expired,
    log_of,
    model_called,
    model_calls,
    model_replied,
    responses,
    tool_returned,
    user_message,
)
from tests.unit.core.test_asking import request_confirmation
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Target
from waystation.core.conversation import prompt
from waystation.core.log import Body, CallLost, Failure
from waystation.core.log.responses import explain_undecrypted
from waystation.core.payload import JsonObject

PAY: JsonObject = {"amount": 5000, "to": "rose"}
EDIT: JsonObject = {"args": {"amount": 500, "to": "rose"}}
EDITED: JsonObject = {"amount": {"from": 5000, "to": 500}}
OF_TWO = ApprovalPolicy(quorum=2, verified=False)


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ({"action": "approve"}, {"status": "approved"}),
        ({"action": "reject"}, {"status": "rejected"}),
        (
            {"action": "approve", "response": {"limit": 9}, "comment": "fine", "by": "dana"},
            {"status": "approved", "limit": 9, "comment": "fine"},
        ),
        ({"action": "reject", "comment": "no budget"}, {"status": "rejected", "comment": "no budget"}),
        ({"action": "respond", "response": {"color": "red"}}, {"color": "red"}),
        ({"action": "respond", "response": {}, "comment": "not shown"}, {}),
    ],
)
def test_an_answer_becomes_the_response_of_the_wire_contract(answer: dict[str, Any], response: JsonObject) -> None:
    """The actions `approve` and `reject` become a status, and `respond` becomes its own response."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", final=False),
        answered("fc-1", **answer),
    )
    assert responses(log) == [("fc-1", response)]
    assert log.state.events[-1].author == "user"


def paid(*answers: Body, result: JsonObject | None = None, **fields: Any) -> JsonObject:
    """Return the response that the model receives to a payment after these answers."""
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True, args=PAY, **fields),
        *answers,
        tool_returned("fc-1", result or {"ok": 1}),
    )
    ((_, response),) = responses(log)[-1:]
    assert [part["functionResponse"]["response"] for part in prompt.contents(log)[-1]["parts"]] == [response]
    return response


@pytest.mark.parametrize(
    ("answer", "added"),
    [
        ({"comment": "never again"}, {"comment": "never again"}),
        ({"response": {"voucher": "V-17"}}, {"voucher": "V-17"}),
        ({"response": {"ok": 1}}, {}),
        ({"response": {"ok": True, "comment": "x"}, "comment": "y"}, {"comment": "y"}),
        ({"action": "edit", "by": "lena", **EDIT}, {"edited": {"by": "lena", "args": EDITED}}),
        (
            {"action": "edit", "args": {"amount": 5000, "by": "k"}},
            {"edited": {"args": {"to": {"from": "rose"}, "by": {"to": "k"}}}},
        ),
        (
            {"action": "edit", "args": {**PAY, "amount": 5000.0}},
            {"edited": {"args": {"amount": {"from": 5000, "to": 5000.0}}}},
        ),
        ({"action": "edit", "args": PAY}, {}),
        ({"action": "waive", "comment": "urgent"}, {"comment": "urgent"}),
    ],
)
def test_model_receives_what_the_approver_added(answer: JsonObject, added: JsonObject) -> None:
    """The response names the changed arguments and the approver who edited them."""
    assert paid(answered("fc-1", **answer)) == {"ok": 1, **added}


def test_result_of_the_tool_is_never_replaced() -> None:
    """A field of the approver gets a prefix if the tool's result has the same name."""
    answer = answered("fc-1", comment="fine", response={"ok": "paid"})
    expected = {"ok": 1, "comment": "by hand", "approver_ok": "paid", "approver_comment": "fine"}
    assert paid(answer, result={"ok": 1, "comment": "by hand"}) == expected


def test_a_response_names_all_approvers_of_a_quorum() -> None:
    """The response names the approver who changed the arguments, even if another approval was the last."""
    answers = (
        answered("fc-1", by="ann", comment="a"),
        answered("fc-1", "edit", by="ann", **EDIT),
        answered("fc-1", by="bob", comment="b"),
    )
    response = paid(*answers, approval=OF_TWO, declared="schema")
    assert response == {"ok": 1, "comment": "ann: a\nbob: b", "edited": {"by": "ann", "args": EDITED}}


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_comment_reaches_the_model_if_the_tool_itself_asked(action: str) -> None:
    """The comment reaches the model, even that of a rejection, which the tool handles itself."""
    answer = answered("fc-1", action, comment="because", response={"code": 7})
    log = log_of(
        user_message("pay"),
        model_calls("pay"),
        request_confirmation("fc-1"),
        model_called(),
        model_replied("ok"),
        answer,
        tool_returned("fc-1", {"ok": 1}, run=1),
    )
    assert responses(log)[-1] == ("fc-1", {"ok": 1, "comment": "because", "code": 7})


@pytest.mark.parametrize(
    ("action", "error"),
    [("reject", "This tool call is rejected."), ("cancel", "This tool call was cancelled by a person.")],
)
def test_a_refused_call_has_the_fields_of_the_answer(action: str, error: str) -> None:
    """An answer's fields cannot hide the refusal."""
    answer = answered("fc-1", action, comment="no", response={"error": "none", "code": 7})
    response = responses(log_of(user_message("pay"), model_calls("pay", gated=True), answer))[-1][1]
    assert {"error": error, "comment": "no", "code": 7, "approver_error": "none"}.items() <= response.items()


def test_an_expired_call_does_not_read_like_an_approval() -> None:
    """The response leaves out the comment of the only approver of a quorum of two."""
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True, approval=OF_TWO),
        answered("fc-1", by="ann", comment="fine"),
        expired("fc-1"),
    )
    assert responses(log)[-1][1].keys() == {"status", "error", "error_type"}


def test_long_running_call_keeps_the_changes_until_it_is_answered() -> None:
    """The model sees only the latest response, which still names the changes."""
    log = log_of(
        user_message("pay"),
        model_calls("pay", kind="long_running", gated=True, args=PAY),
        answered("fc-1", "edit", comment="less", **EDIT),
        tool_returned("fc-1", {"status": "sent"}, final=False),
        answered("fc-1", "respond", response={"status": "done"}),
    )
    assert [response for id, response in responses(log) if id == "fc-1"] == [
        {"status": status, "comment": "less", "edited": {"args": EDITED}} for status in ("sent", "done")
    ]


def test_payload_of_a_confirmation_may_be_any_value() -> None:
    """The tool receives it, and the model does not."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), answered("fc-1", payload=[]))
    assert (log.state.calls["fc-1"].tool_confirmation() or {})["payload"] == []
    assert responses(log)[-1][1] == {"confirmed": True, "payload": []}


@pytest.mark.parametrize(
    "message",
    [
        "Failed to parse activity args for activity ship: Unknown encoding: binary/encrypted",
        "unable to decode the activity function input payload with error: payload item 0: encoding binary/encrypted: "
        "payload encoding is not supported for function name: ship",
        "No PayloadConverter is registered for an encoding: binary/encrypted",
        "'Unknown payload encoding binary/encrypted'",
        "Failed decoding arguments",
    ],
    ids=["TypeScript", "Go", "Java", "Python, cause", "Python"],
)
def test_the_error_of_a_worker_that_cannot_decrypt_names_the_remedy(message: str) -> None:
    """The model receives the cause and the remedy, in place of the error of the SDK."""
    target = Target(name="ship")
    log = log_of(
        user_message("go"),
        model_calls("ship", target=target, task_queue="plain"),
        CallLost("fc-1", Failure(kind="error", error_type="Error", message=message)),
    )
    [(_, response)] = responses(log)
    assert "The worker of task queue plain" in response["error"]
    assert "decrypt its input" in response["error"]
    assert "give it `waystation.data_converter()` or a codec" in response["error"]


def test_other_errors_of_a_worker_stay_as_they_are() -> None:
    """Only an error about the encoding is explained."""
    assert explain_undecrypted("The order was not found.", "plain") == ""
