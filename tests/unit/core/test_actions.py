"""The action table has a row for each action, and its rows decide as they did when histories were recorded."""

from typing import get_args

import pytest

from tests.paths import ROOT
from waystation.core.actions import ACTIONS, Action, ActionSpec
from waystation.core.approval import Answer, parse_answer
from waystation.core.errors import InvalidAnswer
from waystation.core.payload import encode

RECORDED = {
    "approve": "kinds=budget,confirmation,credential,long_running decides advances",
    "reject": "kinds=budget,confirmation,credential,long_running decides",
    "edit": "kinds=confirmation decides advances requires=args",
    "respond": "kinds=long_running decides advances requires=response",
    "progress": "kinds=long_running advances requires=response",
    "claim": "kinds=budget,confirmation,credential,long_running,unknown needs_name",
    "release": "kinds=budget,confirmation,credential,long_running,unknown needs_name despite_claim",
    "view": "kinds=budget,confirmation,credential,long_running,unknown needs_name despite_claim",
    "waive": "kinds=confirmation decides advances operators_only despite_claim",
    "cancel": "kinds=budget,confirmation,credential,long_running decides operators_only despite_claim",
    "ran": "kinds=unknown decides operators_only",
    "not_run": "kinds=unknown decides operators_only",
    "start_again": "kinds=unknown decides advances operators_only",
}
"""The recorded decisions of workflow code for each action."""
FLAGS = ("decides", "advances", "operators_only", "needs_name", "despite_claim")


def decisions(row: ActionSpec) -> str:
    """Return what a row decides in workflow code, as `RECORDED` spells it."""
    requires = [f"requires={row.requires}"] if row.requires else []
    return " ".join([f"kinds={','.join(sorted(row.kinds))}", *filter(row.__getattribute__, FLAGS), *requires])


def names(flag: str) -> set[str]:
    """Return the actions whose column or property is true."""
    return {row.name for row in ACTIONS.values() if getattr(row, flag)}


def test_each_action_has_one_row_under_its_name() -> None:
    """The table lists the names of `Action` in their order, each once."""
    assert list(ACTIONS) == [row.name for row in ACTIONS.values()] == list(get_args(Action))


@pytest.mark.parametrize("action", RECORDED)
def test_rows_decide_as_in_recorded_histories(action: str) -> None:
    """Each row decides as before, because other decisions would change the replay of histories with such answers."""
    assert decisions(ACTIONS[action]) == RECORDED[action]


def test_only_operators_run_a_call_without_approving_it() -> None:
    """A waiver or a new start runs the call, but does not count as one of the approvals."""
    assert names("runs_tool") - names("approves") == {"waive", "start_again"}


def test_people_read_the_arguments_before_they_accept_them() -> None:
    """Five actions accept the arguments, so they are not offered if the arguments cannot be read."""
    assert names("accepts") == {"approve", "edit", "respond", "waive", "replace", "start_again"}


def test_final_responses_complete_a_long_running_call() -> None:
    """Only final responses are checked against the response schema; a progress report is not."""
    assert names("completes") == {"approve", "respond", "replace"}


@pytest.mark.parametrize("row", ACTIONS.values(), ids=list(ACTIONS))
def test_a_required_field_is_a_field_of_answers(row: ActionSpec) -> None:
    """The required field exists, because the refusal of an answer without the field names it."""
    assert row.requires is None or row.requires in Answer.model_fields


@pytest.mark.parametrize("row", ACTIONS.values(), ids=list(ACTIONS))
def test_a_row_says_what_the_answer_did(row: ActionSpec) -> None:
    """A row describes the answer to every interface and, for each command, to its sender."""
    assert row.effect
    assert bool(row.done) is bool(row.help)


@pytest.mark.parametrize("action", sorted(names("help")))
def test_the_page_of_a_call_has_a_button_for_each_action(action: str) -> None:
    """People can send each of these answers from the page, without a command line."""
    page = (ROOT / "waystation/web/templates/answers.html").read_text()
    assert f'name="action" value="{action}"' in page or f'formaction="{{{{ root() }}}}{{{{ path }}}}/{action}"' in page


@pytest.mark.parametrize(
    ("action", "needs"), [("edit", "an `args`"), ("respond", "a `response`"), ("progress", "a `response`")]
)
def test_an_answer_without_its_required_field_is_refused(action: str, needs: str) -> None:
    """The text of the refusal does not change, because earlier audits contain it."""
    with pytest.raises(InvalidAnswer) as refused:
        parse_answer(encode({"function_call_id": "fc-1", "action": action}))
    assert str(refused.value) == f"The action `{action}` needs {needs} object."
