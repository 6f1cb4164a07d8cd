"""A dead letter beside the last good run of its actor, and an edit: a changed copy in its place, in one transaction."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest

from lattice_tasks import Lattice, TaskDiscarded, insights
from lattice_tasks.errors import AlreadyHandled, Conflict, DeadLetterNotFound, InvalidInput, LatticeError, NotFinished
from lattice_tasks.insights import TaskPicture
from lattice_tasks.store.engine import Session, Statement

BODY = Statement("select body from lattice_invocation where cast(id as text) = %s")
STUFF = Statement(
    """insert into lattice_invocation (id, queue_id, actor, body, priority, submitted_at, state, attempt)
       values (%s, 9999, 'other', %s, 0, 0, 1, 0)"""
)


class Shop:
    """A task `charge` that takes whole cents only, and a worker when one is wanted."""

    def __init__(self, store_url: str) -> None:
        self.lattice = Lattice(store_url=store_url, set_default=False, log_level="critical")
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.lattice.telemetry.subscribe(lambda name, fields: self.events.append((name, dict(fields))))

        @self.lattice.task(queue="shop", max_retries=0)
        def charge(cents: str, rate: float = 1.0, **_more: Any) -> int:
            return int(cents)

        self.charge = charge

    @property
    def shelf(self) -> Any:
        return self.lattice.dead_letters("shop")

    def run(self, *args: Any, **kwargs: Any) -> str:
        job = self.charge.submit(*args, **kwargs)
        self.work(job.id)
        return job.id

    def work(self, *ids: str) -> None:
        worker = dramatiq.Worker(self.lattice.broker, worker_timeout=20, worker_threads=1)
        worker.start()
        for task_id in ids:
            try:
                self.lattice.job(task_id).result(timeout=20)
            except NotFinished:
                continue
        while not all(thread.running for thread in worker.workers):
            threading.Event().wait(0.001)
        worker.stop()

    def picture(self, task_id: str) -> TaskPicture:
        with self.lattice.engine.session() as session:
            return insights.show_task(session, self.lattice.namespace_id, task_id).task

    def body(self, task_id: str) -> bytes:
        with self.lattice.engine.session() as session:
            return bytes(session.fetch(BODY, (task_id,))[0][0])


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    shop = Shop(store_url)
    yield shop
    shop.lattice.close()


def test_a_letter_is_compared_with_the_last_good_run_of_its_actor(shop: Shop) -> None:
    shop.run("1", rate=0.5, cfg={"a": 1})
    good_id = shop.run("2", rate=0.5, cfg={"a": 1})
    shop.run("x", cfg={"a": 1, "b": 2})

    found = shop.shelf.compare(1)

    assert (found.good.task_id, found.good.call.args) == (good_id, ["2"])
    assert [(one.path, one.kind, one.before, one.after) for one in found.differences] == [
        ("args.0", "changed", "2", "x"),
        ("kwargs.rate", "removed", 0.5, None),
        ("kwargs.cfg.b", "added", None, 2),
    ]


def test_a_good_run_is_looked_for_in_bounded_pages_and_not_finding_one_is_told(shop: Shop) -> None:
    good_id = shop.run("1")
    with shop.lattice.engine.session() as session, session.transaction():
        session.execute_many(STUFF, [(f"00000000-0000-0000-0000-{n:012}", b"{}") for n in range(2_500)])
    shop.run("x")

    found = shop.shelf.compare(1)
    assert (found.good.task_id, found.looked_at) == (good_id, 2_502)

    with shop.lattice.engine.session() as session, session.transaction():
        session.execute_many(STUFF, [(f"00000000-0000-0000-0001-{n:012}", b"{}") for n in range(9_999)])
    none = shop.shelf.compare(1)
    assert (none.good, none.looked_at, none.differences) == (None, 10_000, ())


def test_an_edit_puts_a_changed_copy_in_the_letters_place(shop: Shop) -> None:
    """The copy has an id of its own and no key; both know each other; the original message stays byte for byte."""
    parent_id = shop.run("x", rate=0.5, _key="k", _priority=3)
    before = shop.body(parent_id)

    edited = shop.shelf.edit(1, args=["5"], by="ann")

    assert (shop.shelf.list(), shop.shelf.count(actor="charge"), shop.lattice.letter_groups.list()[0].live) == (
        [],
        0,
        0,
    )
    assert edited.letter.task_id == parent_id
    parent, child = shop.picture(parent_id), shop.picture(edited.child_id)
    assert (parent.state, parent.replaced_by, parent.replay_of, parent.key) == ("discarded", child.id, None, "k")
    assert (child.state, child.replay_of, child.replaced_by, child.key) == ("waiting", parent_id, None, None)
    assert (child.priority, child.queue, child.actor) == (3, "shop", "charge")
    assert shop.body(parent_id) == before
    assert parent.error is not None
    with pytest.raises(TaskDiscarded, match=f"replaced by {child.id}"):
        shop.lattice.job(parent_id).result(timeout=1)
    shop.work(child.id)
    assert shop.lattice.job(child.id).result(timeout=1) == 5
    fields = {"shelf": "shop", "entry_id": 1, "task_id": parent_id}
    told = [event for event in shop.events if event[0] in ("dead_letter.edited", "dead_letter.removed")]
    assert told == [
        ("dead_letter.edited", {**fields, "child_id": child.id, "by": "ann"}),
        ("dead_letter.removed", {**fields, "reason": "replayed"}),
    ]
    with shop.lattice.engine.session() as session:
        assert [check for check in insights.check_integrity(session) if check.count] == []


@pytest.mark.parametrize(
    ("edit", "error", "text"),
    [
        (lambda shelf: shelf.edit(1), InvalidInput, "needs args or kwargs"),
        (lambda shelf: shelf.edit(1, args=[]), InvalidInput, "missing a required argument: 'cents'"),
        (lambda shelf: shelf.edit(1, args=[{1}]), InvalidInput, r"args\[0\] is a set"),
        (lambda shelf: shelf.edit(1, args=["x" * 2_000_000]), InvalidInput, "the limit is"),
        (lambda shelf: shelf.edit(1, kwargs={"_key": "x"}), InvalidInput, "kept for options"),
        (lambda shelf: shelf.edit(1, args=["1"], key="taken"), Conflict, "key 'taken' names task .* already"),
        (lambda shelf: shelf.edit(1, args=["1"], key="k"), Conflict, "key 'k' names task .* already"),
        (lambda shelf: shelf.edit(7, args=["1"]), DeadLetterNotFound, "no dead letter 7"),
    ],
)
def test_an_edit_that_cannot_be_leaves_everything_as_it_was(
    shop: Shop, edit: Callable[[Any], Any], error: type[Exception], text: str
) -> None:
    parent_id = shop.run("x", _key="k")
    shop.charge.submit("1", _key="taken")

    with pytest.raises(error, match=text):
        edit(shop.shelf)

    assert [letter.entry_id for letter in shop.shelf.list(actor="charge")] == [1]
    assert shop.picture(parent_id).state == "parked"
    assert shop.lattice.queues.depth("shop").waiting == 1


def test_a_key_of_its_own_is_the_copys(shop: Shop) -> None:
    shop.run("x", _key="k")

    child_id = shop.shelf.edit(1, args=["5"], key="k2").child_id

    assert shop.charge.submit("9", _key="k2").id == child_id


def test_a_letter_that_is_being_replayed_cannot_be_edited(shop: Shop) -> None:
    shop.run("x")
    shop.shelf.replay(1)

    with pytest.raises(AlreadyHandled, match="being replayed"):
        shop.shelf.edit(1, args=["5"])


def test_of_two_operators_who_edit_one_letter_one_wins_and_the_other_is_told(shop: Shop) -> None:
    """C55"""
    shop.run("x")
    shelves, start = [shop.shelf for _ in range(4)], threading.Barrier(4)
    ended: list[Any] = []

    def edit(number: int) -> None:
        start.wait()
        try:
            ended.append(shelves[number].edit(1, args=[str(number)]).child_id)
        except LatticeError as error:
            ended.append(error)

    threads = [threading.Thread(target=edit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    won = [one for one in ended if isinstance(one, str)]
    assert (len(won), [type(one) for one in ended if not isinstance(one, str)]) == (1, [DeadLetterNotFound] * 3)
    assert shop.lattice.queues.depth("shop").waiting == 1


def test_what_happens_inside_a_block_is_told_when_it_has_committed(shop: Shop) -> None:
    shop.run("x")
    shop.events.clear()

    def edit_and_fail() -> None:
        with shop.lattice.audit.acting("dlq edit", "1", who="ann"):
            shop.shelf.edit(1, args=["5"])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        edit_and_fail()
    assert shop.shelf.count() == 1
    assert [event for event in shop.events if event[0] == "task.submitted"] == []

    with shop.lattice.audit.acting("dlq edit", "1", who="ann"):
        shop.shelf.edit(1, args=["5"])
        assert [event for event in shop.events if event[0] == "task.submitted"] == []
    assert [event for event in shop.events if event[0] == "task.submitted"] == [
        ("task.submitted", {"queue": "shop", "count": 1})
    ]


def test_letters_are_counted_by_the_filters_that_list_them(shop: Shop) -> None:
    shop.run("x")
    shop.run("y", _key="k")

    assert (shop.shelf.count(), shop.shelf.count(key="k"), shop.shelf.count(reason="rejected")) == (2, 1, 0)
    with pytest.raises(InvalidInput, match="there is no filter"):
        shop.shelf.count(colour="red")


def test_an_edit_that_is_cut_off_at_any_statement_leaves_everything_as_it_was(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: the copy, the letter and the original change together or not at all."""
    parent_id = shop.run("x", _key="k")
    before = shop.body(parent_id)
    run = {name: getattr(Session, name) for name in ("fetch", "execute")}
    left = 0

    def cut(name: str) -> Callable[..., Any]:
        def counted(session: Session, statement: Statement, params: Any = ()) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise RuntimeError("cut off")
            return run[name](session, statement, params)

        return counted

    for number in range(1, 100):
        left = number
        with monkeypatch.context() as patch:
            for name in run:
                patch.setattr(Session, name, cut(name))
            try:
                child_id = shop.shelf.edit(1, args=["5"]).child_id
                break
            except RuntimeError:
                pass
        assert [one.entry_id for one in shop.shelf.list(actor="charge")] == [1]
        assert (shop.picture(parent_id).state, shop.picture(parent_id).replaced_by) == ("parked", None)
        assert shop.lattice.queues.depth("shop").waiting == 0

    assert number > 6
    assert (shop.picture(parent_id).replaced_by, shop.body(parent_id)) == (child_id, before)
