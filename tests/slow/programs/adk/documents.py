"""A tool loads an artifact, searches the user's memories and saves another artifact."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.artifacts import InMemoryArtifactService
from waystation.memory import InMemoryMemoryService
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools import FunctionTool, ToolContext

APP_NAME, USER_ID, SESSION_ID = "document_app", "user1234", "1234"


async def process_document(document_name: str, analysis_query: str, tool_context: ToolContext) -> dict:
    """Analyze a document with the help of the user's memories."""
    count("process_document")
    document = await tool_context.load_artifact(document_name)
    if not document:
        return {"status": "error", "message": f"Document '{document_name}' not found."}
    memories = await tool_context.search_memory(f"Context for analyzing document about {analysis_query}")
    found = [part.text for memory in memories.memories for part in memory.content.parts]
    print(f"Tool: Found {len(found)} memories.")
    text = f"Analysis of {document.text}: {found}"
    version = await tool_context.save_artifact(f"analysis_{document_name}", types.Part.from_text(text=text))
    return {"status": "success", "analysis_artifact": f"analysis_{document_name}", "version": version}


doc_agent = Agent(
    model="gemini-3.5-flash",
    name="doc_agent",
    instruction="Process the document that the user names.",
    tools=[FunctionTool(func=process_document)],
)


async def main():
    session_service = InMemorySessionService()
    artifact_service, memory_service = InMemoryArtifactService(), InMemoryMemoryService()
    runner = Runner(
        agent=doc_agent,
        app_name=APP_NAME,
        session_service=session_service,
        artifact_service=artifact_service,
        memory_service=memory_service,
    )
    place = {"app_name": APP_NAME, "user_id": USER_ID, "session_id": SESSION_ID}

    async def ask(query):
        content = types.Content(role="user", parts=[types.Part(text=query)])
        async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
            if event.actions.artifact_delta:
                print("Saved:", event.actions.artifact_delta)
            if event.is_final_response():
                print("Agent Response:", event.content.parts[0].text)

    await session_service.create_session(**place)
    version = await artifact_service.save_artifact(
        **place, filename="report.txt", artifact=types.Part.from_text(text="Sales rose.")
    )
    print("Document version:", version)
    await ask("The context of sales is the spring season")
    await memory_service.add_session_to_memory(await session_service.get_session(**place))
    await ask("Process report.txt")
    saved = await artifact_service.load_artifact(**place, filename="analysis_report.txt")
    print(saved.text, await artifact_service.list_artifact_keys(**place))


asyncio.run(main())
