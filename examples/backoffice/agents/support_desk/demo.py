"""A demo model that refunds, claims damages for, or looks up orders such as `A-17`."""

import re

from company.models import Call, rules


def choose(message: str) -> list[Call]:
    """Refund an order or claim damages if the message says so, or else look it up."""
    tool = "refund" if "refund" in message else "file_claim" if "damage" in message else "look_up_order"
    order = re.search(r"\b[A-Z]-\d+\b", message)
    return [(tool, {"order": order[0]})] if order else []


demo_model = rules(choose)
