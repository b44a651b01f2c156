"""Answer calls over every channel, and repeat each answer until its outcome is known."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias
from urllib.parse import urlencode

import httpx2 as httpx
from temporalio.service import RPCError

from tests.server.processes.workers import Place, Process, until
from tests.server.web.sites import Browser, path_of
from verification.chaos.chaos_plan import Channel, SendAnswer
from waystation.client.agent_client import AgentClient
from waystation.core.errors import AnswerRefused, WaystationError

Outcome = Literal["accepted", "refused", "sent", "unknown"]
"""`sent` is a signal that the server has accepted. `unknown` means that the answer must be sent again."""
Send: TypeAlias = Callable[[str, SendAnswer], Awaitable[Outcome]]

CONFIRM_WITHIN = timedelta(seconds=5)
PAUSE_S = 0.5
CONCURRENT: Mapping[Channel, int] = {"update": 6, "signal": 6, "web": 3, "cli": 1}
EXIT_CODES: Mapping[int, Outcome] = {0: "accepted", 3: "refused", 6: "refused"}
"""Exit codes of `waystation approve`, and the outcome that each one means."""


class Approver:
    """Answers calls over all channels."""

    def __init__(self, client: AgentClient, place: Place, browser: Browser) -> None:
        self._client, self._place, self._browser = client, place, browser
        self._limits = {channel: asyncio.Semaphore(limit) for channel, limit in CONCURRENT.items()}
        self._channels: Mapping[Channel, Send] = {
            "update": self._update,
            "signal": self._signal,
            "web": self._click,
            "cli": self._run_command,
        }

    async def answer(self, approval_id: str, answer: SendAnswer) -> Outcome:
        """Send an answer until its outcome is known."""
        async with self._limits[answer.channel]:
            while (outcome := await self._channels[answer.channel](approval_id, answer)) == "unknown":
                await asyncio.sleep(PAUSE_S)
            return outcome

    async def _update(self, approval_id: str, answer: SendAnswer, *, signal: bool = False) -> Outcome:
        try:
            await self._client.approvals.answer(
                *(approval_id, answer.verdict),
                by=answer.tag,
                comment=answer.tag,
                signal=signal,
                confirm_within=CONFIRM_WITHIN,
            )
        except AnswerRefused:
            return "refused"
        except (WaystationError, RPCError):  # not confirmed, no server, or no store
            return "unknown"
        return "sent" if signal else "accepted"

    async def _signal(self, approval_id: str, answer: SendAnswer) -> Outcome:
        return await self._update(approval_id, answer, signal=True)

    async def _click(self, approval_id: str, answer: SendAnswer) -> Outcome:
        path = path_of(approval_id)
        try:
            page = await self._browser.page(path)
            if page.status_code != httpx.codes.OK:
                return "unknown"
            fields = await self._browser.fields(path)
            if "nonce" not in fields:
                return "refused"  # the call is no longer pending
            body = urlencode({**fields, "action": answer.verdict, "comment": answer.tag})
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = await self._browser.http.post(path, content=body, headers=headers)
        except httpx.HTTPError:
            return "unknown"
        if response.status_code == httpx.codes.SEE_OTHER:
            return "accepted"
        return "refused" if response.status_code == httpx.codes.CONFLICT else "unknown"

    async def _run_command(self, approval_id: str, answer: SendAnswer) -> Outcome:
        options = ("--by", answer.tag, "--comment", answer.tag, "--json")
        command = Process(*cli(self._place), answer.verdict, approval_id, *options, environment=self._place.environment)
        async with command:
            with contextlib.suppress(TimeoutError):
                return EXIT_CODES.get(await command.exit_code(), "unknown")
        return "unknown"


def cli(place: Place) -> tuple[str, ...]:
    """Return the beginning of a command."""
    return (sys.executable, "-m", "waystation.cli", "--address", place.address)


@contextlib.asynccontextmanager
async def serve_web(place: Place) -> AsyncIterator[Browser]:
    """Serve the web application in a process of its own, and yield a browser that is logged in."""
    process = Process(*cli(place), "web", "--port", "0", "--as", "chaos", environment=place.environment)
    async with process:

        def find_link() -> re.Match[str] | None:
            return re.search(r"(http://\S+)(/login\?token=\S+)", " ".join(process.other))

        link = await until(find_link, "the link to log in")
        assert link is not None
        async with httpx.AsyncClient(base_url=link[1], headers={"Accept": "text/html"}, timeout=30) as http:
            await http.get(link[2])
            yield Browser(http)
