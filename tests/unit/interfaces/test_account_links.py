"""An account of a chat is linked by the person on both sides only."""

from pathlib import Path

import pytest

from waystation.approvers.identity.admission import Admission
from waystation.approvers.identity.identity_file import OidcSection
from waystation.core.approval import Verified
from waystation.interfaces.chat.account_links import LINK, LINK_S, AccountLinks, NotLinked, UnfinishedLink
from waystation.interfaces.chat.chat_store import Account, ChatStore
from waystation.web.http_responses import RequestRefused
from waystation.web.logins import Login

ISSUER = "https://login.example.com"
DANA, ERIN = (Account(workspace="T1", workspace_name="acme", user=user, user_name=user) for user in ("U1", "U2"))


def login(subject: str) -> Login:
    """Return the login of a person."""
    return Login(subject, verified=Verified(subject=subject, issuer=ISSUER))


class Linking:
    """The links of one chat."""

    def __init__(self, place: Path) -> None:
        self.now = 1_000.0
        self.store = ChatStore(place, clock=lambda: self.now)
        admission = Admission(OidcSection(issuer=ISSUER, client_id="c"))
        self.links = AccountLinks(self.store, admission, clock=lambda: self.now)


@pytest.fixture
def linking(tmp_path: Path) -> Linking:
    """Return links in an empty store."""
    return Linking(tmp_path / "chat.sqlite")


async def test_a_user_has_one_unfinished_link(linking: Linking) -> None:
    """Someone who clicks for hours does not fill the store. Only the newest link works."""
    tickets = [await linking.links.begin(DANA) for _ in range(30)]
    assert len(await linking.store.find_all(LINK, UnfinishedLink)) == 1
    with pytest.raises(RequestRefused, match="newer one"):
        await linking.links.confirm(tickets[0], login("dana"))
    await linking.links.confirm(tickets[-1], login("dana"))


async def test_tickets_and_codes_of_others_do_not_count(linking: Linking) -> None:
    """Neither a ticket of one user with the secret of another, nor the code that another user was shown."""
    dana, erin = await linking.links.begin(DANA), await linking.links.begin(ERIN)
    for ticket in (f"{DANA.id}.{erin.partition('.')[2]}", f"{DANA.id}.", DANA.id, "", erin[:-1]):
        with pytest.raises(RequestRefused):
            await linking.links.confirm(ticket, login("mallory"))
    _, code = await linking.links.confirm(dana, login("dana"))
    await linking.links.confirm(erin, login("erin"))
    with pytest.raises(NotLinked):
        await linking.links.finish(ERIN, code)
    assert (await linking.links.finish(DANA, f" {code[:4].lower()}-{code[4:]}")).subject == "dana"
    assert (await linking.links.identify(DANA)).subject == "dana"


async def test_neither_secret_counts_in_place_of_the_other(linking: Linking) -> None:
    """The secret of the URL does not count as a code, and the code does not open the page again."""
    ticket = await linking.links.begin(DANA)
    with pytest.raises(NotLinked):
        await linking.links.finish(DANA, ticket.partition(".")[2])
    _, code = await linking.links.confirm(await linking.links.begin(DANA), login("dana"))
    with pytest.raises(RequestRefused):
        await linking.links.confirm(f"{DANA.id}.{code}", login("mallory"))
    assert (await linking.links.finish(DANA, code)).subject == "dana"


async def test_both_steps_end_after_ten_minutes(linking: Linking) -> None:
    """A code that is found later is worthless."""
    ticket = await linking.links.begin(DANA)
    linking.now += LINK_S
    with pytest.raises(RequestRefused):
        await linking.links.read(ticket)
    _, code = await linking.links.confirm(await linking.links.begin(DANA), login("dana"))
    linking.now += LINK_S
    with pytest.raises(NotLinked):
        await linking.links.finish(DANA, code)


async def test_a_claim_has_one_owner_until_it_expires(linking: Linking) -> None:
    """Of two processes, one keeps the messages, and each request counts once."""
    claims = [await linking.store.claim("board", "b", owner, until=1_010.0) for owner in ("first", "second", "first")]
    assert claims == [True, False, True]
    linking.now = 1_010.0
    assert await linking.store.claim("board", "b", "second", until=1_020.0)
