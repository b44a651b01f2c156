"""Many clients start one session."""

import asyncio
import collections

from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session
from tests.server.sessions.test_client import asking
from tests.server.sessions.test_conversation import words


async def test_fifty_clients_that_start_a_session_at_once_get_the_same(serve: Serve) -> None:
    """Each message is answered once, and the session starts once."""
    async with serve(asking(), verify=False) as env:  # replaying all of them takes a minute
        session = new_session(env, "asker")
        names = {"agent": "asker", "session_id": session.given.session_id, "user_id": "ann"}
        clients = [env.client.session(**names) for _ in range(50)]
        sent = await asyncio.gather(*(one.send(f"message {n}") for n, one in enumerate(clients)))
        for one in sent:
            await one.result()
        assert len({one.id for one in sent}) == 50
        await session.close()
        await session.handle.result()
        shown = words(await session.events())
        said = collections.Counter(line for line in shown if line.startswith("user"))
        assert said == collections.Counter(f"user: message {n}" for n in range(50))
