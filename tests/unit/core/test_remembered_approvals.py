"""Calls that run under an approval of an earlier, identical call."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.core.story import log_of, model_calls, user_message
from waystation.core.approval import ApprovalPolicy, RememberedApproval, call_digest, find_covering_approval
from waystation.core.log import Perform, next_step
from waystation.core.payload import digest


def test_a_call_under_a_remembered_approval_carries_the_digest_of_what_was_approved() -> None:
    """The call carries the digest that was approved, which the worker compares as after a person's answer."""
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    call = model_calls("pay", gated=True, approval=policy, declared="schema", standing="earlier/fc-1")
    log = log_of(user_message("pay"), call)
    assert next_step(log) == Perform(("fc-1",))
    assert log.state.calls["fc-1"].approved_digest == log.state.calls["fc-1"].digest


@pytest.mark.parametrize(("approved", "called_with", "covers"), [(1, 1, True), (1, 1.0, False), (1, True, False)])
def test_a_number_is_not_covered_by_another_that_python_calls_equal(
    approved: object, called_with: object, covers: bool
) -> None:
    """The numbers `1`, `1.0` and `true` are different JSON, and tools may treat them differently."""
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    bound_to = policy.bound_to("schema", None)
    about: dict[str, Any] = {"root": "r", "agent": "a", "tool": "pay"}
    known = RememberedApproval(**about, args={"n": approved}, bound_to=bound_to, by="ann", until=2_000, origin="i/fc-1")
    found = find_covering_approval(
        [known], **about, args={"n": called_with}, declared="schema", origin=None, policy=policy
    )
    assert (found is not None) is covers


@pytest.mark.parametrize("origin", [None, "declared", "toolset:bank"])
def test_a_remembered_approval_covers_only_the_tool_of_its_origin(origin: str | None) -> None:
    """A tool of another origin is not covered, even with the same name and parameters."""
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    about: dict[str, Any] = {"root": "r", "agent": "a", "tool": "pay", "args": {"n": 1}}
    bound_to = policy.bound_to("schema", "toolset:bank")
    known = RememberedApproval(**about, bound_to=bound_to, by="ann", until=2_000, origin="i/fc-1")
    found = find_covering_approval([known], **about, declared="schema", origin=origin, policy=policy)
    assert (found is not None) is (origin == "toolset:bank")


@pytest.mark.parametrize("root", ["r", "other", ""])
def test_a_remembered_approval_covers_only_calls_below_its_root_agent(root: str) -> None:
    """Calls below another root are not covered, because two trees in a session may have agents of the same name.

    Earlier versions did not record the root.
    """
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    about: dict[str, Any] = {"agent": "a", "tool": "pay", "args": {"n": 1}}
    bound_to = policy.bound_to("schema", None)
    known = RememberedApproval(**about, root=root, bound_to=bound_to, by="ann", until=2_000, origin="i/fc-1")
    found = find_covering_approval([known], **about, root="r", declared="schema", origin=None, policy=policy)
    assert (found is not None) is (root == "r")


def test_a_call_that_was_recorded_without_an_origin_keeps_its_digest() -> None:
    """A call without an origin keeps the digest that approvers saw before an upgrade.

    With an origin, the digest covers it.
    """
    about: dict[str, Any] = {"declared": "schema", "policy": ApprovalPolicy()}
    before = digest({"agent": "a", "tool": "pay", "args": {}, "schema": "schema", "policy": {}})
    assert call_digest("a", "pay", {}, **about) == before
    origins = (None, "declared", "toolset:bank", "toolset:bank#2")
    assert len({call_digest("a", "pay", {}, **about, origin=origin) for origin in origins}) == len(origins)
