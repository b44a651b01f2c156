"""An answer counts only for the question that was open when it was submitted."""

import pytest

from tests.unit.core.story import answered, log_of, model_calls, tool_returned, user_message
from tests.unit.core.test_asking import request_confirmation, request_login
from waystation.core.approval import Answer, Verification, Verified, parse_answer
from waystation.core.contract import EventActions, ToolConfirmation
from waystation.core.errors import AlreadyAnswered, InvalidAnswer
from waystation.core.log import (
    AnswerVerified,
    Log,
    MessageRef,
    VerificationRef,
    VerificationRequested,
    parse_ref,
    question_of,
)
from waystation.core.log.decision import check_answer, decide_verified
from waystation.core.payload import JsonObject

ASKS = EventActions(requested_tool_confirmations={"fc-1": ToolConfirmation(hint="Again?")})


def submit(log: Log, number: int, action: str = "approve", **fields: JsonObject) -> int:
    """Submit an answer, and return the number of the question that is open."""
    answer = Answer.model_validate({"function_call_id": "fc-1", "action": action, **fields})
    log.append(MessageRef("s", number, "?"), 1_010, VerificationRequested("fc-1", answer))
    return question_of(log.state.calls["fc-1"])


def verify(log: Log, number: int, question: int | None, subject: str = "ann") -> AnswerVerified:
    """End the verification of an answer, and return the decision."""
    verification = Verification(who=Verified(subject=subject), nonce=f"n{number}", question=question)
    message = MessageRef("s", number)
    decided = decide_verified(log, str(message), verification, 1_011)
    log.append(VerificationRef(message), 1_011, decided)
    return decided


def is_late(decided: AnswerVerified) -> bool:
    return decided.refused is not None and decided.refused.reason == "AlreadyAnswered"


def confirming() -> Log:
    """Return a log in which a long-running tool waits for its confirmation."""
    asking_call = model_calls("ask", kind="long_running", gated=True, declared="schema")
    return log_of(user_message("go"), asking_call)


@pytest.mark.parametrize("action", ["approve", "reject", "claim", "cancel"])
def test_what_was_submitted_for_a_confirmation_never_applies_to_the_call_itself(action: str) -> None:
    """The first of two answers that were submitted together has answered the confirmation."""
    log = confirming()
    first, second = submit(log, 1), submit(log, 2, action)
    verify(log, 1, first)
    assert is_late(verify(log, 2, second, "ben"))
    call = log.state.calls["fc-1"]
    assert (call.closed, call.claimed_by) == (False, None)


@pytest.mark.parametrize("request_of", [request_confirmation, request_login])
def test_an_early_answer_is_not_the_answer_to_what_the_call_requests_later(request_of: object) -> None:
    """A long-running call accepts answers before its function has returned, which may request something else."""
    log = log_of(user_message("go"), model_calls("ask", kind="long_running", declared="schema"))
    early = submit(log, 1)
    for body in request_of("fc-1"):  # type: ignore[operator]  # both functions take the IDs of calls
        log.append(parse_ref("fc-1"), 1_010, body)
    assert is_late(verify(log, 1, early))
    assert log.state.calls["fc-1"].gate == "waiting"


def test_an_approval_of_a_login_is_not_the_confirmation_that_follows() -> None:
    """The tool asks for a credential, runs again, and then asks for a confirmation."""
    log = log_of(user_message("go"), model_calls("pay"), request_login("fc-1"))
    log.state.calls["fc-1"].call = log.state.calls["fc-1"].call.model_copy(update={"declared": "schema"})
    first, second = submit(log, 1), submit(log, 2)
    verify(log, 1, first)
    log.append(parse_ref("fc-1~1"), 1_011, tool_returned("fc-1", {}, run=1, actions=ASKS))
    assert is_late(verify(log, 2, second, "ben"))
    assert [call.kind for call in log.state.pending()] == ["confirmation"]


def test_an_early_answer_counts_after_the_function_has_returned() -> None:
    """The function returned without a request, so the question is the same."""
    log = log_of(user_message("go"), model_calls("ask", kind="long_running", declared="schema"))
    early = submit(log, 1)
    log.append(parse_ref("fc-1"), 1_010, tool_returned("fc-1", {"status": "pending"}, final=False))
    assert not is_late(verify(log, 1, early))
    assert log.state.calls["fc-1"].closed


def test_a_result_of_an_earlier_version_counts_for_the_open_question() -> None:
    """Such histories have to replay: their verifications do not contain a question."""
    log = confirming()
    submit(log, 1)
    submit(log, 2)
    verify(log, 1, None)
    assert not is_late(verify(log, 2, None))
    assert log.state.calls["fc-1"].closed


def test_an_answer_can_name_its_question() -> None:
    """An answer from the page of the confirmation does not count for the call itself, even without a token."""
    log = confirming()
    (pending,) = log.state.pending()
    named = Answer(function_call_id="fc-1", action="approve", question=pending.question)
    check_answer(log, named, 1_010)
    log.append(parse_ref("s1"), 1_010, answered("fc-1"))
    with pytest.raises(AlreadyAnswered, match="not for the question that call 'fc-1' asks now"):
        check_answer(log, named, 1_011)
    log.append(parse_ref("fc-1"), 1_011, tool_returned("fc-1", {"status": "pending"}, final=False))
    (pending,) = log.state.pending()
    check_answer(log, named.model_copy(update={"question": pending.question}), 1_012)


@pytest.mark.parametrize("question", ["true", '"1"', "1.0"])
def test_the_number_of_a_question_is_an_integer(question: str) -> None:
    """Nothing else is read as the first question."""
    with pytest.raises(InvalidAnswer, match="question"):
        parse_answer(f'{{"function_call_id": "fc-1", "action": "approve", "question": {question}}}'.encode())
