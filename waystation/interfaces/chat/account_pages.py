"""The pages on which people link and unlink their accounts of a chat."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from waystation.interfaces.chat.account_links import AccountLinks
from waystation.interfaces.chat.chat_store import Account
from waystation.web.forms import read_form
from waystation.web.http_responses import redirect, render_page
from waystation.web.route_table import RouteRow

ACCOUNTS = "/accounts"


class AccountPages:
    """The pages. Nothing changes before the person sends a form."""

    def __init__(self, links: AccountLinks, *, chat: str) -> None:
        """Create the pages. `chat` is the name of the chat, as people know it."""
        self._links, self._chat = links, chat

    def make_rows(self) -> list[RouteRow]:
        """Return the rows of the route table."""
        return [
            RouteRow("GET", "/", self.index, "login"),
            RouteRow("POST", "/unlink", self.unlink, "login"),
            RouteRow("GET", f"{ACCOUNTS}/{{ticket}}", self.ask, "login"),
            RouteRow("POST", f"{ACCOUNTS}/{{ticket}}", self.confirm, "login"),
        ]

    async def index(self, request: Request) -> Response:
        """List the accounts that the person may unlink."""
        return self._render(request, accounts=await self._links.list_accounts(request.state.login))

    async def ask(self, request: Request) -> Response:
        """Show the user of the chat and the person, and ask whether to link them."""
        return self._render(request, account=await self._links.read(request.path_params["ticket"]))

    async def confirm(self, request: Request) -> Response:
        """Show the code that the user has to type in the chat."""
        await read_form(request)
        account, code = await self._links.confirm(request.path_params["ticket"], request.state.login)
        return self._render(request, account=account, one_time_code=code)

    async def unlink(self, request: Request) -> Response:
        """Remove a link."""
        form = await read_form(request)
        await self._links.unlink(form.get("id", ""), request.state.login)
        return redirect("/")

    def _render(
        self,
        request: Request,
        *,
        accounts: Sequence[Account] | None = None,
        account: Account | None = None,
        one_time_code: str = "",
    ) -> Response:
        return render_page(
            "chat_accounts.html",
            login=request.state.login,
            chat=self._chat,
            accounts=accounts,
            account=account,
            one_time_code=one_time_code,
        )
