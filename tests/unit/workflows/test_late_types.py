"""The worker program builds recorded types once it polls, and before any workflow task."""

import subprocess
import sys
from textwrap import dedent

import pytest

from tests.paths import ROOT

LOADED = """
from types import SimpleNamespace
from temporalio.worker import WorkflowInboundInterceptor
from waystation.worker.loading import load_worker
with load_worker():
    import waystation.worker.main
from waystation.core import ToolCallInput, WorkflowSettings, build_recorded_types, is_building_deferred
from waystation.workflows.engine_activity import SettingsInterceptor
created = SimpleNamespace(unsafe_extern_functions={})
interceptor = SettingsInterceptor(WorkflowSettings()).workflow_interceptor_class(created)
assert not ToolCallInput.__pydantic_complete__ and is_building_deferred()
"""
BUILT = """
assert ToolCallInput.__pydantic_complete__ and not is_building_deferred()
class Late(ToolCallInput):
    extra: int = 0
assert Late.__pydantic_complete__
"""


@pytest.mark.parametrize("built_by", ["build_recorded_types()", "interceptor(WorkflowInboundInterceptor(None))"])
def test_types_are_built_by_the_worker_or_before_its_first_workflow(built_by: str) -> None:
    """Types that are loaded afterwards are built as usual."""
    code = dedent(LOADED) + built_by + BUILT
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_elsewhere_types_are_built_when_they_are_loaded() -> None:
    """A replayer of the SDK would build them in the threads of workflows."""
    code = """
        import waystation.workflows.invocation
        from waystation.core import ToolCallInput, is_building_deferred
        assert ToolCallInput.__pydantic_complete__ and not is_building_deferred()
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True, cwd=ROOT)
