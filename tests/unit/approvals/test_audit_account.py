"""The account of an invocation: requests, answers, decisions and executions, from history alone."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from tests.paths import HISTORIES
from tests.unit.core.story import (
    answered,
    cancelled,
    expired,
    log_of,
    model_called,
    model_calls,
    tool_lost,
    tool_returned,
    user_message,
)
from waystation.approvers.audit import create_account
from waystation.core.approval import Answer, ApprovalPolicy, Escalation, Verification, Verified
from waystation.core.errors import ForeignHistory
from waystation.core.log import (
    AnswerIgnored,
    AnswerVerified,
    Body,
    MessageJoined,
    NoticeReport,
    Notified,
    ReminderDue,
    VerificationRequested,
)
from waystation.core.payload import JsonObject, digest
from waystation.history import decode_histories, fetch_log, read_history_file
from waystation.storage import Blobs
from waystation.storage.driver import offloading

NAMES = sorted(path.stem for path in HISTORIES.glob("*.json") if not path.stem.endswith(".held"))


def kinds(account: list[JsonObject]) -> list[str]:
    """Return the kinds of the lines in order."""
    return [entry["kind"] for entry in account]


def one(account: list[JsonObject], kind: str) -> JsonObject:
    """Return the only line of a kind."""
    [line] = [entry for entry in account if entry["kind"] == kind]
    return line


def test_a_confirmed_call_is_recorded_from_request_to_outcome() -> None:
    """The account has the requester, the exact arguments, the answer and the outcome."""
    payment = model_calls("pay", args={"amount": 900}, gated=True)
    happened = (user_message("pay 900", user_id="dana"), payment, answered("fc-1", by="emil", comment="fine"))
    account = create_account(log_of(*happened, tool_returned("fc-1", {"paid": 900})))
    assert kinds(account) == ["began", "requested", "answered", "decided", "started", "finished"]
    request, started = one(account, "requested"), one(account, "started")
    assert (request["requester"], request["tool"], request["args"]) == ("dana", "pay", {"amount": 900})
    assert started["args_digest"] == request["args_digest"]
    assert (one(account, "answered")["by"], one(account, "answered")["comment"]) == ("emil", "fine")
    assert one(account, "decided")["decision"] == started["approved"] == "approve"
    assert one(account, "finished")["response"] == {"paid": 900}


def test_an_account_names_who_sent_each_message() -> None:
    """A message that joined the invocation has a line, and its sender is a requester of the calls that follow."""
    joined = MessageJoined("pay more", requester="machine:hook:shop")
    account = create_account(log_of(user_message("pay", user_id="dana"), joined, model_calls("pay", gated=True)))
    assert kinds(account) == ["began", "joined", "requested"]
    line, request = one(account, "joined"), one(account, "requested")
    assert (line["requester"], line["message_digest"]) == ("machine:hook:shop", digest("pay more"))
    assert (request["requester"], request["joined_requesters"]) == ("dana", ["machine:hook:shop"])


def test_an_edited_call_is_recorded_with_both_versions_of_its_arguments() -> None:
    """The account has the requested arguments and the arguments that ran."""
    account = create_account(
        log_of(
            user_message("go"),
            model_calls("pay", args={"amount": 9}, gated=True),
            answered("fc-1", "edit", args={"amount": 1}),
        )
    )
    requested, ran = one(account, "requested"), one(account, "started")
    assert (requested["args"], ran["args"]) == ({"amount": 9}, {"amount": 1})
    assert requested["args_digest"] != ran["args_digest"]


def test_a_call_without_an_approval_is_recorded_as_started() -> None:
    """A call that runs without an approval is in the account."""
    account = create_account(log_of(user_message("go"), model_calls("look"), tool_returned("fc-1")))
    assert kinds(account) == ["began", "started", "finished"]
    assert "approved" not in one(account, "started")


def test_an_ignored_answer_is_recorded_with_the_reason() -> None:
    """The line has the person, the call and the reason; the attempt decides nothing."""
    late = AnswerIgnored("AlreadyAnswered", "That answer counts.", "fc-1", "mallory")
    account = create_account(
        log_of(user_message("go"), model_calls("pay", gated=True), answered("fc-1", "reject"), late)
    )
    ignored = one(account, "ignored")
    assert (ignored["by"], ignored["call"], ignored["outcome"]) == ("mallory", "fc-1", "AlreadyAnswered")
    assert kinds(account).count("decided") == 1


def test_a_call_approved_and_cancelled_in_one_workflow_task_never_starts() -> None:
    """Hazard: a decision for a cancelled invocation. The cancellation wins, and the tool does not run."""
    both = [answered("fc-1"), *cancelled()]
    account = create_account(log_of(user_message("go"), model_calls("pay", gated=True), both))
    assert kinds(account) == ["began", "requested", "answered", "decided", "cancel_requested", "ended"]


def test_several_approvals_are_recorded_with_identities_and_the_last_one_decides() -> None:
    """Each answer is submitted, reviewed, and counted or refused; its identity comes from the identity provider."""
    policy = ApprovalPolicy(approvers=("role:finance",), quorum=2)

    def vote(ref: str, by: str, refused: AnswerIgnored | None = None) -> list[Body]:
        answer = Answer(function_call_id="fc-1", action="approve", by=by, token="quince")
        who = Verified(subject=f"{by}@example.com", roles=("finance",), issuer="https://id.example.com")
        return [VerificationRequested("fc-1", answer), AnswerVerified(ref, Verification(who=who), refused)]

    second_vote = AnswerIgnored("AlreadyAnswered", "Has approved before.", "fc-1", "alice")
    payment = model_calls("pay", gated=True, approval=policy, declared="d")
    account = create_account(
        log_of(user_message("go"), payment, vote("2", "alice"), vote("3", "alice", second_vote), vote("4", "bob"))
    )
    assert one(account, "requested")["policy"] == {"approvers": ["role:finance"], "quorum": 2}
    answers = [
        entry for entry in account if entry["kind"] in ("submitted", "answered", "ignored", "decided", "started")
    ]
    assert [(each["kind"], each.get("verified", {}).get("subject")) for each in answers] == [
        *(("submitted", None), ("answered", "alice@example.com")),
        *(("submitted", None), ("ignored", "alice@example.com")),
        *(("submitted", None), ("answered", "bob@example.com"), ("decided", "bob@example.com"), ("started", None)),
    ]
    assert "quince" not in str(account)


def test_reminders_escalations_and_notifications_are_recorded() -> None:
    """The account has the channels that failed, and the remembered approval under which a call ran."""
    hour = timedelta(hours=1)
    policy = ApprovalPolicy(
        approvers=("alice",),
        verified=False,
        reminders=(hour,),
        escalation=(Escalation(after=2 * hour, to=("bob",)),),
        remember=hour,
    )
    gated = model_calls("pay", gated=True, approval=policy, declared="d")
    report = NoticeReport(delivered=("mail",), failed={"chat": "Timeout"})
    noticed: list[Body] = [ReminderDue("fc-1", 0), ReminderDue("fc-1", 1), Notified("fc-1", "escalation", report)]
    unasked = model_calls("pay", id="fc-2", approval=policy, declared="d", standing="inv/fc-1")
    waited = (
        user_message("go"),
        gated,
        noticed,
        answered("fc-1", by="alice", remember=True),
        tool_returned("fc-1", {}),
    )
    account = create_account(log_of(*waited, model_called(), unasked))
    assert [kind for kind in kinds(account) if kind in ("reminded", "escalated", "notified")] == [
        *("reminded", "escalated", "notified")
    ]
    assert one(account, "notified")["failed"] == {"chat": "Timeout"}
    assert [each.get("inherited") for each in account if each["kind"] == "started"] == [None, "inv/fc-1"]


def test_an_approval_of_another_invocation_is_recorded_as_inherited() -> None:
    """The line has the approved call, such as one of the calling agent."""
    policy = ApprovalPolicy(approvers=("alice",), verified=False, remember=timedelta(hours=1))
    unasked = model_calls("pay", approval=policy, declared="d", standing="parent/fc-7")
    account = create_account(log_of(user_message("go"), unasked, tool_returned("fc-1", {})))
    assert one(account, "started")["inherited"] == "parent/fc-7"
    assert "approved" not in one(account, "started")


def test_expired_calls_and_lost_workers_are_recorded() -> None:
    """An expired call is not rejected, and an unknown outcome is not a failure."""
    silent = create_account(log_of(user_message("go"), model_calls("pay", gated=True), expired("fc-1")))
    assert kinds(silent) == ["began", "requested", "expired"]
    unknown = create_account(log_of(user_message("go"), model_calls("pay"), tool_lost("fc-1")))
    assert kinds(unknown) == ["began", "started", "outcome_unknown"]


def test_arguments_can_be_omitted_and_tokens_are_never_recorded() -> None:
    """Digests remain, so that approved arguments can still be compared."""
    secret = answered("fc-1", "edit", args={"to": "plum"}, token="quince")
    log = log_of(
        user_message("go"),
        model_calls("pay", args={"to": "medlar"}, gated=True),
        secret,
        tool_returned("fc-1", {"x": "pear"}),
    )
    whole, bare = create_account(log), create_account(log, arguments=False)
    assert all(word in str(whole) for word in ("plum", "medlar", "pear"))
    assert not any(word in str(bare) for word in ("plum", "medlar", "pear"))
    assert "quince" not in str(whole)
    assert [entry.get("args_digest") for entry in whole] == [entry.get("args_digest") for entry in bare]


def test_a_log_that_lacks_its_beginning_has_no_account() -> None:
    """A log without its first runs has no account, because the audit would look complete."""
    log = log_of(user_message("go"))
    log.entries_before = 7
    with pytest.raises(ForeignHistory, match="earlier runs are missing"):
        create_account(log)


@pytest.mark.parametrize("name", NAMES)
async def test_the_account_of_a_running_invocation_only_grows(name: str) -> None:
    """Hazard: no audit. At every point of a history, the account is the beginning of the final account."""
    store = Blobs(HISTORIES / "store")
    histories = await decode_histories(read_history_file(HISTORIES / f"{name}.json").histories, offloading(store))

    async def account(events: Any) -> list[JsonObject]:
        cut = WorkflowHistory(histories[0].workflow_id, events)
        return create_account(await fetch_log([cut], store.get))

    (history,) = histories
    whole = await account(history.events)
    began = EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
    for length in (n for n, event in enumerate(history.events) if event.event_type == began):
        so_far = await account(history.events[:length])
        assert so_far == whole[: len(so_far)]
