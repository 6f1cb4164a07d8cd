"""The checker of histories catches what it is for: each planted fault is named by its invariant."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lattice_tasks import Lattice
from tests.history import History, HistoryChecker
from tests.witness import Witnessed
from tests.working import opened


class Story:
    """A store and a history of it that agree, as long as the test plants nothing."""

    def __init__(self, lattice: Lattice, folder: Path) -> None:
        self.lattice = lattice
        self.history = History(folder / "history.jsonl")
        self.store = Witnessed(lattice.settings.store_url)
        lattice.migrate()
        self.store.install()
        for name in ("a", "b"):
            self.live(name)

    def live(self, name: str) -> None:
        """A task from its submit to its end."""
        job = self.history.submitting(name, lambda: self.lattice.submit("q", "work", (name,)))
        me = {"name": name, "id": job.id, "attempt": 1, "thread": 1}
        self.history.note("start", **me)
        self.history.note("end", how="ok", token=f"token of {name}", **me)
        self.change("delete from lattice_ready where seq = {seq}", name)
        self.change(
            "update lattice_invocation set state = 1, result = cast('\"token of {name}\"' as blob) where seq = {seq}",
            name,
        )

    def change(self, sql: str, name: str) -> None:
        seq = next(row.seq for row in self.store.rows() if row.name == name)
        self.store.change(sql.format(seq=seq, name=name))

    def id_of(self, name: str) -> str:
        return next(row.id for row in self.store.rows() if row.name == name)


@pytest.fixture
def story(sqlite_url: str, tmp_path: Path) -> Iterator[Story]:
    with opened(sqlite_url) as lattice:
        yield Story(lattice, tmp_path)


def lose_one(story: Story) -> None:
    story.change("delete from lattice_invocation where seq = {seq}", "a")


def double_one(story: Story) -> None:
    story.lattice.submit("q", "work", ("a",))


def leave_one_open(story: Story) -> None:
    story.history.submitting("c", lambda: story.lattice.submit("q", "work", ("c",)))


def put_one_in_two_places(story: Story) -> None:
    leave_one_open(story)
    story.change(
        "insert into lattice_scheduled select queue_id, 1, seq, 0, 0, 0 from lattice_invocation where seq={seq}", "c"
    )


def lease_one_to_the_dead(story: Story) -> None:
    leave_one_open(story)
    story.change("delete from lattice_ready where seq = {seq}", "c")
    story.change(
        "insert into lattice_lease select 77, seq, 1, queue_id, 0, 0, 0, 0 from lattice_invocation where seq={seq}", "c"
    )


def complete_one_twice(story: Story) -> None:
    story.change("update lattice_invocation set state = 0 where seq = {seq}", "a")
    story.change("update lattice_invocation set state = 1 where seq = {seq}", "a")


def start_a_ghost(story: Story) -> None:
    story.history.note("start", name="ghost", id="nobody", attempt=1, thread=1)


def store_a_ghost(story: Story) -> None:
    story.lattice.submit("q", "work", ("ghost",))


def start_one_after_its_cancel(story: Story) -> None:
    story.history.note("cancelled", name="a")
    story.history.note("start", name="a", id=story.id_of("a"), attempt=1, thread=1)


def try_one_too_often(story: Story) -> None:
    for attempt in (2, 3, 4):
        me = {"name": "a", "id": story.id_of("a"), "attempt": attempt, "thread": 1}
        story.history.note("start", **me)
        story.history.note("end", how="error", **me)


def never_end_one(story: Story) -> None:
    story.history.note("start", name="a", id=story.id_of("a"), attempt=2, thread=1)


def leave_a_gap(story: Story) -> None:
    me = {"name": "a", "id": story.id_of("a"), "attempt": 3, "thread": 1}
    story.history.note("start", **me)
    story.history.note("end", how="error", **me)


def keep_the_result_of_nobody(story: Story) -> None:
    story.history.note("invoke", name="c")
    job = story.lattice.submit("q", "work", ("c",))
    story.history.note("accepted", name="c", id=job.id)
    story.change("delete from lattice_ready where seq = {seq}", "c")
    story.change("update lattice_invocation set state = 1, result = cast('\"forged\"' as blob) where seq = {seq}", "c")


def change_a_result(story: Story) -> None:
    story.change("update lattice_invocation set result = cast('\"token of {name}\" ' as blob) where seq = {seq}", "a")


PLANTED: dict[Callable[[Story], None], str] = {
    lose_one: "I1 a was accepted and is not stored",
    double_one: "I1 a is stored 2 times",
    leave_one_open: "I1 c is still waiting",
    put_one_in_two_places: "I1 c is scheduled and in 2 places",
    lease_one_to_the_dead: r"I1 ready, scheduled and leased rows without an owner: \(0, 0, 1\)",
    complete_one_twice: "I2 a is succeeded and was completed 2 times",
    start_a_ghost: "I3 ghost .* started and is not stored",
    store_a_ghost: "I3 ghost .* is stored and nobody submitted it",
    start_one_after_its_cancel: "I3 a started after it was cancelled",
    try_one_too_often: "I5 a made attempt 4 of 3",
    never_end_one: "I5 a started 2 times and ended 1 times",
    leave_a_gap: r"I5 a made attempts \[1, 3\]",
    keep_the_result_of_nobody: "I8 c has the result forged",
    change_a_result: "I8 the result of seq 1 was changed after its end",
}


def test_a_story_without_faults_holds(story: Story) -> None:
    assert set(HistoryChecker(story.history, story.store, budget=3).check()) == {"a", "b"}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_fault_is_named(story: Story, plant: Callable[[Story], None]) -> None:
    plant(story)

    with pytest.raises(AssertionError, match=PLANTED[plant]):
        HistoryChecker(story.history, story.store, budget=3).check()


def test_the_dead_may_leave_starts_without_an_end(story: Story) -> None:
    never_end_one(story)
    story.history.note("fault", victim=story.history.of("start")[0]["pid"])

    HistoryChecker(story.history, story.store, budget=3).check()


def test_a_line_that_its_writer_could_not_finish_spoils_no_other(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.note("one")
    with open(history.path, "a") as file:
        file.write('\n{"what": "tor')
    history.note("two")

    assert [one["what"] for one in history.records()] == ["one", "two"]
    assert history.torn == 1
    assert json.loads(history.path.read_text().splitlines()[1])["what"] == "one"
