"""What workers do with the proof of who answers: open it, and say whose it is."""

import time
from collections.abc import Callable
from pathlib import Path

from waystation.core.answer import Answer
from waystation.core.policy import Verified
from waystation.identity.configuration import Configuration
from waystation.identity.envelope import Opener
from waystation.identity.tokens import Issuers


class WorkerIdentity:
    """Verifies who answers. It holds no key that could answer: one to open envelopes, and public ones."""

    def __init__(self, opener: Opener, issuers: Issuers, *, clock: Callable[[], float] = time.time) -> None:
        self._opener, self._issuers, self._clock = opener, issuers, clock

    @classmethod
    def load(cls, file: str | Path, *, clock: Callable[[], float] = time.time) -> "WorkerIdentity":
        """Return what the configuration of a worker allows.

        Raises:
            InvalidConfiguration: It cannot be used.
        """
        configuration = Configuration.read(file)
        return cls(Opener.of(configuration), Issuers.of(configuration), clock=clock)

    async def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer) -> tuple[Verified, str]:
        """Return who answers, and what makes the token usable once.

        Args:
            token: As it came with the answer: sealed.
            namespace: In which the answer arrived.
            approval_id: Of the call that is answered, see `ids.approval`.
            answer: As it arrived.

        Raises:
            NotAllowed: The token proves nothing, or was given for something else. The message holds nothing of it.
            IdentityUnavailable: The keys of an issuer cannot be had now.
        """
        now = self._clock()
        opened = self._opener.open(token, namespace=namespace, approval_id=approval_id, answer=answer, now=now)
        binding = {"namespace": namespace, "call": approval_id, "answer": opened.answer}
        return await self._issuers.who(opened.token, binding=binding, now=now), opened.nonce
