"""Completion URLs, with which machines answer calls, and the proof of such an answer that workers verify.

A completion URL is a secret. Only the key and facts about its call are needed to make it, so nothing stores it. The
server at its address replaces it with a token for one answer. Histories contain only this token, which is of no use for
any other answer.
"""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from joserfc.jwk import OctKey

from waystation.approvers.identity.identity_file import Configuration
from waystation.approvers.identity.tokens import Sealer, open_envelope, read_claims, sign_claims
from waystation.core.approval import MACHINE, Answer, Completion, Request, TokenSigner, Verified
from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject, digest
from waystation.core.secrets import is_private_url

if TYPE_CHECKING:
    from waystation.client import Approvals

PATH = "/completions/"
"""The path of a completion URL. The token follows."""
ISSUER = "completion URL"
"""The issuer of a machine's verified identity."""
FINAL = "completion"
"""The answer ID of every final answer, so that a call takes only one, and a repetition returns its receipt."""
AUDIENCE = "waystation-completion"


class Completions:
    """Makes and reads completion URLs, and makes and verifies the tokens of machines' answers."""

    def __init__(self, secret: bytes, *, url: str | None = None, clock: Callable[[], float] = time.time) -> None:
        """Derive the keys from a secret of at least 32 random bytes. The address `url` is only for making URLs."""
        self._url_key, self._answer_key = (
            OctKey.import_key(hmac.digest(secret, f"waystation completion {use}".encode(), "sha256"))
            for use in ("url", "answer")
        )
        self._address, self._clock = url, clock

    @classmethod
    def of(cls, configuration: Configuration, *, clock: Callable[[], float] = time.time) -> "Completions | None":
        """Return what the section `[completion]` configures, or None if there is none.

        Raises:
            InvalidConfiguration: The key is too short, or the address does not use HTTPS.
        """
        section = configuration.completion
        if section is None:
            return None
        if section.url is not None and not is_private_url(section.url):
            raise configuration.fault("completion.url", "is not an https URL. Completion URLs are secrets.")
        return cls(configuration.hmac_key("completion.key", section.key).raw_value, url=section.url, clock=clock)

    def make_url(self, completion: Completion) -> str:
        """Return the completion URL, which is always the same for the same `completion`.

        Raises:
            ValueError: The configuration has no address for completion URLs.
        """
        if self._address is None:
            raise ValueError("Completion URLs have no address. Set `url` in `[completion]` of the identity file.")
        claims = {"aud": AUDIENCE, **vars(completion)}
        return f"{self._address.rstrip('/')}{PATH}{sign_claims(claims, self._url_key)}"

    def read(self, token: str, *, namespace: str) -> Completion:
        """Verify the token of a completion URL, and return what the URL allows.

        Raises:
            NotAllowed: The token is not authentic, is for another namespace or has expired. All cases look the same.
        """
        claims = read_claims(token, self._url_key)
        if claims.pop("aud", None) == AUDIENCE:
            completion = Completion(**claims)
            if completion.namespace == namespace and completion.until > self._clock():
                return completion
        raise NotAllowed("This completion URL is not valid, or it has expired.")

    def make_signer(self, completion: Completion) -> TokenSigner:
        """Return a function that makes the token for an answer of the machine."""
        sealer, revoked = Sealer(self._answer_key, clock=self._clock), str(completion.revoked)

        def make(*, namespace: str, approval_id: str, answer: Mapping[str, Any] | Request) -> str:
            place = {"namespace": namespace, "approval_id": approval_id}
            return sealer.seal(completion.machine, **place, answer=answer, nonce=revoked)

        return make

    def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer | Request) -> tuple[Verified, str]:
        """Return the machine that sent an answer, and the number of revocations as text; see `WorkerIdentity.verify`.

        Raises:
            NotAllowed: The token is not valid for this answer, or it belongs to a request.
        """
        if isinstance(answer, Request):
            raise NotAllowed("A machine can only answer calls.")
        place = {"namespace": namespace, "approval_id": approval_id}
        opened = open_envelope(token, [self._answer_key], **place, answer=answer, now=self._clock())
        return Verified(subject=f"{MACHINE}{opened.token}", issuer=ISSUER), opened.nonce


async def deliver(
    approvals: "Approvals",
    completions: Completions,
    completion: Completion,
    response: JsonObject,
    *,
    final: bool = True,
    answer_id: str | None = None,
) -> JsonObject:
    """Answer a call for its machine, and return the receipt. It is safe to repeat.

    Args:
        approvals: The pending calls of the namespace.
        completions: Makes the token of the answer.
        completion: What the machine's completion URL allows.
        response: The final response, or the progress.
        final: Whether the response closes the call.
        answer_id: For progress: an ID that the machine chooses. By default, the same progress counts once.

    Raises:
        AnswerRefused: The answer was not accepted; the subclass gives the reason.
        AnswerUnconfirmed: No worker confirmed the answer in time. Deliver it again.
    """
    return await approvals.answer(
        completion.approval_id,
        "respond" if final else "progress",
        response=response,
        by=f"{MACHINE}{completion.machine}",
        digest=completion.digest,
        run=completion.run,
        answer_id=FINAL if final else answer_id or digest(response),
        token=completions.make_signer(completion),
    )
