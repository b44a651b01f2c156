"""Push configurations: where the states of a task are sent. Each task that has one has a workflow that keeps them."""

import json
import uuid
from collections.abc import Sequence
from datetime import timedelta

from a2a.types import AuthenticationInfo, TaskPushNotificationConfig
from a2a.utils.errors import InternalError, InvalidParamsError, PushNotificationNotSupportedError
from temporalio.client import WithStartWorkflowOperation, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.invocation_handle import confirm_update, translate_update_error
from waystation.core import ids
from waystation.core.contract import TASK_TIMEOUT
from waystation.core.errors import InvalidConfiguration, InvalidInput, MessageUnconfirmed, NotAllowed
from waystation.core.payload import JsonObject
from waystation.core.push import (
    DELETE_PUSH,
    LIST_PUSH,
    PUSH_HOSTS,
    PUSH_WORKFLOW,
    PUT_PUSH,
    PushConfig,
    PushDeletion,
    PushPerson,
    PushTask,
    find_push_fault,
    make_push_request,
    parse_hosts,
)
from waystation.interfaces.a2a_server.task_reads import TaskReader
from waystation.interfaces.a2a_server.task_views import TaskRef
from waystation.project_file import find_setting
from waystation.web.starter import identify_starter, tenant_of
from waystation.web.typed_routes import HOLD_S
from waystation.web.web_services import WebServices

QUERY_S = 10.0


def read_hosts() -> frozenset[str]:
    """Return the hosts that push configurations may name."""
    return parse_hosts(find_setting(PUSH_HOSTS) or "")


class PushConfigs:
    """The push configurations of tasks. People see only their own."""

    def __init__(self, services: WebServices) -> None:
        self._client = services.client

    def check_supported(self) -> None:
        """Check that the operator allows push notifications.

        Raises:
            PushNotificationNotSupportedError: The operator allows no hosts.
        """
        if not read_hosts():
            text = f"The operator of this server allows no push notifications ({PUSH_HOSTS})."
            raise PushNotificationNotSupportedError(message=text)

    async def create(
        self, reader: TaskReader, ref: TaskRef, config: TaskPushNotificationConfig
    ) -> TaskPushNotificationConfig:
        """Add a configuration to a task, or replace the one with its ID.

        Raises:
            InvalidParamsError: The URL is not allowed, or the secrets cannot be kept.
        """
        if fault := find_push_fault(config.url, read_hosts()):
            raise InvalidParamsError(message=fault)
        id, place = config.id or uuid.uuid4().hex, ids.push_delivery(ref.invocation_id)
        kept = PushConfig(
            id=id[:200],
            url=config.url,
            sealed=self._seal(config, place),
            scheme=config.authentication.scheme[:100],
            person=make_person(reader),
        )
        app, tenant = ids.parse_app_key(ref.app_key)
        task = PushTask(
            invocation_id=ref.invocation_id,
            task_id=ref.task_id,
            context_id=ref.session_id,
            app=app,
            user_id=ref.user_id,
            tenant=tenant,
        )
        await self._update(place, PUT_PUSH, [kept.model_dump(mode="json")], task)
        return make_config(ref, kept.model_dump())

    async def read_all(self, reader: TaskReader, ref: TaskRef) -> list[TaskPushNotificationConfig]:
        """Return the person's configurations for a task, without their secrets."""
        handle = self._client.temporal.get_workflow_handle(ids.push_delivery(ref.invocation_id))
        try:
            found = await handle.query(LIST_PUSH)
        except (RPCError, WorkflowQueryFailedError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                return []
            raise InternalError(message="No worker has read the configurations. Try again.") from None
        own = (identify_starter(reader.login), tenant_of(reader.login))
        persons = [(config["person"]["subject"], config["person"].get("tenant")) for config in found]
        return [make_config(ref, config) for config, person in zip(found, persons, strict=True) if person == own]

    async def delete(self, reader: TaskReader, ref: TaskRef, id: str) -> None:
        """Delete one of the person's configurations, if it exists."""
        subject, tenant = identify_starter(reader.login), tenant_of(reader.login)
        args = [PushDeletion(id=id, subject=subject, tenant=tenant).model_dump(mode="json")]
        try:
            await self._update(ids.push_delivery(ref.invocation_id), DELETE_PUSH, args, None)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    def _seal(self, config: TaskPushNotificationConfig, place: str) -> str | None:
        """Return the secrets of a configuration, encrypted for the workers, or None if it has none.

        Raises:
            InvalidParamsError: They cannot be encrypted, so they must not be recorded.
        """
        scheme, credentials = config.authentication.scheme, config.authentication.credentials
        if not config.token and not credentials:
            return None
        # Newlines would add headers.
        if not f"{config.token}{scheme}{credentials}".isprintable():
            raise InvalidParamsError(message="The token or the credentials contain unprintable characters.")
        authorization = f"{scheme} {credentials}" if credentials else None
        secrets = json.dumps({"url": config.url, "token": config.token or None, "authorization": authorization})
        names = {"namespace": self._client.temporal.namespace, "approval_id": place}
        try:
            return self._client.token_encryption.encrypt(secrets, **names, answer=make_push_request(place))
        except (InvalidConfiguration, NotAllowed):
            text = "This server cannot encrypt the token or the credentials for the workers, so it refuses them."
            raise InvalidParamsError(message=text) from None

    async def _update(self, place: str, name: str, args: Sequence[object], task: PushTask | None) -> JsonObject:
        temporal = self._client.temporal

        async def send(id: str) -> JsonObject:
            if task is None:
                found: JsonObject = await temporal.get_workflow_handle(place).execute_update(name, args=args, id=id)
                return found
            start: WithStartWorkflowOperation[object, None] = WithStartWorkflowOperation(
                PUSH_WORKFLOW,
                task.model_dump(mode="json", exclude_defaults=True),
                id=place,
                task_queue=self._client.task_queue,
                task_timeout=TASK_TIMEOUT,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
            made: JsonObject = await temporal.execute_update_with_start_workflow(
                name, args=args, start_workflow_operation=start, id=id
            )
            return made

        limit = timedelta(seconds=HOLD_S / 2)
        try:
            return await confirm_update(send, name=name, within=limit, unconfirmed=MessageUnconfirmed(place))
        except WorkflowUpdateFailedError as error:
            raise translate_update_error(error, InvalidInput) from None


def make_person(reader: TaskReader) -> PushPerson:
    """Return the person as a configuration records it."""
    login = reader.login
    return PushPerson(
        subject=identify_starter(login),
        tenant=tenant_of(login),
        names=login.names,
        is_approver="approver" in login.roles and login.answers and not login.is_machine,
    )


def make_config(ref: TaskRef, config: JsonObject) -> TaskPushNotificationConfig:
    """Return a recorded configuration. Its secrets are not readable here."""
    scheme = config.get("scheme")
    return TaskPushNotificationConfig(
        id=config["id"],
        task_id=ref.task_id,
        url=config["url"],
        authentication=AuthenticationInfo(scheme=scheme) if scheme else None,
    )
