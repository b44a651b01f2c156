"""Prometheus accepts the alerting rules and the queries of the dashboard, and the rules fire when they should.

`make deploy-tools` installs promtool. Without it, these tests are skipped.
"""

import json
from pathlib import Path

from verification.deploy.test_manifests import DEPLOY, run, tool

MONITORING = DEPLOY / "monitoring"


def test_each_alert_fires_on_its_cause_and_on_nothing_else() -> None:
    """The alerts fire in the cases of alerts.test.yaml, and in no others."""
    done = run(tool("promtool"), "test", "rules", MONITORING / "alerts.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """Prometheus parses the queries, with an interval and a pattern for Grafana's variables."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries = [query.replace("$__rate_interval", "5m").replace("$agent", ".*") for query in queries]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.json"  # JSON is YAML, too
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = run(tool("promtool"), "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
