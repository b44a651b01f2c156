"""Push configurations: the URLs that they may name, and who is asked."""

from typing import Any

import pytest
from pydantic import ValidationError

from waystation.core.approval import ApprovalPolicy, PendingCall
from waystation.core.push import PushConfig, PushTask, find_push_fault, parse_hosts

HOSTS = parse_hosts(" Hooks.example.com, 127.0.0.1,")


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://other.example.com/",
        "https://hooks.example.com.evil.example/",
        "https://user:secret@hooks.example.com/",
        "https://hooks.example.com/?token=secret",
        "https://hooks.example.com/#part",
        "https://hooks.example.com:port/",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "",
    ],
)
def test_only_allowed_hosts_without_secrets_receive_states(url: str) -> None:
    """Every other URL is refused with a reason that quotes no secret."""
    fault = find_push_fault(url, HOSTS)
    assert fault
    assert "secret" not in fault.replace("Send secrets", "")


@pytest.mark.parametrize("url", ["https://HOOKS.example.com:8443/a", "http://127.0.0.1:1/"])
def test_allowed_hosts_receive_states(url: str) -> None:
    """The host counts, whatever its case, its port and the path."""
    assert find_push_fault(url, HOSTS) == ""
    assert find_push_fault(url, ())


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        (None, "INPUT_REQUIRED"),
        (ApprovalPolicy(approvers=("dana",), verified=False), "INPUT_REQUIRED"),
        (ApprovalPolicy(approvers=("erin",), verified=False), "AUTH_REQUIRED"),
        (ApprovalPolicy(verified=False, not_requester=True), "AUTH_REQUIRED"),
    ],
)
def test_a_person_is_asked_as_the_policy_says(policy: ApprovalPolicy | None, state: str) -> None:
    """An approver is asked unless the policy names others, or excludes the requester."""
    config = PushConfig(id="mine", url="https://hooks.example.com/")
    names: dict[str, Any] = {"invocation_id": "i", "task_id": "t", "context_id": "c", "user_id": "dana"}
    task = PushTask(**names, number=0, names=("dana",), is_approver=True, config=config)
    call = PendingCall(
        function_call_id="fc-1",
        invocation_id="i",
        agent="a",
        tool="t",
        args={},
        kind="confirmation",
        digest="d",
        requested_at=0.0,
        deadline=1.0,
        user_id="dana",
        requester="dana",
        policy=policy,
    )
    assert task.find_state("waiting", [call]) == state


@pytest.mark.parametrize("scheme", ["Bearer\r\nX-Admin: 1", "Bearer secret", "Bearer\n", "é"])
def test_a_scheme_is_one_word(scheme: str) -> None:
    """A scheme can neither add a header nor carry a secret into the history."""
    with pytest.raises(ValidationError):
        PushConfig(id="mine", url="https://hooks.example.com/", scheme=scheme)
