"""Remove payloads that no history refers to, and artifacts of deleted invocations, while workers are running.

A payload is in use if its digest occurs in a history or schedule that the server has, or in a payload in use that may
contain references itself. An unused payload is first moved to the trash, where readers still find it, because a worker
may be about to refer to it. If it is still unused after it has been in the trash for the time that unused payloads are
kept, it is removed.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ListNamespacesRequest
from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError, RPCStatusCode

from waystation.history import fetch_or_none, find_payloads, list_payloads
from waystation.storage import BlobMissing, Blobs, is_reference

KEEP = timedelta(days=7)
SYSTEM_NAMESPACE = "temporal-system"
NAMESPACES_PAGE = 1_000
DIGEST_LENGTH = 64
_GENERATED_ID = re.compile(r"(?:invocation/[^/]+/[^/]+/)?\w+-([0-9a-f]{12})", re.ASCII)
"""An invocation ID that the client generated. A session may have such an ID, too, but its artifacts are kept."""
# Matches digests and the last parts of generated IDs. The whole ID would not match reliably: in a serialized event, the
# byte before an ID can look like part of it.
_USED = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])|(?<=-)[0-9a-f]{12}")
_UNSUPPORTED = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)


@dataclass(kw_only=True)
class Pruned:
    """The result of pruning a payload store."""

    namespaces: Sequence[str]
    """The namespaces whose histories were read."""
    histories: int = 0
    kept: int = 0
    """Number of payloads that are in use, or not old enough."""
    moved: int = 0
    """Number of payloads that were moved to the trash."""
    removed: int = 0
    """Number of payloads that were removed from the trash."""
    artifacts: int = 0
    """Number of invocations whose artifacts were removed."""


class PrunableArtifacts(Protocol):
    """The methods of an artifact service that pruning uses."""

    async def list_sessions(self) -> Mapping[tuple[str, str, str], datetime]:
        """Return each session that has artifacts, as (app, user, session), with the time when one was last written."""

    async def has_invocation_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> bool:
        """Return whether the records show that a session's artifacts are those of an invocation without a session."""

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete the artifacts of one session."""


async def prune_stores(
    client: Client,
    blobs: Blobs,
    artifacts: PrunableArtifacts | None = None,
    *,
    keep: timedelta = KEEP,
    dry_run: bool = False,
) -> Pruned:
    """Move payloads that are older than `keep` and not in use to the trash, and later remove them from it.

    Payloads are removed if they have been in the trash for `keep` and are still not in use.

    Also remove the artifacts of invocations without a session, if the server has deleted their histories.

    The histories of all namespaces that the server lists are read. If it does not let this client list them, only the
    client's namespace is read. With `dry_run`, nothing is changed.

    Raises:
        RPCError: A history could not be read. Nothing was changed.
        StoreFailed: The store could not be read or written.
    """
    cutoff = datetime.now(UTC) - keep
    # Listed before the histories are read, so that a payload that is stored later is not considered.
    stored = await blobs.list_stored()
    clients = await _list_namespaces(client)
    reader = _ReferenceReader(blobs)
    for each in clients:
        await reader.read(each)
    pruned = Pruned(namespaces=[each.namespace for each in clients], histories=reader.histories)
    for blob in stored:
        is_used = blob.digest in reader.used
        if blob.written > cutoff or (is_used and not blob.is_trash):
            pruned.kept += 1
            continue
        if is_used:
            pruned.kept += 1
            change = blobs.restore
        elif blob.is_trash:
            pruned.removed += 1
            change = blobs.purge
        else:
            pruned.moved += 1
            change = blobs.discard
        if not dry_run:
            await change(blob.digest)
    for (app, user, id), changed in (await artifacts.list_sessions() if artifacts else {}).items():
        generated, names = _GENERATED_ID.fullmatch(id), {"app_name": app, "user_id": user, "session_id": id}
        is_unused = generated is not None and generated[1] not in reader.used and changed <= cutoff
        if artifacts and is_unused and await artifacts.has_invocation_artifacts(**names):
            pruned.artifacts += 1
            if not dry_run:
                await artifacts.delete_session_artifacts(**names)
    return pruned


async def _list_namespaces(client: Client) -> list[Client]:
    """Return a client for each namespace of the server, or only `client` if the server does not list namespaces."""
    names = {client.namespace}
    try:
        request = ListNamespacesRequest(page_size=NAMESPACES_PAGE)
        while True:
            response = await client.workflow_service.list_namespaces(request)
            names |= {description.namespace_info.name for description in response.namespaces} - {SYSTEM_NAMESPACE}
            request.next_page_token = response.next_page_token
            if not request.next_page_token:
                break
    except RPCError as error:
        if error.status not in _UNSUPPORTED:
            raise
    return [Client(**(client.config() | {"namespace": name})) for name in sorted(names)]


class _ReferenceReader:
    """Finds the digests and generated IDs that histories, schedules and payloads contain."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.used: set[str] = set()
        self.histories = 0

    async def read(self, client: Client) -> None:
        """Add the digests and IDs to which the histories and schedules of a namespace refer.

        Raises:
            RPCError: A history or schedule could not be read.
            StoreFailed: A payload could not be read.
        """
        codec = client.data_converter.payload_codec
        nested: set[str] = set()
        async for execution in client.list_workflows():
            handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
            # The server may have deleted the history since it listed the workflow.
            if (history := await fetch_or_none(handle.fetch_history())) is not None:
                self.histories += 1
                self.used |= _scan(execution.id.encode())
                tools = {e.event_id for e in history.events if _is_tool_call(e)}
                for event in history.events:
                    digests = await _find_digests(event, codec)
                    self.used |= digests
                    # Results of tools are large and do not refer to payloads.
                    if event.activity_task_completed_event_attributes.scheduled_event_id not in tools:
                        nested |= digests
        nested |= await _read_schedules(client)
        await self._follow(nested, codec)

    async def _follow(self, digests: set[str], codec: PayloadCodec | None) -> None:
        """Add the digests to which payloads refer, such as the archived log of a conversation."""
        followed: set[str] = set()
        while digests:
            self.used |= digests
            followed |= digests
            found: set[str] = set()
            for digest in digests:
                if len(digest) < DIGEST_LENGTH:
                    continue  # part of an ID
                with suppress(BlobMissing):
                    found |= await _find_nested(await self._blobs.get(digest), codec)
            digests = found - followed


