"""Requests with a token: the content that the token covers, and how policies treat the requester."""

import pytest

from waystation.core.actions import Action
from waystation.core.approval import Answer, ApprovalPolicy, SignedApproval, Verified, satisfies_policy
from waystation.core.contract import Call, InvocationInput
from waystation.core.errors import InvalidInput, NotAllowed
from waystation.core.log import CallState, check_authority
from waystation.core.payload import JsonObject, encode
from waystation.core.session_log import parse_message

OTHERS = ApprovalPolicy(not_requester=True)
ANN = Verified(subject="ann@example.com", roles=("waystation-operator",))
START: JsonObject = {"agent": "payer", "message": "go", "state": {"payee": "Bob"}, "user_id": "ann"}


def content(**changes: object) -> JsonObject:
    """Return the content that the token of a start covers."""
    return InvocationInput.model_validate(START | changes).request().content


def approval(action: str) -> SignedApproval:
    """Return an approval of Ann's."""
    return SignedApproval(who=ANN, action=action, digest="d", asked="confirmation", wait=1, at=0.0)


def test_a_token_is_bound_to_everything_that_the_starter_chooses() -> None:
    """The token covers every field that the starter sets; a field with its default value counts as absent."""
    assert content() == START
    assert content(app="waystation", budget={"max_llm_calls": 500}, streaming=False) == START
    changes: list[JsonObject] = [{"agent": "other"}, {"message": "stop"}, {"state": {}}, {"user_id": "eve"}]
    assert [change for change in (*changes, {"budget": {"max_llm_calls": 1}}) if content(**change) == START] == []


def test_a_token_does_not_cover_fields_of_the_engine() -> None:
    """The token covers neither itself nor fields that the engine sets."""
    link = {"id": "session/waystation/ann/s", "number": 1}
    assert content(token="t", carried={"run_id": "r"}, signed_request={"invocation_id": "i"}) == START
    assert content(session=link | {"message_id": "m1"}) == {"message": "go", "message_id": "m1"}


@pytest.mark.parametrize(("requesters", "counts"), [(None, False), (("ann@example.com",), False), (("bob",), True)])
def test_an_approval_counts_if_the_requester_is_known_to_be_someone_else(
    requesters: tuple[str, ...] | None, counts: bool
) -> None:
    """An approval does not count if the requester is unknown, because the approver could be the requester."""
    assert satisfies_policy(OTHERS, [approval("approve")], requesters) == counts
    assert satisfies_policy(ApprovalPolicy(verified=True), [approval("approve")], requesters)
    assert satisfies_policy(OTHERS, [approval("waive")], requesters)


@pytest.mark.parametrize(
    ("action", "refused"),
    [("approve", True), ("edit", True), ("respond", True), ("progress", True), ("reject", False), ("waive", False)],
)
def test_a_call_of_an_unknown_requester_cannot_be_approved(action: Action, refused: bool) -> None:
    """A call of an unknown requester can only be rejected, or waived by an operator."""
    call = CallState(Call(id="fc-1", approval=OTHERS))
    answer = Answer(function_call_id="fc-1", action=action)
    if refused:
        with pytest.raises(NotAllowed, match="the requester is not verified"):
            check_authority(call, answer, ANN, None)
    else:
        check_authority(call, answer, ANN, None)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"token": "a.b.c", "message_id": "m1"}, "not encrypted"), ({"token": "e30.a.b.c.d"}, "not encrypted")],
)
def test_a_session_refuses_a_token_that_is_not_encrypted(fields: JsonObject, problem: str) -> None:
    """The update with such a token is rejected, so the history does not contain the token."""
    with pytest.raises(InvalidInput, match=problem):
        parse_message(encode({"message": "go", **fields}))
