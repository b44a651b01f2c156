"""Policies can refuse the answers of a chat, and only `waystation chat-approvals` signs them."""

import re
from pathlib import Path

import pytest

from tests.unit.identity.conftest import NAMESPACE, Installation
from waystation.approvers import Gatekeeper
from waystation.approvers.gatekeeper import CHAT
from waystation.approvers.identity import Configuration, Gateway, WorkerIdentity
from waystation.core.approval import Answer, ApprovalPolicy, SignedApproval, Verified, satisfies_policy
from waystation.core.errors import InvalidConfiguration, NotAllowed

DANA = Verified(subject="dana", roles=("finance",))
IN_CHAT = DANA.model_copy(update={"kind": "chat"})


def approval(who: Verified, action: str = "approve") -> SignedApproval:
    """Return an approval of a call."""
    return SignedApproval(who=who, action=action, digest="d", asked="confirmation", wait=1, at=0.0)


@pytest.mark.parametrize("action", ["approve", "waive"])
def test_approvals_of_a_chat_do_not_satisfy_a_policy_without_chats(action: str) -> None:
    """This is checked again where the tool runs."""
    policy = ApprovalPolicy(approvers=("dana",), operators=("dana",), chat=False)
    assert not satisfies_policy(policy, [approval(IN_CHAT, action)], ())
    assert satisfies_policy(policy, [approval(DANA, action)], ())
    assert satisfies_policy(ApprovalPolicy(approvers=("dana",), operators=("dana",)), [approval(IN_CHAT, action)], ())


def test_a_policy_without_chats_needs_verified_identities() -> None:
    """Anyone could leave out that an unverified answer comes from a chat."""
    assert ApprovalPolicy(chat=False).must_verify
    with pytest.raises(ValueError, match="`chat=False` cannot be checked"):
        ApprovalPolicy(chat=False, verified=False)
    assert not ApprovalPolicy().satisfies(ApprovalPolicy(chat=False))


def test_what_was_recorded_before_keeps_its_form() -> None:
    """Digests and proofs of earlier versions cover policies and people without the new fields."""
    assert "chat" not in ApprovalPolicy().model_dump(mode="json")
    assert "kind" not in DANA.model_dump(mode="json")


async def answer_in_chat(there: Installation, *, kind: bool) -> Verified:
    """Verify an answer that the chat has signed, with workers that list its issuer with or without the kind."""
    workers, chat = there.folder / "workers.toml", there.folder / "chat.toml"
    commented = re.search(r"# \[\[issuers\]\]\n(# .*\n)+?# kind = \"chat\"\n", workers.read_text())
    assert commented is not None
    section = commented[0].replace("# ", "").replace("" if kind else 'kind = "chat"\n', "")
    workers.write_text(workers.read_text().replace(commented[0], section))
    answer = {"function_call_id": "fc-1", "action": "approve"}
    place = {"namespace": NAMESPACE, "approval_id": "invoice-7/fc-1"}
    token = Gateway.of(Configuration.read(chat)).sign("dana", ["finance"], **place, answer=answer)
    sealed = there.sealer.seal(token, **place, answer=answer)
    who, _ = await WorkerIdentity.load(workers).verify(sealed, **place, answer=Answer.model_validate(answer))
    return who


async def test_workers_learn_the_kind_from_the_issuer(there: Installation) -> None:
    """The key that has signed the token decides."""
    who = await answer_in_chat(there, kind=True)
    assert (who.subject, who.kind, who.issuer) == ("dana", "chat", "https://chat-approvals.example.com")


async def test_workers_that_list_the_issuer_of_a_chat_without_its_kind_refuse_it(there: Installation) -> None:
    """Otherwise, policies with `chat=False` would accept its answers."""
    with pytest.raises(NotAllowed, match='lacks `kind = "chat"`'):
        await answer_in_chat(there, kind=False)


@pytest.mark.parametrize(("name", "command"), [("chat.toml", "web"), ("gateway.toml", CHAT)])
def test_each_command_refuses_the_key_of_the_other(there: Installation, name: str, command: str) -> None:
    """With the key of the web server, a chat would be trusted like the web server."""
    file: Path = there.folder / name
    with pytest.raises(InvalidConfiguration, match='must be "chat" for `waystation chat-approvals`, and only for it'):
        Gatekeeper.from_file(file, NAMESPACE, interface="slack", command=command)
