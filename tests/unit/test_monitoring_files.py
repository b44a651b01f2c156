"""The dashboard and the alerting rules use existing metrics and labels."""

import json
import re
from collections.abc import Iterator

import yaml

from tests.documents import DOCS, section
from tests.paths import ROOT
from tests.unit.test_metrics import METRICS

MONITORING = ROOT / "deploy" / "monitoring"
PARTS = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_sum", "_count")}
EXPORTED = {metric.name + part: metric for metric in METRICS for part in PARTS[metric.kind]}
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the bounds of buckets."""
OF_SDK = {
    "temporal_worker_task_slots_used": {"worker_type"},
    "temporal_worker_task_slots_available": {"worker_type"},
    "temporal_activity_schedule_to_start_latency_seconds_bucket": set[str](),
    "temporal_workflow_task_schedule_to_start_latency_seconds_bucket": set[str](),
}
"""The used metrics of Temporal's SDK with the used labels. A slow test finds them in the output of a worker."""
RULES = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]


def expressions() -> Iterator[str]:
    """Yield the queries of the dashboard and of the rules."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ()))
    yield from (
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["name"] == "agent"
    )
    yield from (rule["expr"] for rule in RULES)


def test_every_query_names_only_exported_metrics_and_labels() -> None:
    """A query names only existing metrics, because other queries show nothing, and their alerts never fire."""
    for expression in expressions():
        names = set(re.findall(r"\b(?:waystation|temporal)_\w+", expression))
        assert names, expression
        assert names <= EXPORTED.keys() | OF_SDK.keys(), expression
        known = {label for name in names for label in (EXPORTED[name].labels if name in EXPORTED else OF_SDK[name])}
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        used = {label.strip() for labels in grouped for label in labels.split(",")}
        used |= set(re.findall(r"(\w+)=~?\"", expression))
        assert used <= known | OF_PROMETHEUS, expression


def test_every_metric_of_a_process_is_on_the_dashboard() -> None:
    """The dashboard shows all metrics that a process counts."""
    text = (MONITORING / "dashboard.json").read_text()
    assert [metric.name for metric in METRICS if metric.kind != "gauge" and metric.name not in text] == []


def test_gauges_of_the_namespace_are_not_summed_over_processes() -> None:
    """Gauges of the namespace are not summed, because several processes export the same value."""
    gauges = "waystation_(?:open|pending|oldest|backlog)_"
    assert [text for text in expressions() if re.search(rf"sum(?: by \([^)]*\))? ?\({gauges}", text)] == []


def test_the_guide_has_a_remedy_for_each_alert() -> None:
    """The table has one row for each rule, in the same order."""
    guide = section((DOCS / "how-to" / "monitor.md").read_text(), "## Receive alerts")
    assert re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE) == [rule["alert"] for rule in RULES]
