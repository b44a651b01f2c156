"""A demo model that reimburses claims such as `20 euros for lunch, receipt lunch.pdf`."""

import re

from company.models import Call, rules


def choose(message: str) -> list[Call]:
    """Reimburse a claim."""
    if not (claim := re.search(r"(\d+(?:\.\d+)?) euros for (.+?), receipt (\S+)", message)):
        return []
    return [("reimburse", {"amount": float(claim[1]), "purpose": claim[2], "receipt": claim[3]})]


demo_model = rules(choose)
