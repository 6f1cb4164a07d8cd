"""The table of behaviours is true, and what must be proved is."""

import pytest

from tests.behaviours import NOT_OURS, PAGE, REQUIRED, missing, named, page, proofs


def test_the_page_is_what_the_tests_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.behaviours"


def test_everything_that_is_required_has_a_test() -> None:
    assert missing(proofs()) == []


def test_a_test_that_is_lost_is_missed() -> None:
    found = set(proofs()) - {"Q-34", "C04"}

    assert missing(found) == ["Q-34", "C04"]


def test_what_was_replaced_is_not_asked_for() -> None:
    assert len(NOT_OURS) == 6
    assert set() == NOT_OURS & REQUIRED


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Q-12, and C31: or I8.", ["Q-12", "C31", "I8"]),
        ("Q-09..Q-11, Q-13", ["Q-09", "Q-10", "Q-11", "Q-13"]),
        ("D-98..D-100", ["D-98", "D-99", "D-100"]),
        ("I1..I3 hold", ["I1", "I2", "I3"]),
        ("spec 2.10 range delete: it is idempotent", ["spec 2.10 range delete"]),
        ("the UTC-05 zone, SQ-12, IC31, C4 and C, a spec", []),
    ],
)
def test_ids_are_found_in_a_docstring(text: str, ids: list[str]) -> None:
    assert list(named(text)) == ids
