"""The filters of dead letters on the command line: the same for every verb, and the same as in Python; and pages."""

import click
import pytest

from lattice_tasks.admin.dlq import dlq
from lattice_tasks.admin.filters import OPTIONS
from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.dead_letters.parking import ShelfSpec, park
from tests.letters import letter

from .conftest import App, CommandLine

FILTERED = ("list", "count", "discard", "replay")


@pytest.fixture
def busy(app: App) -> App:
    """Letters 1 to 3 of `fail` (the third of another group, with a key) and 4 of `refuse`, all in `sums`; 1 in `other`."""
    app.park(2)
    app.fail.submit(7, text="no 'such' thing", _key="k7")
    app.work()
    app.refuse.submit()
    app.work()
    return app


def ids(cli: CommandLine, *arguments: str) -> list[int]:
    return [row["entry_id"] for row in cli.json("dlq", "list", *arguments)]


def test_every_field_of_the_filter_is_an_option_and_nothing_else() -> None:
    """One definition: the command line cannot drift from Python."""
    assert tuple(OPTIONS) == Filter.__struct_fields__


@pytest.mark.parametrize("verb", FILTERED)
def test_every_verb_that_works_on_many_letters_takes_every_filter(verb: str) -> None:
    flags = {flag for param in dlq.commands[verb].params for flag in (*param.opts, *param.secondary_opts)}

    wanted = {flag for names, _ in OPTIONS.values() for name in names for flag in name.split("/")}
    assert wanted <= flags
    is_changing = verb in ("discard", "replay")
    names = {param.name for param in dlq.commands[verb].params if isinstance(param, click.Option)}
    assert ("dry_run" in names) == is_changing


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (("--only", "rejected"), [4]),
        (("--reason", "rejected"), [4]),
        (("--actor", "fail"), [1, 2, 3]),
        (("--error-class", "ValueError"), [1, 2, 3]),
        (("--key", "k7"), [3]),
        (("--since", "1h"), [1, 2, 3, 4]),
        (("--until", "1h"), []),
        (("--since", "2001-01-31T12:00+02:00", "--actor", "refuse"), [4]),
        (("--until", "2001-01-31T12:00Z"), []),
        (("--worker-lost",), []),
        (("--no-worker-lost", "--actor", "fail"), [1, 2, 3]),
        (("--max-replays", "0"), [1, 2, 3, 4]),
    ],
)
def test_a_filter_narrows_lists_counts_and_dry_runs_alike(
    cli: CommandLine, busy: App, said: tuple[str, ...], kept: list[int]
) -> None:
    assert ids(cli, *said) == ids(cli, "--queue", "sums", *said) == kept
    assert cli.json("dlq", "count", *said) == {"count": len(kept)}
    if "--reason" not in said:
        for verb in ("discard", "replay"):
            would = cli.json("dlq", verb, "--all", "--queue", "sums", "--dry-run", *said)
            assert [row["entry_id"] for row in would] == kept


def test_a_group_is_meant_on_every_queue(cli: CommandLine, busy: App) -> None:
    group = busy.group()

    assert ids(cli, "--group", group[:6]) == [1, 2]
    asked = cli("dlq", "discard", "--all", "--group", group[:8])
    assert asked.code == 6
    assert "Discard 2 dead letters of queue sums, which can be restored for 7 days?" in asked.err
    done = cli.json("dlq", "discard", "--all", "--group", group[:8], "--yes")
    assert [row["entry_id"] for row in done] == [1, 2]
    assert ids(cli) == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("list", "--since", "2001-01-31T12:00"), 2, "no time zone"),
        (("list", "--since", "soon"), 2, "neither a span"),
        (("list", "--max-replays", "-1"), 2, "not in the range"),
        (("list", "--group", "xyz"), 2, "no fingerprint"),
        (("count", "--group", "000000"), 3, "no group 000000"),
        (("discard", "1", "--actor", "fail", "--queue", "sums", "--yes"), 2, "filters narrow --all"),
        (("replay", "--all", "--actor", "fail", "--yes"), 2, "--all needs --queue or --group"),
        (("list", "--after", "x"), 2, "is no place"),
        (("list", "--after", "3"), 2, "is no place"),
    ],
)
def test_a_filter_that_cannot_be_is_one_line(
    cli: CommandLine, busy: App, arguments: tuple[str, ...], code: int, text: str
) -> None:
    ran = cli("dlq", *arguments)

    assert (ran.code, len(ran.err.splitlines())) == (code, 1)
    assert text in ran.err
    assert cli.json("dlq", "count") == {"count": 4}


def test_a_list_comes_in_pages_that_say_how_many_more_there_are(cli: CommandLine, busy: App) -> None:
    busy.lattice.submit("other/q", "nobody", ())
    busy.lattice.queues.add("zzz")
    first = cli("dlq", "list", "--limit", "2", "-o", "json")
    second = cli("dlq", "list", "--limit", "2", "--after", "sums/2", "-o", "json")

    assert [row["entry_id"] for row in first.data] == [1, 2]
    assert first.err == "2 more; the next page: --after sums/2\n"
    assert ([row["entry_id"] for row in second.data], second.err) == ([3, 4], "")
    assert ids(cli, "--queue", "sums", "--limit", "1", "--after", "3") == [4]
    assert cli("dlq", "list", "--queue", "sums", "--limit", "1", "--actor", "fail").err == (
        "2 more; the next page: --after 1\n"
    )
    assert ids(cli, "--after", "sums/4") == ids(cli, "--after", "zzz/0") == []


def test_pages_go_on_from_queue_to_queue(cli: CommandLine, app: App) -> None:
    app.park(2)
    queue_id = app.lattice.queues.add("tail/end").id
    with app.lattice.engine.session() as session, session.transaction():
        park(session, ShelfSpec(queue_id), [letter(90, queue="tail/end"), letter(91, queue="tail/end")])

    pages, after = [], None
    for _ in range(4):
        ran = cli("dlq", "list", "--limit", "1", "-o", "json", *(("--after", after) if after else ()))
        pages.append([(row["queue"], row["entry_id"]) for row in ran.data])
        after = ran.err.strip().rpartition(" ")[2]

    assert pages == [[("sums", 1)], [("sums", 2)], [("tail/end", 1)], [("tail/end", 2)]]
    assert after == ""
    both = cli("dlq", "list", "--limit", "3", "-o", "json")
    assert both.err == "1 more; the next page: --after tail/end/1\n"
    assert cli("dlq", "list", "--limit", "1").err == "3 more; the next page: --after sums/1\n"
