"""Push configurations: where the states of a task are sent. Each one is the workflow that sends them."""

import asyncio
import json
import uuid
from contextlib import suppress

from a2a.types import AuthenticationInfo, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError
from pydantic import ValidationError
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from waystation.client import AgentClient
from waystation.core import ids
from waystation.core.contract import TASK_TIMEOUT
from waystation.core.errors import InvalidConfiguration, NotAllowed
from waystation.core.payload import describe_faults
from waystation.core.push import (
    MAX_CONFIGS,
    PUSH_HOSTS,
    PUSH_WORKFLOW,
    PushConfig,
    PushTask,
    find_push_fault,
    make_push_request,
    parse_hosts,
)
from waystation.history import check_start, describe_workflow, fetch_or_none, read_memo
from waystation.interfaces.a2a_server.task_reads import TaskReader
from waystation.interfaces.a2a_server.task_views import TaskRef
from waystation.project_file import find_setting
from waystation.storage import Owner

CONFIG = "push_config"
"""The key in the memo of a delivery with its configuration, without the secrets."""


def read_hosts() -> frozenset[str]:
    """Return the hosts that push configurations may name."""
    return parse_hosts(find_setting(PUSH_HOSTS))


def check_supported() -> None:
    """Check that the operator allows push notifications.

    Raises:
        PushNotificationNotSupportedError: The operator allows no hosts.
    """
    if not read_hosts():
        text = f"The operator of this server allows no push notifications ({PUSH_HOSTS})."
        raise PushNotificationNotSupportedError(message=text)


async def find_own_task(reader: TaskReader, task_id: str) -> TaskRef:
    """Return a task of the person. Others may see it only while it asks them, so they receive no states.

    Raises:
        PushNotificationNotSupportedError: The operator allows no hosts.
        TaskNotFoundError: The person does not own a task with this ID.
    """
    check_supported()
    ref, _ = await reader.find(task_id)
    if not reader.is_own(ref):
        raise TaskNotFoundError(message="Only the owner of a task has push configurations.")
    return ref


async def create_config(
    reader: TaskReader, ref: TaskRef, config: TaskPushNotificationConfig
) -> TaskPushNotificationConfig:
    """Add a configuration to a task of the person, or replace the one with its ID.

    Raises:
        InvalidParamsError: The URL is not allowed, the secrets cannot be kept, or the task has too many configurations.
    """
    if fault := find_push_fault(config.url, read_hosts()):
        raise InvalidParamsError(message=fault)
    client, login, scheme = reader.services.client, reader.login, config.authentication.scheme
    try:
        kept = PushConfig(id=config.id or uuid.uuid4().hex, url=config.url, scheme=scheme)
    except ValidationError as error:
        raise InvalidParamsError(message=f"The configuration is invalid: {describe_faults(error)}.") from None
    configs = await _read_kept(client, ref)
    old = next((number for number, other in configs.items() if other and other.id == kept.id), None)
    number = next((n for n in range(MAX_CONFIGS) if n not in configs), None) if old is None else old
    if number is None:
        raise InvalidParamsError(message=f"A task can have {MAX_CONFIGS} push configurations. Delete one first.")
    app, tenant = ids.parse_app_key(ref.app_key)
    task = PushTask(
        invocation_id=ref.invocation_id,
        number=number,
        task_id=ref.task_id,
        context_id=ref.session_id,
        app=app,
        user_id=ref.user_id,
        tenant=tenant,
        names=login.names,
        is_approver="approver" in login.roles and login.answers and not login.is_machine,
        config=kept,
    )
    task = task.model_copy(update={"sealed": _seal(client, config, task.place)})
    await check_start(client.temporal, task.place, Owner(ref.app_key, ref.user_id))
    policy = WorkflowIDConflictPolicy.FAIL if old is None else WorkflowIDConflictPolicy.TERMINATE_EXISTING
    try:
        await client.temporal.start_workflow(
            PUSH_WORKFLOW,
            task.model_dump(mode="json", exclude_defaults=True),
            id=task.place,
            task_queue=client.task_queue,
            task_timeout=TASK_TIMEOUT,
            memo={CONFIG: kept.model_dump(mode="json")},
            id_conflict_policy=policy,
        )
    except WorkflowAlreadyStartedError:  # another request has taken the place
        return await create_config(reader, ref, config)
    return _make_config(ref, kept)


async def list_configs(reader: TaskReader, ref: TaskRef) -> list[TaskPushNotificationConfig]:
    """Return the configurations of a task, without their secrets."""
    return [_make_config(ref, kept) for kept in (await _read_kept(reader.services.client, ref)).values() if kept]


async def delete_config(reader: TaskReader, ref: TaskRef, id: str) -> None:
    """Delete a configuration, if it exists."""
    temporal = reader.services.client.temporal
    for number, kept in (await _read_kept(reader.services.client, ref)).items():
        if kept and kept.id == id:
            handle = temporal.get_workflow_handle(ids.push_delivery(ref.invocation_id, number))
            await fetch_or_none(handle.terminate("deleted by its owner"))


async def _read_kept(client: AgentClient, ref: TaskRef) -> dict[int, PushConfig | None]:
    """Return the configurations of a task by their places, or None for a place that something else has taken.

    The server's list of workflows would show a configuration only some time after it was made.
    """
    places = [ids.push_delivery(ref.invocation_id, number) for number in range(MAX_CONFIGS)]
    found = await asyncio.gather(*(describe_workflow(client.temporal, place) for place in places))
    kept = dict[int, PushConfig | None]()
    for number, described in enumerate(found):
        if described and described.status is WorkflowExecutionStatus.RUNNING:
            kept[number] = None
            with suppress(ValidationError):
                kept[number] = PushConfig.model_validate((await read_memo(described)).get(CONFIG))
    return kept


def _seal(client: AgentClient, config: TaskPushNotificationConfig, place: str) -> str | None:
    """Return the secrets of a configuration, encrypted for the workers, or None if it has none.

    Raises:
        InvalidParamsError: They cannot be encrypted, so they must not be recorded.
    """
    scheme, credentials = config.authentication.scheme, config.authentication.credentials
    headers = {"x-a2a-notification-token": config.token, "authorization": credentials and f"{scheme} {credentials}"}
    if not any(headers.values()):
        return None
    # Newlines would add headers.
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise InvalidParamsError(message="The token or the credentials contain characters that no header can have.")
    secrets = json.dumps({"url": config.url, "headers": {name: value for name, value in headers.items() if value}})
    names = {"namespace": client.temporal.namespace, "approval_id": place}
    try:
        return client.token_encryption.encrypt(secrets, **names, answer=make_push_request(place))
    except (InvalidConfiguration, NotAllowed):
        text = "This server cannot encrypt the token or the credentials for the workers, so it refuses them."
        raise InvalidParamsError(message=text) from None


def _make_config(ref: TaskRef, kept: PushConfig) -> TaskPushNotificationConfig:
    authentication = AuthenticationInfo(scheme=kept.scheme) if kept.scheme else None
    return TaskPushNotificationConfig(id=kept.id, task_id=ref.task_id, url=kept.url, authentication=authentication)
