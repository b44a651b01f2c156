"""The action table: one row for each action of an answer. Every reader of actions takes its decisions from it.

The table is part of the workflow code. A history contains its answers with the names of their actions, and a replay
decides about them with the present rows. So texts may change at any time, but for an action that histories may contain,
the columns `kinds`, `of_machines`, `decides`, `advances`, `operators_only`, `needs_name`, `needs_comment`,
`despite_claim` and `requires` may not.

A new action needs its name in `Action`, its row, its new fields in `answer.Answer`, its effect in `log.answers`, and
where people fill in new fields: options in `cli/pending_calls.py`, a form in `web/approval_pages.py` and
`templates/answers.html`, and the body of answers in `web/call_api.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Decision = Literal["approve", "reject", "edit", "respond", "progress"]
"""The actions that the `actions` of a policy can list. A policy does not restrict the others."""
Action = Literal[
    Decision, "claim", "release", "view", "waive", "cancel", "replace", "revoke", "ran", "not_run", "start_again"
]
Asked = Literal["confirmation", "credential", "long_running", "budget"]
WaitKind = Literal[Asked, "unknown"]
"""The kinds of answers that a call waits for. `unknown` asks operators whether a call took effect."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """A row of the action table."""

    name: Action
    help: str = ""
    """One line about the command of this name. Empty if there is no such command."""
    effect: str = ""
    """The effect on the call, as a past participle, such as `allowed without the required approval`."""
    done: str = ""
    """The verb for the sender, with the call as its object, such as `waived the approval of`."""
    audited_as: str = "answered"
    """The kind of the line in an audit."""
    kinds: tuple[WaitKind, ...] = get_args(Asked)
    """The kinds of calls that accept the action."""
    of_machines: bool = False
    """Whether only calls that a machine answers accept the action."""
    decides: bool = False
    """Whether the call no longer waits afterward, unless more approvals are missing. Only such an answer needs the
    comment and the digest that a policy requires."""
    advances: bool = False
    """Whether the call or its agent continues with what the sender accepts or provides. If a policy compares people,
    a person who may be the requester is refused."""
    operators_only: bool = False
    """Whether the action is for the operators of a policy instead of its approvers."""
    needs_name: bool = False
    """Whether the sender has to state a name."""
    needs_comment: bool = False
    """Whether the sender has to comment, whatever the policy says."""
    despite_claim: bool = False
    """Whether the action is possible although someone else has claimed the call."""
    in_bulk: bool = False
    """Whether the web application offers the action for several calls at once."""
    requires: str | None = None
    """The field of the answer that the action cannot do without."""
    options: tuple[str, ...] = ()
    """The options of the command that not every action has."""

    @property
    def command(self) -> str:
        """The name of the command."""
        return self.name.replace("_", "-")

    @property
    def is_about_outcome(self) -> bool:
        """Whether the action states whether a call with an unknown outcome took effect."""
        return self.kinds == ("unknown",)

    @property
    def listable(self) -> bool:
        """Whether a policy can list the action in its `actions`, and so exclude it by listing others."""
        return self.name in get_args(Decision)

    @property
    def accepts(self) -> bool:
        """Whether the sender accepts the call's arguments. Do not offer this if the arguments cannot be read."""
        return self.decides and self.advances

    @property
    def runs_tool(self) -> bool:
        """Whether the call can run afterward."""
        return self.accepts and ("confirmation" in self.kinds or "unknown" in self.kinds)

    @property
    def approves(self) -> bool:
        """Whether the answer counts as one of the approvals that a policy requires."""
        return self.runs_tool and not self.operators_only

    @property
    def completes(self) -> bool:
        """Whether the answer's `response` completes a long-running call, and so has to match the response schema."""
        return self.accepts and "long_running" in self.kinds


ACTIONS: Mapping[str, ActionSpec] = {
    row.name: row
    for row in (
        ActionSpec(
            "approve",
            help="Approve a pending call.",
            effect="approved",
            done="approved",
            decides=True,
            advances=True,
            in_bulk=True,
            options=("response", "remember"),
        ),
        ActionSpec(
            "reject",
            help="Reject a pending call.",
            effect="rejected",
            done="rejected",
            decides=True,
            in_bulk=True,
            options=("response",),
        ),
        ActionSpec(
            "edit",
            help="Approve a pending call with new arguments.",
            effect="approved with other arguments",
            done="approved",
            kinds=("confirmation",),
            decides=True,
            advances=True,
            requires="args",
            options=("args",),
        ),
        ActionSpec(
            "respond",
            help="Send the final response to a long-running call.",
            effect="answered",
            done="answered",
            kinds=("long_running",),
            decides=True,
            advances=True,
            requires="response",
            options=("response",),
        ),
        ActionSpec(
            "progress",
            help="Report progress on a long-running call. The call stays open.",
            effect="updated with progress",
            done="reported the progress of",
            audited_as="progress_told",
            kinds=("long_running",),
            advances=True,
            requires="response",
            options=("response", "quiet"),
        ),
        ActionSpec(
            "claim",
            help="Claim a call, so that no one else can answer it.",
            effect="claimed",
            done="claimed",
            audited_as="claimed",
            kinds=get_args(WaitKind),
            needs_name=True,
        ),
        ActionSpec(
            "release",
            help="Release a claimed call, so that others can answer it.",
            effect="released",
            done="released",
            audited_as="released",
            kinds=get_args(WaitKind),
            needs_name=True,
            despite_claim=True,
        ),
        ActionSpec(
            "view",
            effect="viewed",
            audited_as="viewed",
            kinds=get_args(WaitKind),
            needs_name=True,
            despite_claim=True,
        ),
        ActionSpec(
            "waive",
            help="As an operator, run a call without its required approval.",
            effect="allowed without the required approval",
            done="waived the approval of",
            kinds=("confirmation",),
            decides=True,
            advances=True,
            operators_only=True,
            despite_claim=True,
        ),
        ActionSpec(
            "cancel",
            help="As an operator, close a call. The invocation continues.",
            effect="closed",
            done="canceled",
            decides=True,
            operators_only=True,
            despite_claim=True,
        ),
        ActionSpec(
            "replace",
            help="As an operator, answer a call in place of its machine.",
            effect="answered in place of its machine",
            done="answered, in place of its machine,",
            kinds=("long_running",),
            of_machines=True,
            decides=True,
            advances=True,
            operators_only=True,
            needs_name=True,
            needs_comment=True,
            despite_claim=True,
            requires="response",
            options=("response",),
        ),
        ActionSpec(
            "revoke",
            help="As an operator, revoke a machine's completion URLs.",
            effect="stripped of its completion URLs",
            done="revoked the completion URLs of",
            audited_as="urls_revoked",
            kinds=("long_running",),
            of_machines=True,
            operators_only=True,
            needs_name=True,
            despite_claim=True,
        ),
        ActionSpec(
            "ran",
            help="As an operator, state that a call took effect.",
            effect="found to have taken effect",
            done="recorded that it ran:",
            kinds=("unknown",),
            decides=True,
            operators_only=True,
            options=("response",),
        ),
        ActionSpec(
            "not_run",
            help="As an operator, state that a call took no effect.",
            effect="found to have taken no effect",
            done="recorded that it did not run:",
            kinds=("unknown",),
            decides=True,
            operators_only=True,
        ),
        ActionSpec(
            "start_again",
            help="As an operator, start a call without effect once more.",
            effect="found to have taken no effect, and started once more",
            done="started once more",
            kinds=("unknown",),
            decides=True,
            advances=True,
            operators_only=True,
        ),
    )
}
