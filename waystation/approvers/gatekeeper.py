"""Sign the answers of people for the interface through which they came, and check and record these answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from waystation.approvers.permissions import ROLES, Person, why_not
from waystation.core import approval
from waystation.core.actions import Action
from waystation.core.approval import Answer, PendingCall, TokenSigner, Verified
from waystation.core.errors import NotAllowed
from waystation.core.log import CallState, check_authority, check_claim

if TYPE_CHECKING:
    from waystation.approvers.identity import BearerTokens, Completions, Gateway, Links, OidcLogin, Sealer
    from waystation.client import Approvals, Outcome

log = structlog.get_logger("waystation.approvers")


@dataclass(frozen=True, kw_only=True)
class Gatekeeper:
    """Answers for the people of one interface, with the parts of an identity configuration. Each part is optional."""

    interface: str
    """The name of the interface. Answers are recorded with it."""
    command: str = "web"
    """The command that starts the interface. Errors name it."""
    gateway: "Gateway | None" = None
    sealer: "Sealer | None" = None
    oidc: "OidcLogin | None" = None
    links: "Links | None" = None
    completions: "Completions | None" = None
    tokens: "BearerTokens | None" = None

    @classmethod
    def from_file(
        cls,
        file: str | Path,
        namespace: str,
        *,
        interface: str,
        command: str = "web",
        clock: Callable[[], float] = time.time,
    ) -> "Gatekeeper":
        """Read an identity configuration.

        Raises:
            InvalidConfiguration: The file is invalid, or it lacks a section that another section requires.
        """
        from waystation.approvers.identity import (
            BearerTokens,
            Completions,
            Configuration,
            Gateway,
            Links,
            OidcLogin,
            Sealer,
        )

        configuration = Configuration.read(file)
        envelope, oidc = configuration.envelope, configuration.oidc
        # With access tokens, each person brings a proof that workers can verify without the gateway's key.
        brings_proofs = oidc is not None and oidc.resource is not None
        if (
            configuration.gateway is None
            and not brings_proofs
            and (configuration.links is None or (envelope and envelope.private_key))
        ):
            raise configuration.make_missing_section_error(
                "gateway", f"`waystation {command}` finds no settings in this file; pass gateway.toml"
            )
        if oidc is not None and configuration.gateway is None and not brings_proofs:
            raise configuration.make_missing_section_error("gateway", "workers verify logins with its key")
        login = OidcLogin.of(configuration, clock=clock) if oidc else None
        return cls(
            interface=interface,
            command=command,
            gateway=Gateway.of(configuration, clock=clock) if configuration.gateway else None,
            sealer=Sealer.of(configuration, clock=clock) if configuration.gateway or brings_proofs else None,
            oidc=login,
            links=Links.of(configuration, namespace=namespace, clock=clock) if configuration.links else None,
            completions=Completions.of(configuration),
            tokens=BearerTokens.of(configuration, login.admission) if login and brings_proofs else None,
        )

    def roles_of(self, person: str) -> frozenset[str]:
        """Return the roles of a person that no provider has identified. Without a provider, these are all roles."""
        return self.oidc.admission.roles_of(Verified(subject=person)) if self.oidc else ROLES

    def identify(self, person: Person) -> Verified | None:
        """Return the identity that workers will verify, or None if they will receive only an unverified name."""
        is_signed = self.gateway is not None and (person.vouched or person.verified is not None)
        if self.sealer is None or not (is_signed or person.proof):
            return None
        return person.verified or Verified(subject=person.name)

    def make_signer(self, person: Person) -> TokenSigner | None:
        """Return a function that creates the encrypted token of an answer or request.

        It contains the person's proof or, without one, a token that the gateway signs for the person. The gateway also
        signs requests for schedules, which outlive proofs. Return None if the interface cannot sign and encrypt tokens.
        """
        who, proof, sealer = person.verified or Verified(subject=person.name), person.proof, self.sealer
        signer = self.gateway.signer(who.subject, who.roles) if self.gateway else None
        if sealer is None or (signer is None and proof is None):
            return None

        def make(*, namespace: str, approval_id: str, answer: Mapping[str, Any] | approval.Request) -> str:
            place = {"namespace": namespace, "approval_id": approval_id}
            is_lasting = isinstance(answer, approval.Request) and answer.lasting
            token = signer(**place, answer=answer) if signer and (is_lasting or not proof) else proof or ""
            return sealer.seal(token, **place, answer=answer)

        return make

    def make_schedule_signer(self, person: Person) -> TokenSigner | None:
        """Return a function that creates the token of a schedule. Return None if this person's would not last."""
        return self.make_signer(person) if self.gateway and self.identify(person) else None

    def why_not(self, person: Person, state: CallState, call: PendingCall, action: Action) -> str:
        """Return why a person may not perform an action on a visible call, or an empty string if it is allowed."""
        who = self.identify(person)
        if who is None and call.policy is not None and call.policy.must_verify:
            return (
                "This call accepts only answers with a verified identity, and this server cannot verify yours. "
                f"Its operator can set that up with `waystation {self.command} --identity FILE`."
            )
        answer = Answer(function_call_id=state.id, action=action, by=person.name or None)
        try:
            check_authority(state, answer, who, call.requesters)
            check_claim(state, answer, who)
        except NotAllowed as error:
            return str(error)
        return why_not(person, call, action)

    async def answer(
        self,
        approvals: "Approvals",
        person: Person,
        calls: Sequence[PendingCall | str],
        action: Action,
        **fields: Any,
    ) -> "list[Outcome]":
        """Send the same answer to several calls for a person, and return the outcomes.

        Each answer contains the digest and the run of its call, which must be those that the person has seen. An
        approval ID instead of a call means the call as it is now. Fields without a value are left out.
        """
        kept = "wake", "payload"  # for which `False` is a value
        fields = {key: value for key, value in fields.items() if value not in (None, "", False) or key in kept}
        token = self.make_signer(person) if self.identify(person) else None
        fields |= {"by": person.subject or None, "token": token, "interface": self.interface}
        outcomes = [outcome async for outcome in approvals.answer_all(calls, action, **fields)]
        for outcome in outcomes:
            if outcome.receipt is not None:
                log.info("answer.taken", approval_id=outcome.approval_id, action=action, interface=self.interface)
        return outcomes
