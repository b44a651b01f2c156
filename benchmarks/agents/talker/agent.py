"""An agent whose model starts its text with the current time, to measure the delay of streamed text."""

import asyncio
import time
from collections.abc import Callable

from waystation import Agent
from waystation.core.contract import text_of
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.testing import says

PIECE_S = 0.02
"""The model generates 50 pieces per second."""


class TimestampModel(BaseLlm):
    """Wait, then generate text, for the seconds that the message names; the first word is the current time."""

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Generate the text, with or without a reader."""
        silent_s, seconds = map(float, text_of(request.contents[-1]).split())
        await asyncio.sleep(silent_s)
        pieces = [f"{time.time_ns()} ", *["piece "] * int(seconds / PIECE_S)]
        for piece in pieces:
            if on_text is not None:
                on_text(piece)
            await asyncio.sleep(PIECE_S)
        return says("".join(pieces))


root_agent = Agent(name="talker", model=TimestampModel())
