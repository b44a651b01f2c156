"""Standard streams that are closed when a program begins, as some service managers leave them."""

import os
import sys


def open_standard_streams() -> None:
    """Open those that are closed on nothing. Python has None in their place, which nobody reckons with."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the program runs
