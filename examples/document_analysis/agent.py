"""The document analysis of ADK's documentation: a tool that uses artifacts and memory."""

import re

from waystation.agents import Agent
from waystation.agents.callback_context import CallbackContext
from waystation.tools import ToolContext

from .demo import demo_model as demo_model


async def keep_document(document_name: str, text: str, tool_context: ToolContext) -> dict[str, object]:
    """Keep a document, so that it can be analyzed now and later. A document of the same name becomes a new version.

    Args:
        document_name: Such as report.txt.
        text: The whole document.
    """
    # With this prefix the artifact belongs to the user, in all conversations.
    version = await tool_context.save_artifact(f"user:{document_name}", {"text": text})
    return {"status": "success", "document": document_name, "version": version}


async def process_document(document_name: str, analysis_query: str, tool_context: ToolContext) -> dict[str, object]:
    """Analyze a kept document: find what it says about something.

    Args:
        document_name: Such as report.txt.
        analysis_query: What to look for, in a few words.
    """
    document = await tool_context.load_artifact(f"user:{document_name}")
    if document is None or document.text is None:
        known = [name.removeprefix("user:") for name in await tool_context.list_artifacts()]
        return {"status": "error", "error_message": f"There is no document {document_name!r}.", "documents": known}

    earlier = await tool_context.search_memory(analysis_query)

    words = set(analysis_query.lower().split())
    sentences = re.split(r"(?<=[.!?])\s+", document.text)
    matches = [sentence for sentence in sentences if words & set(re.findall(r"\w+", sentence.lower()))]
    version = await tool_context.save_artifact(f"analysis_{document_name}", {"text": "\n".join(matches)})
    return {
        "status": "success",
        "found": matches,
        "analysis_artifact": f"analysis_{document_name}",
        "version": version,
        "mentioned_before": sum(memory.author == "user" for memory in earlier.memories),
    }


async def remember(callback_context: CallbackContext) -> None:
    """Store the conversation in the user's memory when the agent is done."""
    await callback_context.add_session_to_memory()


root_agent = Agent(
    name="document_analysis_agent",
    model="gemini-3.5-flash",
    description="Keeps documents and analyzes them.",
    instruction="""\
Keep the documents that the user gives you with keep_document, and answer questions about them with process_document.
Report the findings, and how often the user mentioned it before.
""",
    tools=[keep_document, process_document],
    after_agent_callback=remember,
)
