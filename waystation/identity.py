"""The public names of `waystation.approvers.identity`, under the path from which programs import them."""

from waystation.approvers.identity import Configuration, answer_digest, write_examples

__all__ = ["Configuration", "answer_digest", "write_examples"]
