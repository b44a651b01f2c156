"""The functions that pages, the JSON API and interfaces for other protocols share. They have all rules about people."""

from dataclasses import dataclass, replace
from functools import cached_property

from starlette.requests import Request

from waystation.approvers import Gatekeeper
from waystation.client import AgentClient
from waystation.web.approval_pages import ApprovalPages
from waystation.web.call_api import CallApi
from waystation.web.invocation_pages import InvocationPages
from waystation.web.paths import root
from waystation.web.pending_list import PendingList
from waystation.web.session_pages import SessionPages
from waystation.web.shared_reads import SharedReads
from waystation.web.starter import Starter
from waystation.web.web_settings import WebSettings


@dataclass(frozen=True, kw_only=True)
class WebServices:
    """The functions that start, read and answer for the people of one interface."""

    client: AgentClient
    gatekeeper: Gatekeeper
    settings: WebSettings
    reads: SharedReads
    invocations: InvocationPages
    pending: PendingList

    @classmethod
    def of(cls, client: AgentClient, gatekeeper: Gatekeeper, settings: WebSettings) -> "WebServices":
        """Return the services of the web application. Their reads are limited together."""
        reads = SharedReads(settings.limits.visibility_per_s)
        client = reads.limit(client)
        return cls(
            client=client,
            gatekeeper=gatekeeper,
            settings=settings,
            reads=reads,
            invocations=InvocationPages(client, settings.limits, reads, temporal_ui=settings.temporal_ui),
            pending=PendingList(client, reads),
        )

    def named(self, interface: str) -> "WebServices":
        """Return the same services for another interface, whose name its answers are recorded with."""
        return replace(self, gatekeeper=replace(self.gatekeeper, interface=interface))

    def find_address(self, request: Request) -> str:
        """Return the address of this server for links, without the final slash."""
        url = self.settings.url
        return url.rstrip("/") if url else f"{request.url.scheme}://{request.headers['host']}{root()}"

    @cached_property
    def approvals(self) -> ApprovalPages:
        """The pages of calls. `approvals.answers` reads and answers calls."""
        settings = self.settings
        return ApprovalPages(
            self.client, self.gatekeeper, settings.limits, self.pending, temporal_ui=settings.temporal_ui
        )

    @cached_property
    def calls(self) -> CallApi:
        """The JSON API for calls, with typed outcomes of answers."""
        return CallApi(self.client, self.approvals.answers, self.pending, self.invocations, self.settings.limits)

    @cached_property
    def starter(self) -> Starter:
        """Starts invocations and sends messages."""
        return Starter(self.client, self.gatekeeper)

    @cached_property
    def sessions(self) -> SessionPages:
        """The pages of sessions, with their artifacts."""
        return SessionPages(self.client, self.approvals, self.starter, self.settings.artifacts, self.reads)
