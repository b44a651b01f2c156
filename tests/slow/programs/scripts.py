"""The model's replies in each program of the folder `adk`."""

from collections.abc import Mapping, Sequence
from typing import Any

_MEALS = {"purpose": "meals", "amount": 50.0}
_TRAVEL = {"purpose": "travel", "amount": 200.0}

REPLIES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "stock_price": [{"calls": [("get_stock_price", {"symbol": "GOOG"})]}, {"text": "It is 190.5."}],
    "reimbursement": [
        {"calls": [("reimburse", _MEALS)]},
        {"text": "Reimbursed 50."},
        {"calls": [("ask_for_approval", _TRAVEL)]},
        {"text": "I asked your manager."},
        {"calls": [("reimburse", _TRAVEL)]},
        {"text": "Reimbursed 200."},
    ],
    "summarizer": [{"calls": [("summary_agent", {"request": "Quantum"})]}, {"text": "It is different."}],
    "weather_sentiment": [
        {"calls": [("get_weather_report", {"city": "London"})]},
        {"text": "Cloudy."},
        {"calls": [("analyze_sentiment", {"text": "That makes me sad."})]},
        {"text": "Sorry."},
    ],
    "support_transfer": [{"calls": [("check_and_transfer", {"query": "urgent"})]}, {"text": "How can I help?"}],
    "user_preference": [
        {"calls": [("update_user_preference", {"preference": "theme", "value": "dark"})]},
        {"text": "Stored one."},
        {"calls": [("update_user_preference", {"preference": "name", "value": "Sam"})]},
        {"text": "Stored two."},
    ],
    "login_state": [
        {"calls": [("count_visit", {})]},
        {"text": "Welcome."},
        {"calls": [("count_visit", {})]},
        {"text": "Goodbye."},
    ],
    "documents": [
        {"text": "Noted."},
        {"calls": [("process_document", {"document_name": "report.txt", "analysis_query": "sales"})]},
        {"text": "Done."},
    ],
    "calculator": [
        {"calls": [("add_numbers", {"a": 5, "b": 3})]},
        {"text": "8"},
        {"calls": [("subtract_numbers", {"a": 8, "b": 2})]},
        {"text": "6"},
    ],
}
