"""Code execution in the provider's sandbox."""

from waystation.tools import NativeTool


class BuiltInCodeExecutionTool(NativeTool):
    """Runs Python code from the model in the provider's sandbox."""

    name = "code_execution"
    title = "Gemini code execution tool"
    tool = {"codeExecution": {}}


built_in_code_execution = BuiltInCodeExecutionTool()