def _is_tool_call(event: HistoryEvent) -> bool:
    # A tool's activity is named after the agent and the tool, with a dot between them.
    return "." in event.activity_task_scheduled_event_attributes.activity_type.name


def _scan(data: bytes) -> set[str]:
    return {digest.decode() for digest in _USED.findall(data)}


async def _find_digests(event: HistoryEvent, codec: PayloadCodec | None) -> set[str]:
    digests = _scan(event.SerializeToString())
    if codec is not None:
        for container in find_payloads(event):
            plain = [payload for payload in list_payloads(container) if not is_reference(payload)]
            for payload in await codec.decode(plain) if plain else ():
                digests |= _scan(payload.data)
    return digests


async def _find_nested(data: bytes, codec: PayloadCodec | None) -> set[str]:
    digests = _scan(data)
    with suppress(DecodeError):  # archived logs are not payloads
        for payload in await codec.decode([Payload.FromString(data)]) if codec else ():
            digests |= _scan(payload.data)
    return digests


async def _read_schedules(client: Client) -> set[str]:
    """Return the digests to which the arguments of schedules refer."""
    digests: set[str] = set()
    try:
        async for listed in await client.list_schedules():
            description = await client.get_schedule_handle(listed.id).describe()
            digests |= _scan(description.raw_description.SerializeToString())
    except RPCError as error:
        if error.status not in _UNSUPPORTED:
            raise
    return digests
