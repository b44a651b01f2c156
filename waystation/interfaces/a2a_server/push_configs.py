"""Push configurations: where the states of a task are sent. Each task with one has a workflow that keeps them."""

from a2a.types import TaskPushNotificationConfig
from a2a.utils.errors import PushNotificationNotSupportedError

from waystation.interfaces.a2a_server.task_reads import TaskReader
from waystation.interfaces.a2a_server.task_views import TaskRef
from waystation.web.web_services import WebServices


def read_hosts() -> frozenset[str]:
    return frozenset()


class PushConfigs:
    def __init__(self, services: WebServices) -> None:
        self._services = services

    async def create(self, reader: TaskReader, ref: TaskRef, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        raise PushNotificationNotSupportedError

    async def read_all(self, reader: TaskReader, ref: TaskRef) -> list[TaskPushNotificationConfig]:
        raise PushNotificationNotSupportedError

    async def delete(self, reader: TaskReader, ref: TaskRef, id: str) -> None:
        raise PushNotificationNotSupportedError
