"""Tools may request a confirmation or a credential while they run."""

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
from waystation.core.approval import Answer
from waystation.core.contract import EventActions, ToolConfirmation
from waystation.core.conversation import prompt
from waystation.core.errors import DigestMismatch, InvalidAnswer
from waystation.core.log import CallModel, Finish, Log, Perform, Wait, decision, next_step, parse_ref
from waystation.core.payload import JsonObject, digest

CONFIG = {"credentialKey": "github", "authScheme": {"type": "oauth2"}}


def request_confirmation(*ids: str, **fields: Any) -> list[Any]:
    """Return results of tools that give an interim response and request a confirmation."""
    return [
        tool_returned(
            id,
            {"status": "asked"},
            actions=EventActions(requested_tool_confirmations={id: ToolConfirmation(hint="Sure?", payload={"n": 1})}),
            **fields,
        )
        for id in ids
    ]


def request_login(*ids: str) -> list[Any]:
    """Return results of tools that give an interim response and request a credential."""
    return [
        tool_returned(id, {"pending": True}, actions=EventActions(requested_auth_configs={id: CONFIG})) for id in ids
    ]


def kinds(log: Log) -> list[str]:
    """Return the events as `author: content`."""
    lines = []
    for event in log.state.events:
        calls = [call["name"] for call in event.function_calls()]
        answers = [f"{response['name']}=" for response in event.function_responses()]
        texts = [part["text"] for part in (event.content or {}).get("parts", ()) if "text" in part]
        lines.append(f"{event.author}: {' '.join([*calls, *answers, *texts])}")
    return lines


