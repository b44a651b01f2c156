"""A collector receives the spans of killed workers, as in production."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.fakes.span_collector import SpanCollector
from tests.server.processes.conftest import new_place
from tests.server.processes.workers import plan, until
from waystation.embedded import EmbeddedServer
from waystation.worker.spans import find_trace

PLAN = plan([("remember", {"word": "a"})], [("hold", {"gate": "after"})])


async def test_after_a_kill_each_fact_is_exported_once(server: EmbeddedServer, tmp_path: Path) -> None:
    """One worker is killed with SIGKILL while it runs a tool. Another one exports the whole trace."""
    with SpanCollector() as collector:
        place = new_place(server, tmp_path)
        place = replace(place, environment=collector.environment, options=("--traces",))
        client = await place.client()
        async with place.worker() as first:
            invocation = await client.start("planned", PLAN)
            await until(lambda: place.ledger.lines("began"), "a tool that runs")
            await first.kill()
        place.ledger.open("after")
        async with place.worker() as second:
            await invocation.result()
            logs = second.events("model_call.completed")
            await second.stop()
    names = Counter(span.name for span in collector.spans)
    assert names == {"invoke_agent planned": 1, "chat": 3, "execute_tool remember": 1, "execute_tool hold": 1}
    trace_id = find_trace(invocation.id, None).id
    assert {span.trace_id for span in collector.spans} == {trace_id.to_bytes(16)}
    span_ids = {span.span_id.hex() for span in collector.spans}
    assert {(log["trace_id"], log["span_id"] in span_ids) for log in logs} == {(f"{trace_id:032x}", True)}
    assert "remember" not in str([span.attributes for span in collector.spans if span.name == "chat"])
