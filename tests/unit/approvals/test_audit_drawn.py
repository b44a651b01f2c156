"""For any answers in any order, the account contains all of them and nothing that did not happen."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core.test_policies_drawn import Asking
from waystation.approvers.audit import create_account, create_sheet, format_sheet, read_sheet
from waystation.core.log import AnswerCounted, AnswerIgnored, AnswerVerified, CallRef, VerificationRequested
from waystation.core.projection import facts

STORIES = settings(max_examples=drawn_examples(40), deadline=None)


@given(st.data())
@STORIES
def test_started_calls_were_decided_and_scheduled_before(data: st.DataObject) -> None:
    """A call that needs an approval is never recorded as started without a decision that allows it."""
    simulation = Asking(data).play()
    account = create_account(simulation.whole)
    scheduled = {fact.ref for fact in simulation.facts if isinstance(fact, facts.Scheduled)}
    let_through: set[str] = set()
    for entry in account:
        match entry["kind"]:
            case "decided" if entry["decision"] in ("approve", "edit", "waive"):
                let_through.add(entry["call"])
            case "started":
                call = simulation.whole.state.calls[entry["call"]]
                assert str(CallRef(call.id, entry.get("run", 0))) in scheduled
                assert call.asked is None or call.call.kind == "long_running" or call.id in let_through
            case "finished":
                assert any(each["kind"] == "started" and each["call"] == entry["call"] for each in account)


@given(st.data())
@STORIES
def test_every_answer_is_recorded_once_and_each_wait_is_decided_at_most_once(data: st.DataObject) -> None:
    """An answer is counted, ignored or submitted; a reviewed answer gets another line with the outcome."""
    log = Asking(data).play().whole
    account = create_account(log)
    attempts = (AnswerCounted, AnswerIgnored, VerificationRequested, AnswerVerified)
    recorded = sum(isinstance(entry.body, attempts) for entry in log.entries)
    kinds = ("answered", "ignored", "submitted", "claimed", "released", "viewed", "progress_told")
    assert sum(entry["kind"] in kinds for entry in account) == recorded
    for call in log.state.calls:
        of_call = [entry["kind"] for entry in account if entry.get("call") == call]
        assert of_call.count("decided") + of_call.count("expired") <= of_call.count("requested") + 1


@given(st.data())
@STORIES
def test_every_account_is_written_and_read_back(data: st.DataObject) -> None:
    """Every account, with or without arguments, survives a round trip through its file."""
    log = Asking(data).play().whole
    whole, bare = create_account(log), create_account(log, arguments=False)
    assert list(read_sheet(format_sheet(create_sheet({"inv": whole}, closed=False)).encode()).entries) == whole
    assert [entry["kind"] for entry in whole] == [entry["kind"] for entry in bare]
