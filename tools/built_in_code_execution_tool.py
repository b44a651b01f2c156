"""The built-in tool for running code in the model provider's sandbox."""

from waystation.tools import NativeTool


class BuiltInCodeExecutionTool(NativeTool):
    """A built-in tool that runs the model's Python code in the provider's sandbox."""

    name = "code_execution"
    title = "Gemini code execution tool"
    tool = {"codeExecution": {}}


built_in_code_execution = BuiltInCodeExecutionTool()
