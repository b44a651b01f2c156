"""Execution of code that the model writes, in the provider's sandbox."""

from typing import TYPE_CHECKING

from waystation.tools.native_tool import NativeTool

if TYPE_CHECKING:
    pass


class BuiltInCodeExecutionTool(NativeTool):
    """Execution of Python that the model writes, in the provider's sandbox."""

    title = "Gemini code execution tool"
    tool = {"codeExecution": {}}

    def __init__(self) -> None:
        super().__init__(name="code_execution", description="code_execution")


built_in_code_execution = BuiltInCodeExecutionTool()
