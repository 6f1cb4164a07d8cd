"""`lattice-tasks dlq`, on both engines."""

import pytest

from .conftest import App, CommandLine


def outcomes(data: list[dict[str, object]]) -> dict[object, object]:
    return {row["entry_id"]: row["outcome"] for row in data}


def test_dead_letters_are_listed_counted_and_shown(cli: CommandLine, app: App) -> None:
    (task_id,) = app.park(1, text="no \x1b[31mred")
    app.refuse.submit()
    app.work()

    listed = cli.json("dlq", "list", "--queue", "sums")
    shown = cli.json("dlq", "show", "1", "--queue", "sums")

    assert [(row["entry_id"], row["reason"], row["attempts"]) for row in listed] == [
        (1, "unknown", 1),
        (2, "rejected", 1),
    ]
    assert (listed[0]["task_id"], listed[0]["queue"], listed[0]["actor"]) == (task_id, "sums", "fail")
    assert listed[0]["error"] == "ValueError: no \x1b[31mred"
    assert (shown["args"], shown["kwargs"]) == ([0], {"text": "no \x1b[31mred"})
    assert "raise ValueError(text)" in shown["traceback"]
    assert cli.json("dlq", "show", task_id) == shown
    assert cli.json("dlq", "count") == {"count": 2}
    assert cli("dlq", "count", "--queue", "sums").out == "2\n"
    assert "\x1b" not in cli("dlq", "list").out + cli("dlq", "show", task_id).out


def test_a_list_can_be_narrowed(cli: CommandLine, app: App) -> None:
    app.park(2)
    app.refuse.submit()
    app.work()

    assert [row["entry_id"] for row in cli.json("dlq", "list", "--reason", "rejected")] == [3]
    assert [row["entry_id"] for row in cli.json("dlq", "list", "--actor", "fail", "--limit", "1")] == [1]
    assert cli.json("dlq", "list", "--actor", "nope") == []
    assert cli("dlq", "list", "--reason", "nope").code == 2
    assert (
        cli("dlq", "list", "--only", "actor-not-found").code
        == cli("dlq", "list", "--only", "actor_not_found").code
        == 0
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("list", "--queue", "nope"), 3),
        (("count", "--queue", "nope"), 3),
        (("show", "1", "--queue", "nope"), 3),
        (("show", "9", "--queue", "sums"), 3),
        (("show", "9"), 2),
        (("show", "0190b2a4-7c1e-7c3f-9d62-5f0d3a1b2c3d"), 3),
        (("show", "nonsense"), 3),
        (("discard", "--queue", "sums", "--yes"), 2),
        (("discard", "1", "--all", "--queue", "sums", "--yes"), 2),
        (("discard", "--all", "--yes"), 2),
        (("discard", "1", "--queue", "nope", "--yes"), 3),
        (("replay", "1", "--queue", "sums", "--here"), 2),
        (("replay", "1", "--queue", "sums", "--pdb"), 2),
        (("replay", "1", "--queue", "sums", "--wait", "-1"), 2),
        (("replay", "1", "--queue", "sums", "--wait", "2030-01-31T12:00Z"), 2),
        (("replay", "99999999999999999999999", "--queue", "sums"), 3),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_changes_nothing(
    cli: CommandLine, app: App, arguments: tuple[str, ...], code: int
) -> None:
    app.park(1)

    ran = cli("dlq", *arguments)

    assert (ran.code, len(ran.err.splitlines())) == (code, 1), ran.err
    assert cli.json("dlq", "count") == {"count": 1}


def test_without_a_terminal_and_a_yes_nothing_is_discarded(cli: CommandLine, app: App) -> None:
    app.park(2)

    refused = [
        cli("dlq", "discard", "1", "--queue", "sums"),
        cli("dlq", "discard", "--all", "--queue", "sums"),
        cli("dlq", "replay", "--all", "--queue", "sums"),
        cli("dlq", "discard", "1", "--queue", "sums", typed="no\n"),
        cli("dlq", "discard", "1", "--queue", "sums", typed=""),
    ]

    assert [ran.code for ran in refused] == [6] * 5
    assert cli.json("dlq", "count") == {"count": 2}


def test_a_dry_run_shows_what_would_be_done(cli: CommandLine, app: App) -> None:
    app.park(2)

    discard = cli.json("dlq", "discard", "--all", "--queue", "sums", "--dry-run")
    replay = cli.json("dlq", "replay", "1", "--queue", "sums", "--dry-run")

    assert (outcomes(discard), outcomes(replay)) == (dict.fromkeys((1, 2), "would_discard"), {1: "would_replay"})
    assert [row["is_replaying"] for row in cli.json("dlq", "list")] == [False, False]


