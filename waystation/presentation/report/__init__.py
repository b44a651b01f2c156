"""An invocation on one page: what it did, what it cost, what people and models said. As HTML, and as JSON."""

from waystation.presentation.report.invocation_report import Report, report

__all__ = ["Report", "report"]
