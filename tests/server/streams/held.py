"""A model that streams its text at once, and finishes when the test allows it."""

import asyncio
from collections.abc import Callable

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel
from waystation.testing.models import Reply


class Held(ScriptedModel):
    """Streams its text, and then waits for `go_on`."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(*replies)
        self.go_on = asyncio.Event()

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next reply, later."""
        response = await super().generate(request, on_text=on_text)
        await self.go_on.wait()
        return response
