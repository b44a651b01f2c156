"""Tools that ask a person from inside: for a confirmation, or for a credential."""

from typing import Any

import pytest

from tests.unit.core.story import answered, asked_model, called, expired, log_of, replied, responses, returned, said
from waystation.core import (
    Answer,
    CallModel,
    DigestMismatch,
    EventActions,
    Finish,
    InvalidAnswer,
    JsonObject,
    Log,
    Perform,
    ToolConfirmation,
    Wait,
    digest,
    next_step,
    parse_ref,
)
from waystation.core.approval import decision
from waystation.core.conversation import prompt

CONFIG = {"credentialKey": "github", "authScheme": {"type": "oauth2"}}


def asks(*ids: str, **fields: Any) -> list[Any]:
    """Tools return something for the meantime, and ask for a confirmation."""
    return [
        returned(
            id,
            {"status": "asked"},
            actions=EventActions(requested_tool_confirmations={id: ToolConfirmation(hint="Sure?", payload={"n": 1})}),
            **fields,
        )
        for id in ids
    ]


def needs_login(*ids: str) -> list[Any]:
    """Tools return something for the meantime, and ask for a credential."""
    return [returned(id, {"pending": True}, actions=EventActions(requested_auth_configs={id: CONFIG})) for id in ids]


def kinds(log: Log) -> list[str]:
    """Return the events as `author: what`."""
    shown = []
    for event in log.state.events:
        calls = [call["name"] for call in event.function_calls()]
        answers = [f"{response['name']}=" for response in event.function_responses()]
        texts = [part["text"] for part in (event.content or {}).get("parts", ()) if "text" in part]
        shown.append(f"{event.author}: {' '.join([*calls, *answers, *texts])}")
    return shown


