"""Text from tasks on its way to a terminal, a spreadsheet and a JSON reader."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.admin.escape import json_safe, one_line, spreadsheet_safe, visible

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(
    st.sampled_from("\x00\x1b\x9b\u202e\ud800=+-@\n\t ä猫")
)


@given(ANY_TEXT)
def test_visible_text_cannot_steer_a_terminal(text: str) -> None:
    shown = visible(text)

    shown.encode("utf-8")  # no half of a surrogate pair is left
    assert all(character.isprintable() or ord(character) >= 0xA0 for character in shown)
    assert not set(shown) & set("\x1b\x9b\r\n\t\x07\u202e\u2066\u200b")


@given(ANY_TEXT)
def test_json_decodes_to_the_very_same_text(text: str) -> None:
    encoded = json_safe(json.dumps({text: [text]}, ensure_ascii=False, indent=2))

    assert json.loads(encoded) == {text: [text]}
    assert not set(encoded) & set("\x1b\x9b\x7f\u202e\u2028\ud800")


@given(ANY_TEXT)
def test_no_cell_is_a_formula(text: str) -> None:
    assert not spreadsheet_safe(text).startswith(("=", "+", "-", "@", "\t", "\r"))


@given(ANY_TEXT)
def test_a_message_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


def test_what_is_harmless_stays_as_it_is() -> None:
    assert visible("Zoë 猫 – ½") == "Zoë 猫 – ½"
    assert visible("a\nb\x1b[0m", keep="\n") == "a\nb\\x1b[0m"
    assert spreadsheet_safe("=1+1") == "'=1+1"
    assert spreadsheet_safe("plain") == "plain"
