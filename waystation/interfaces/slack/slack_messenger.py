"""Post and update messages through Slack's Web API."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from waystation.core.payload import JsonObject
from waystation.interfaces.chat.message_board import ChatFailed
from waystation.interfaces.slack.blocks import NOTICE, make_message, make_section, make_short_message
from waystation.web.call_answers import CallView

QUIET = {"unfurl_links": False, "unfurl_media": False}
REFUSED_BLOCKS = ("invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long")
"""The errors of Slack about what a message shows."""


class SlackMessenger:
    """Posts messages. The client never repeats a request by itself, because later rounds do."""

    def __init__(self, client: AsyncWebClient, inbox: str) -> None:
        self._client, self._inbox = client, inbox

    async def post(self, channel: str, view: CallView) -> str:
        """Post a message about a call, and return its timestamp, which identifies it in its channel."""
        response = await self._show(self._client.chat_postMessage, view, channel=channel, text=NOTICE, **QUIET)
        return str(response["ts"])

    async def update(self, channel: str, message: str, view: CallView) -> None:
        """Show the call in a message as it is now."""
        text = NOTICE if view.standing == "open" else "This call no longer waits."
        await self._show(self._client.chat_update, view, channel=channel, ts=message, text=text)

    async def remind(self, channel: str, message: str) -> None:
        """Answer a message in its thread, also visible in the channel."""
        text = "This call is still waiting for approval."
        await _send(self._client.chat_postMessage, channel=channel, thread_ts=message, text=text, reply_broadcast=True)

    async def whisper(self, channel: str, user: str, text: str, blocks: Sequence[JsonObject] = ()) -> None:
        """Show a text, or blocks, to one user only. Slack does not search blocks for markup."""
        notice = "Link your account." if blocks else "About your answer."
        blocks = blocks or [make_section(text)]
        await _send(self._client.chat_postEphemeral, channel=channel, user=user, text=notice, blocks=blocks)

    async def _show(self, method: Callable[..., Awaitable[Any]], view: CallView, **fields: Any) -> Any:
        try:
            return await _send(method, blocks=make_message(view, self._inbox), **fields)
        except ChatFailed as error:
            if str(error) not in REFUSED_BLOCKS:
                raise
            # Slack does not document how it counts. No call may keep others from being posted.
            return await _send(method, blocks=make_short_message(view, self._inbox), **fields)


async def _send(method: Callable[..., Awaitable[Any]], **fields: Any) -> Any:
    """Call a method of the Web API.

    Raises:
        ChatFailed: Slack refused the request, or is not available.
    """
    try:
        return await method(**fields)
    except SlackApiError as error:
        # A body that is not JSON comes as the response of the HTTP client, which has no fields.
        known = isinstance(error.response, AsyncSlackResponse)
        reason = str(error.response.get("error")) if known else "unreadable"
        wait = str(error.response.headers.get("Retry-After", "0"))
        retry_after_s = float(wait) if wait.isdecimal() else 0.0
        raise ChatFailed(reason, retry_after_s=retry_after_s, is_gone=reason == "message_not_found") from None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ChatFailed(type(error).__name__) from None