def test_the_model_goes_on_while_a_confirmation_is_open() -> None:
    """It is told what the tool returned meanwhile; see adk-semantics 2.2."""
    log = log_of(said("go"), called("tool"), *asks("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    assert kinds(log)[1:] == ["ag: tool", "ag: adk_request_confirmation", "ag: tool="]
    [pending] = log.state.pending()
    assert (pending.kind, pending.hint, pending.payload, pending.interim) == (
        "confirmation",
        "Sure?",
        {"n": 1},
        {"status": "asked"},
    )


def test_a_settled_sibling_is_heard_before_the_request() -> None:
    """ADK's order of the two events."""
    log = log_of(said("go"), called("tool", "other"), returned("fc-2", {}), *asks("fc-1"))
    assert kinds(log)[2:] == ["ag: tool= other=", "ag: adk_request_confirmation"]


@pytest.mark.parametrize(("action", "confirmed"), [("approve", True), ("reject", False)])
def test_a_tool_that_asked_runs_again_whatever_the_answer(action: str, confirmed: bool) -> None:
    """It has to look at the answer itself; nothing enforces a no for it."""
    log = log_of(said("go"), called("tool"), *asks("fc-1"), [replied("asked")])
    assert next_step(log) == CallModel(0, "turn")
    log = log_of(said("go"), called("tool"), *asks("fc-1"), answered("fc-1", action, response={"n": 2}))
    assert next_step(log) == Perform(("fc-1",))
    assert log.state.calls["fc-1"].run == 1
    assert log.state.calls["fc-1"].tool_confirmation() == {"hint": "Sure?", "confirmed": confirmed, "payload": {"n": 2}}


@pytest.mark.parametrize("request_of", [asks, needs_login])
def test_a_confirmed_tool_that_asks_from_inside_runs_again_too(request_of: Any) -> None:
    """The answer to the second question is not lost for having been the second."""
    log = log_of(said("go"), called("tool", gated=True), answered("fc-1"), *request_of("fc-1"), answered("fc-1"))
    assert (next_step(log), log.state.calls["fc-1"].run) == (Perform(("fc-1",)), 1)
    log.append(parse_ref("fc-1~1"), 0, returned("fc-1", {"done": True}, run=1))
    assert next_step(log) == CallModel(0, "turn")
    assert log.state.pending() == []


def test_a_refused_login_of_a_confirmed_tool_is_told_to_the_model() -> None:
    """The agreement to the call does not stand for it."""
    log = log_of(
        said("go"), called("tool", gated=True), answered("fc-1"), *needs_login("fc-1"), answered("fc-1", "reject")
    )
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1] == ("fc-1", {"error": "This tool call is rejected."})


def test_edited_arguments_are_what_the_next_question_is_about() -> None:
    """Its digest is of the arguments that are shown with it, and an answer with the digest of others is refused."""
    log = log_of(said("go"), called("tool", gated=True, args={"amount": 900}))
    first = log.state.pending()[0].digest
    log.append(parse_ref("s1"), 0, answered("fc-1", "edit", args={"amount": 5}))
    log.append(parse_ref("fc-1"), 0, next(iter(asks("fc-1"))))
    [pending] = log.state.pending()
    assert pending.args == {"amount": 5}
    assert pending.digest == digest({"agent": "ag", "tool": "tool", "args": {"amount": 5}})
    with pytest.raises(DigestMismatch):
        decision.check_answer(log, Answer(function_call_id="fc-1", action="approve", digest=first), 0)


def test_what_the_further_run_returns_replaces_what_was_said_meanwhile() -> None:
    """The model is called once more, and sees the new response only."""
    log = log_of(said("go"), called("tool"), *asks("fc-1"), answered("fc-1"), returned("fc-1", {"done": True}, run=1))
    assert next_step(log) == CallModel(0, "turn")
    assert prompt.contents(log)[-1]["parts"][0]["functionResponse"]["response"] == {"done": True}
    assert [response for id, response in responses(log) if id == "fc-1"] == [{"status": "asked"}, {"done": True}]


def test_the_result_of_an_earlier_run_that_comes_late_changes_nothing() -> None:
    """Only the present run may settle the call."""
    log = log_of(said("go"), called("tool"), *asks("fc-1"), answered("fc-1"), returned("fc-1", {"stale": True}))
    assert next_step(log) == Perform(("fc-1",))


@pytest.mark.parametrize("comment", ["https://app/callback?state=1&code=abc", "Bearer abcdefgh"])
def test_a_comment_with_a_credential_in_it_is_refused(comment: str) -> None:
    """People paste the address at which a login ended."""
    log = log_of(said("go"), called("tool"), *needs_login("fc-1"))
    with pytest.raises(InvalidAnswer, match="looks like a secret: comment"):
        decision.check_answer(log, Answer(function_call_id="fc-1", action="reject", comment=comment), 0)


def test_an_answer_to_a_long_running_call_that_had_its_login_is_a_tools_result() -> None:
    """It may have a field of any name, as that of a call which needed no login."""
    log = log_of(said("go"), called("tool", kind="long_running"), *needs_login("fc-1"), answered("fc-1"))
    log.append(parse_ref("fc-1~1"), 0, returned("fc-1", {"status": "pending"}, run=1, final=False))
    answer = Answer(function_call_id="fc-1", action="respond", response={"code": "A-17"})
    assert decision.check_answer(log, answer, 0).id == "fc-1"


def test_a_call_that_nobody_confirms_in_time_is_told_as_expired() -> None:
    """It never reads as an approval."""
    log = log_of(said("go"), called("tool"), *asks("fc-1"), expired("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1][1]["status"] == "expired"


def test_the_model_waits_while_a_credential_is_needed() -> None:
    """The request precedes the response, and the model is not called; see adk-semantics 11.1."""
    log = log_of(said("go"), called("tool"), *needs_login("fc-1"))
    assert next_step(log) == Wait()
    assert kinds(log)[1:] == ["ag: tool", "ag: adk_request_credential", "ag: tool="]
    [pending] = log.state.pending()
    assert (pending.kind, pending.payload) == ("credential", CONFIG)


def test_one_login_lets_every_call_go_on_that_needs_it() -> None:
    """It is asked for once, and all of them run again."""
    log = log_of(said("go"), called("tool", "other"), *needs_login("fc-1", "fc-2"))
    assert sum("adk_request_credential" in line for line in kinds(log)) == 1
    log.append(parse_ref("s1"), 0, answered("fc-2"))
    assert next_step(log) == Perform(("fc-1", "fc-2"))


def test_a_refused_login_is_told_to_the_model() -> None:
    """The tool does not run again."""
    log = log_of(said("go"), called("tool"), *needs_login("fc-1"), answered("fc-1", "reject", comment="not mine"))
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1][1]["comment"] == "not mine"


def test_a_login_takes_neither_arguments_nor_a_response() -> None:
    """What is answered is in the history; a credential must not be."""
    log = log_of(said("go"), called("tool"), *needs_login("fc-1"))
    for action in ("edit", "respond"):
        answer = Answer(function_call_id="fc-1", action=action, args={}, response={})
        with pytest.raises(InvalidAnswer, match="accepts approve, reject"):
            decision.check_answer(log, answer, 0)


def test_an_answer_with_a_credential_in_it_is_refused() -> None:
    """As an update it is then in no history; as a signal it is, and the sender is told to revoke it."""
    log = log_of(said("go"), called("tool"), *needs_login("fc-1"))
    answer = Answer(function_call_id="fc-1", action="approve", response={"oauth2": {"accessToken": "abc"}})
    with pytest.raises(InvalidAnswer, match=r"response\.oauth2\.accessToken.*revoke it") as refused:
        decision.check_answer(log, answer, 0)
    assert "abc" not in str(refused.value)


def test_a_tool_may_ask_again() -> None:
    """For a login first, and then for a confirmation."""
    log = log_of(said("go"), called("tool"), *needs_login("fc-1"), answered("fc-1"), *asks("fc-1", run=1))
    assert [call.kind for call in log.state.pending()] == ["confirmation"]
    log.append(parse_ref("s2"), 0, answered("fc-1"))
    assert log.state.calls["fc-1"].run == 2
    log.append(parse_ref("fc-1~2"), 0, returned("fc-1", {"done": True}, run=2))
    log.append(parse_ref("m"), 0, replied("fine"))
    assert next_step(log) in (Finish(), CallModel(0, "turn"))


@pytest.mark.parametrize("interim", [{"status": "pending"}, None])
def test_final_answer_that_does_not_wake_the_model_waits_for_the_other_calls(interim: JsonObject | None) -> None:
    """Answers that are sent together call the model once, whether or not the functions have returned something."""
    asked = [returned(id, interim, final=False) for id in ("fc-1", "fc-2")]
    model = [asked_model(), replied("I asked.")] if interim else []
    first, last = (answered(id, "respond", response={}, wake=False) for id in ("fc-1", "fc-2"))
    happened = [said("go"), called("ask", "ask", kind="long_running"), *asked, *model, first]
    assert isinstance(next_step(log_of(*happened)), Wait)
    assert next_step(log_of(*happened, last)) == CallModel(0, "turn")
