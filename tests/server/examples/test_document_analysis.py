"""The document analysis: artifacts and memory."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import answered
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says

AGENT = "document_analysis_agent"
REPORT = {"document_name": "report.txt", "text": "Sales rose in May. Costs fell. In June sales fell, too!"}
SALES = {"document_name": "report.txt", "analysis_query": "sales"}


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots[AGENT]


@pytest.mark.slow
async def test_one_conversation_finds_the_documents_of_another(serve: Serve, root: Root) -> None:
    """A conversation finds documents and earlier questions of its user; another user finds neither."""
    model = ScriptedModel()
    async with serve(root.agent, model=model) as env:
        model.add(calls(("keep_document", REPORT)), says("Kept."))
        kept = await env.client.start(AGENT, "Here is a report on sales.", user_id="ada")
        await kept.result()
        model.add(calls(("process_document", SALES)), says("They rose, then fell."))
        question = await env.client.start(AGENT, "How are sales?", user_id="ada")
        await question.result()
        model.add(calls(("process_document", SALES)), says("I have no report."))
        stranger = await env.client.start(AGENT, "How are sales?", user_id="bob")
        await stranger.result()
        first, second, third = [
            [event async for event in invocation.events()] for invocation in (kept, question, stranger)
        ]
    assert answered(first) == [{"status": "success", "document": "report.txt", "version": 0}]
    assert answered(second) == [
        {
            "status": "success",
            "found": ["Sales rose in May.", "In June sales fell, too!"],
            "analysis_artifact": "analysis_report.txt",
            "version": 0,
            "mentioned_before": 1,
        }
    ]
    assert [event.actions.artifact_delta for event in second if event.actions.artifact_delta] == [
        {"analysis_report.txt": 0}
    ]
    assert answered(third) == [
        {"status": "error", "error_message": "There is no document 'report.txt'.", "documents": []}
    ]


@pytest.mark.slow
async def test_the_demo_model_follows_its_rules(serve: Serve, root: Root) -> None:
    """The demo model also names itself."""
    talk = [
        ("Hello", "Say: Keep report.txt: Sales rose. Costs fell. Or: What does report.txt say about sales?"),
        ("What does report.txt say about sales?", "There is no document 'report.txt'. There are: none."),
        ("Keep report.txt: Sales rose in May. Costs fell.", "Kept report.txt, version 0."),
        ("Keep report.txt: Sales rose in May, they say.", "Kept report.txt, version 1."),
        ("What does report.txt say about sales?", "Sales rose in May, they say. You mentioned it 3 times before."),
        ("What does report.txt say about hamsters?", "Nothing. You mentioned it 0 times before."),
        ("What does other.txt say about sales?", "There is no document 'other.txt'. There are: report.txt."),
    ]
    async with serve(root.agent, model=root.demo_model) as env:
        for message, text in talk:
            result = await env.client.run(AGENT, message)
            assert result.text == f"[demo model] {text}", message
