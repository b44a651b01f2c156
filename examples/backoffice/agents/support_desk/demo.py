"""A demo model that refunds or looks up orders such as `A-17`."""

import re

from company.models import Call, rules


def choose(message: str) -> list[Call]:
    """Refund an order if the message says so, or else look it up."""
    order = re.search(r"\b[A-Z]-\d+\b", message)
    return [("refund" if "refund" in message.lower() else "look_up_order", {"order": order[0]})] if order else []


demo_model = rules(choose)
