"""The planted faults of `make faults`, which takes too long to run with these tests."""

import re

import pytest

from verification.faults.run import CHECKOUT, Fault, check_places, load_faults


def test_every_fault_can_be_planted() -> None:
    """The code that a fault changes occurs exactly once in its file."""
    check_places(load_faults([]), CHECKOUT)


@pytest.mark.parametrize("fault", load_faults([]), ids=lambda fault: fault.id)
def test_the_tests_that_catch_a_fault_exist(fault: Fault) -> None:
    """Every test that catches a fault exists under its name."""
    for name in fault.tests:
        file, _, test = name.partition("::")
        assert (CHECKOUT / file).exists(), file
        if test:
            function = re.escape(test.partition("[")[0])
            assert re.search(rf"def {function}\b", (CHECKOUT / file).read_text(encoding="utf-8")), name