def test_the_model_continues_while_a_confirmation_is_pending() -> None:
    """The model receives the interim response of the tool and continues; see adk-semantics 2.2."""
    log = log_of(user_message("go"), model_calls("tool"), *request_confirmation("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    assert kinds(log)[1:] == ["ag: tool", "ag: adk_request_confirmation", "ag: tool="]
    [pending] = log.state.pending()
    assert (pending.kind, pending.hint, pending.payload, pending.interim) == (
        "confirmation",
        "Sure?",
        {"n": 1},
        {"status": "asked"},
    )


def test_a_finished_sibling_call_precedes_the_request() -> None:
    """The responses precede the confirmation request, in ADK's order."""
    log = log_of(
        user_message("go"), model_calls("tool", "other"), tool_returned("fc-2", {}), *request_confirmation("fc-1")
    )
    assert kinds(log)[2:] == ["ag: tool= other=", "ag: adk_request_confirmation"]


@pytest.mark.parametrize(("action", "confirmed"), [("approve", True), ("reject", False)])
def test_a_tool_that_asked_runs_again_after_any_answer(action: str, confirmed: bool) -> None:
    """A tool that requested a confirmation also runs again after a rejection, because it handles the answer itself."""
    log = log_of(user_message("go"), model_calls("tool"), *request_confirmation("fc-1"), [model_replied("asked")])
    assert next_step(log) == CallModel(0, "turn")
    log = log_of(
        user_message("go"),
        model_calls("tool"),
        *request_confirmation("fc-1"),
        answered("fc-1", action, response={"n": 2}),
    )
    assert next_step(log) == Perform(("fc-1",))
    assert log.state.calls["fc-1"].run == 1
    assert log.state.calls["fc-1"].tool_confirmation() == {"hint": "Sure?", "confirmed": confirmed, "payload": {"n": 2}}


@pytest.mark.parametrize("request_of", [request_confirmation, request_login])
def test_a_confirmed_tool_that_asks_again_runs_again(request_of: Any) -> None:
    """An answer to the tool's own question counts after its confirmation was approved."""
    log = log_of(
        user_message("go"), model_calls("tool", gated=True), answered("fc-1"), *request_of("fc-1"), answered("fc-1")
    )
    assert (next_step(log), log.state.calls["fc-1"].run) == (Perform(("fc-1",)), 1)
    log.append(parse_ref("fc-1~1"), 0, tool_returned("fc-1", {"done": True}, run=1))
    assert next_step(log) == CallModel(0, "turn")
    assert log.state.pending() == []


def test_a_rejected_login_of_a_confirmed_tool_reaches_the_model() -> None:
    """The earlier approval of the call does not replace the rejected login."""
    log = log_of(
        user_message("go"),
        model_calls("tool", gated=True),
        answered("fc-1"),
        *request_login("fc-1"),
        answered("fc-1", "reject"),
    )
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1] == ("fc-1", {"error": "This tool call is rejected."})


def test_the_next_question_covers_the_edited_arguments() -> None:
    """After an edit, the digest covers the new arguments, and the old digest is refused."""
    log = log_of(user_message("go"), model_calls("tool", gated=True, args={"amount": 900}))
    first = log.state.pending()[0].digest
    log.append(parse_ref("s1"), 0, answered("fc-1", "edit", args={"amount": 5}))
    log.append(parse_ref("fc-1"), 0, next(iter(request_confirmation("fc-1"))))
    [pending] = log.state.pending()
    assert pending.args == {"amount": 5}
    assert pending.digest == digest({"agent": "ag", "tool": "tool", "args": {"amount": 5}})
    with pytest.raises(DigestMismatch):
        decision.check_answer(log, Answer(function_call_id="fc-1", action="approve", digest=first), 0)


def test_the_second_run_replaces_the_interim_response() -> None:
    """The model is called once more and sees only the new response."""
    log = log_of(
        user_message("go"),
        model_calls("tool"),
        *request_confirmation("fc-1"),
        answered("fc-1"),
        tool_returned("fc-1", {"done": True}, run=1),
    )
    assert next_step(log) == CallModel(0, "turn")
    assert prompt.contents(log)[-1]["parts"][0]["functionResponse"]["response"] == {"done": True}
    assert [response for id, response in responses(log) if id == "fc-1"] == [{"status": "asked"}, {"done": True}]


def test_a_late_result_of_an_earlier_run_is_ignored() -> None:
    """Only the current run of a tool may close the call."""
    log = log_of(
        user_message("go"),
        model_calls("tool"),
        *request_confirmation("fc-1"),
        answered("fc-1"),
        tool_returned("fc-1", {"stale": True}),
    )
    assert next_step(log) == Perform(("fc-1",))


@pytest.mark.parametrize("comment", ["https://app/callback?state=1&code=abc", "Bearer abcdefgh"])
def test_a_comment_with_a_credential_is_refused(comment: str) -> None:
    """A comment that contains the redirect address of a login is refused."""
    log = log_of(user_message("go"), model_calls("tool"), *request_login("fc-1"))
    with pytest.raises(InvalidAnswer, match="looks like a secret: comment"):
        decision.check_answer(log, Answer(function_call_id="fc-1", action="reject", comment=comment), 0)


def test_a_response_after_a_login_may_have_any_field() -> None:
    """A response after a login may have the same fields as one to a call that needed no login."""
    log = log_of(user_message("go"), model_calls("tool", kind="long_running"), *request_login("fc-1"), answered("fc-1"))
    log.append(parse_ref("fc-1~1"), 0, tool_returned("fc-1", {"status": "pending"}, run=1, final=False))
    answer = Answer(function_call_id="fc-1", action="respond", response={"code": "A-17"})
    assert decision.check_answer(log, answer, 0).id == "fc-1"


def test_an_unconfirmed_call_expires() -> None:
    """An expired call gets a response with the status `expired`, which does not read like an approval."""
    log = log_of(user_message("go"), model_calls("tool"), *request_confirmation("fc-1"), expired("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1][1]["status"] == "expired"


def test_the_model_waits_while_a_credential_is_needed() -> None:
    """The request precedes the response, and the model is not called; see adk-semantics 11.1."""
    log = log_of(user_message("go"), model_calls("tool"), *request_login("fc-1"))
    assert next_step(log) == Wait()
    assert kinds(log)[1:] == ["ag: tool", "ag: adk_request_credential", "ag: tool="]
    [pending] = log.state.pending()
    assert (pending.kind, pending.payload) == ("credential", CONFIG)


def test_one_login_resumes_every_call_that_needs_it() -> None:
    """The login is requested once, and all calls run again after it."""
    log = log_of(user_message("go"), model_calls("tool", "other"), *request_login("fc-1", "fc-2"))
    assert sum("adk_request_credential" in line for line in kinds(log)) == 1
    log.append(parse_ref("s1"), 0, answered("fc-2"))
    assert next_step(log) == Perform(("fc-1", "fc-2"))


def test_a_rejected_login_reaches_the_model() -> None:
    """The model receives the rejection, and the tool does not run again."""
    log = log_of(
        user_message("go"), model_calls("tool"), *request_login("fc-1"), answered("fc-1", "reject", comment="not mine")
    )
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1][1]["comment"] == "not mine"


def test_a_login_accepts_no_edit_and_no_response() -> None:
    """Answers are recorded in the history, so they must not contain a credential."""
    log = log_of(user_message("go"), model_calls("tool"), *request_login("fc-1"))
    for action in ("edit", "respond"):
        answer = Answer(function_call_id="fc-1", action=action, args={}, response={})
        with pytest.raises(InvalidAnswer, match="accepts approve, reject"):
            decision.check_answer(log, answer, 0)


def test_an_answer_with_a_credential_is_refused() -> None:
    """A refused update leaves no trace in the history; the refusal of a signal asks the sender to revoke the
    credential.
    """
    log = log_of(user_message("go"), model_calls("tool"), *request_login("fc-1"))
    answer = Answer(function_call_id="fc-1", action="approve", response={"oauth2": {"accessToken": "abc"}})
    with pytest.raises(InvalidAnswer, match=r"response\.oauth2\.accessToken.*revoke it") as refused:
        decision.check_answer(log, answer, 0)
    assert "abc" not in str(refused.value)


def test_a_tool_may_ask_more_than_once() -> None:
    """A tool may request a login first and a confirmation afterward."""
    log = log_of(
        user_message("go"),
        model_calls("tool"),
        *request_login("fc-1"),
        answered("fc-1"),
        *request_confirmation("fc-1", run=1),
    )
    assert [call.kind for call in log.state.pending()] == ["confirmation"]
    log.append(parse_ref("s2"), 0, answered("fc-1"))
    assert log.state.calls["fc-1"].run == 2
    log.append(parse_ref("fc-1~2"), 0, tool_returned("fc-1", {"done": True}, run=2))
    log.append(parse_ref("m"), 0, model_replied("fine"))
    assert next_step(log) in (Finish(), CallModel(0, "turn"))


@pytest.mark.parametrize("interim", [{"status": "pending"}, None])
def test_a_final_answer_with_wake_false_waits_for_the_other_calls(interim: JsonObject | None) -> None:
    """Answers that are sent together call the model once, whether or not the functions returned an interim response."""
    interim_results = [tool_returned(id, interim, final=False) for id in ("fc-1", "fc-2")]
    model = [model_called(), model_replied("I asked.")] if interim else []
    first, last = (answered(id, "respond", response={}, wake=False) for id in ("fc-1", "fc-2"))
    happened = [user_message("go"), model_calls("ask", "ask", kind="long_running"), *interim_results, *model, first]
    assert isinstance(next_step(log_of(*happened)), Wait)
    assert next_step(log_of(*happened, last)) == CallModel(0, "turn")
