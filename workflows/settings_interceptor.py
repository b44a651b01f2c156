"""Pass a worker's settings to its workflows, from outside of them."""

from temporalio.worker import Interceptor, WorkflowInterceptorClassInput

from waystation.core import WorkflowSettings
from waystation.workflows.engine_activity import SETTINGS


class SettingsInterceptor(Interceptor):
    """Gives workflows the function by which `engine_activity.settings` asks."""

    def __init__(self, settings: WorkflowSettings) -> None:
        self._settings = settings

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:
        input.unsafe_extern_functions[SETTINGS] = lambda: self._settings
