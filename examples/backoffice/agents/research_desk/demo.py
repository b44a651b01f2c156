"""A demo model that asks both services about the last word of a message."""

from company.models import Call, rules


def choose(message: str) -> list[Call]:
    """Ask both services."""
    topic = message.rstrip("?.! ").split()[-1].lower()
    return [("search_handbook", {"topic": topic}), ("get_supplier", {"goods": topic})]


demo_model = rules(choose)