def test_discard_ends_the_tasks_and_answers_for_each_id(cli: CommandLine, app: App) -> None:
    """C55: what was named is touched, nothing else, and what was not there is told."""
    ids = app.park(3)

    one = cli("dlq", "discard", "1", ids[1], "77", "--queue", "sums", "--yes", "-o", "json")
    again = cli("dlq", "discard", "1", "--queue", "sums", "--yes")
    asked = cli("dlq", "discard", "--all", "--queue", "sums", typed="yes\n")

    assert one.code == 5
    assert sorted(outcomes(one.data).values()) == ["discarded", "discarded", "not_found"]
    assert len(one.err.splitlines()) == 1
    assert again.code == 3
    assert (asked.code, "Discard 1 dead letter of queue sums" in asked.err) == (0, True)
    assert {task["state"] for task in cli.json("tasks", "list")} == {"discarded"}


def test_a_filter_that_fits_nothing_touches_nothing_and_says_zero(cli: CommandLine, app: App) -> None:
    """C55: an empty choice is no choice of everything."""
    app.park(1)

    for verb in ("discard", "replay"):
        ran = cli("dlq", verb, "--all", "--queue", "sums", "--actor", "nope", "--yes")

        assert (ran.code, ran.err) == (0, "0 dead letters\n")
    assert cli.json("dlq", "count") == {"count": 1}


def test_a_letter_named_twice_is_worked_on_once(cli: CommandLine, app: App) -> None:
    (task_id,) = app.park(1)

    ran = cli("dlq", "discard", "1", task_id, "1", "--queue", "sums", "--yes", "-o", "json")

    assert (ran.code, outcomes(ran.data)) == (0, {1: "discarded"})


def test_a_replay_waits_for_its_outcome(cli: CommandLine, app: App) -> None:
    """T-07: the same task, one attempt; success takes the letter away, failure leaves it with the new error."""
    first, second = app.park(2)

    nobody = cli("dlq", "replay", "1", "--queue", "sums", "--wait", "0")
    twice = cli("dlq", "replay", "1", "--queue", "sums")
    app.work()
    after_failure = cli.json("dlq", "show", "1", "--queue", "sums")
    app.is_broken = False
    with app.working():
        mended = cli("dlq", "replay", "--all", "--queue", "sums", "--wait", "20", "--yes", "-o", "json")

    assert (nobody.code, twice.code) == (75, 4)
    assert (after_failure["earlier_lives"], after_failure["task_id"], after_failure["is_replaying"]) == (
        1,
        first,
        False,
    )
    assert (mended.code, outcomes(mended.data)) == (0, {1: "succeeded", 2: "succeeded"})
    assert cli.json("dlq", "count") == {"count": 0}
    assert cli.json("tasks", "show", second)["result"] == "mended 1"


def test_a_replay_that_fails_again_says_so(cli: CommandLine, app: App) -> None:
    app.park(1)

    with app.working():
        ran = cli("dlq", "replay", "1", "--queue", "sums", "--wait", "20")

    assert (ran.code, ran.err) == (1, "error: failed again: ValueError: it broke\n")
    assert cli.json("dlq", "count") == {"count": 1}


def test_a_letter_that_is_being_replayed_is_told_in_words(cli: CommandLine, app: App) -> None:
    (task_id,) = app.park(1)
    cli("dlq", "replay", task_id)

    told, data = (cli("dlq", "discard", task_id, "--yes", *more) for more in ((), ("-o", "json")))

    assert (told.code, data.code) == (4, 4)
    assert "being replayed" in told.out
    assert data.data[0]["outcome"] == "already_handled"


def test_the_question_says_whether_a_discard_can_be_undone(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.park(1)
    asked = []
    for days in ("7", "1", "0"):
        monkeypatch.setenv("LATTICE_DLQ_RESTORE_DAYS", days)
        asked.append(cli("dlq", "discard", "1", "--queue", "sums", typed="n\n").err)

    kept = "Discard 1 dead letter of queue sums, which can be restored for"
    assert [text.partition("?")[0] for text in asked] == [
        f"{kept} 7 days",
        f"{kept} 1 day",
        "Discard 1 dead letter of queue sums for good",
    ]
