"""Execution of code that the model writes, in the provider's sandbox."""

from waystation.tools import NativeTool


class BuiltInCodeExecutionTool(NativeTool):
    """Execution of Python that the model writes, in the provider's sandbox."""

    name = "code_execution"
    title = "Gemini code execution tool"
    tool = {"codeExecution": {}}


built_in_code_execution = BuiltInCodeExecutionTool()
