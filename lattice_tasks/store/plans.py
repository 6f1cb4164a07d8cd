"""Plans: a frozen set of dead letters, and what has become of each.

A plan has one owner at a time, who holds it by a beat of the store's clock; every part of an owner's work begins with
`beat`, which locks the plan's row: of two owners one works, and the other is told. An item moves on in the transaction
that moves its letter, so it is worked on once, whatever dies when.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_tasks.store.engine import POSTGRES, SQLITE, Session, Statement
from lattice_tasks.store.letters import NARROWED, Chosen

__all__ = [
    "DONE", "FAILED", "OUT", "PENDING", "SKIPPED",
    "ItemRow", "Out", "PlanRow", "Settled", "Tally",
    "add", "beat", "changed", "claim", "counts", "delete", "find", "freeze", "high_water", "left_out", "list_all", "next_items",
    "outs", "page", "prune", "release", "samples", "send", "sent_in", "set_stage", "settle", "skip_changed", "switch",
    "tallies",
]  # fmt: skip

#: An item waits, its replay is under way, or it has ended: well, badly, or without having been touched.
PENDING, OUT, DONE, FAILED, SKIPPED = range(5)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A plan as stored; instants in microseconds, `owner` empty when nobody applies it."""

    id: int
    name: str
    verb: str
    definition: str
    digest: str
    total: int
    created_at: int
    state: str
    stage: int
    why: str | None
    owner: str
    beat_at: int
    ended_at: int | None
    now_us: int


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One letter of a plan; `to_…`: where it lies since it was redirected."""

    queue_id: int
    entry_id: int
    seq: int
    task_id: str
    parked_at: int
    fingerprint: str
    state: int
    stage: int
    to_queue_id: int | None
    to_entry_id: int | None
    detail: str | None
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class Out:
    """An item under way and where its invocation (None: pruned) and its letter (None: gone) stand now."""

    queue_id: int
    entry_id: int
    stage: int
    planned_at: int
    invocation_state: int | None
    parked_at: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What an item becomes; `to` is where its letter was moved to."""

    queue_id: int
    entry_id: int
    state: int
    detail: str | None = None
    to: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """How many letters of a plan are alike, and the message of their group."""

    queue_id: int
    fingerprint: str
    actor: str
    reason: str
    message: str
    count: int


_PLAN = """id, name, verb, definition, digest, total, created_at, state, stage, why, owner, beat_at, ended_at, {now}
    from lattice_plan"""
_ADD = Statement(
    """insert into lattice_plan (namespace_id, name, verb, definition, digest, total, created_at, state, stage, owner, beat_at)
       values (%s, %s, %s, '', '', 0, {now}, 'planned', 0, '', 0) returning id"""
)
_WRITE = Statement("update lattice_plan set definition = %s, digest = %s, total = %s where id = %s")
_FIND = Statement(f"select {_PLAN} where namespace_id = %s and name = %s")
_LIST = Statement(f"select {_PLAN} where namespace_id = %s order by id desc limit %s")
_DELETE_ITEMS = Statement(
    postgres="""delete from lattice_plan_item where ctid = any(array(
        select ctid from lattice_plan_item where plan_id = %s limit %s))""",
    sqlite="""delete from lattice_plan_item where (plan_id, queue_id, entry_id) in (
        select plan_id, queue_id, entry_id from lattice_plan_item where plan_id = %s limit %s)""",
)
_DELETE = Statement("delete from lattice_plan where id = %s")
_OLD = Statement(
    """select id from lattice_plan where owner = '' and state in ('planned', 'finished')
       and coalesce(ended_at, created_at) < {now} - %s order by id limit 1"""
)

_HIGH_WATER = Statement(
    """select coalesce((select h.next_id - 1 from lattice_tree t join lattice_fifo_head h on h.tree_id = t.id
       where t.name = %s), 0)"""
)
_PINNED = """exists (select 1 from lattice_fifo_pin p where p.tree_id = (select id from lattice_tree where name = %s)
    and p.entry_id = l.entry_id)"""
# Its columns stand bare, as the filter's do: the invocation is asked in a scalar of its own.
_FREEZE = f"""insert into lattice_plan_item
        (plan_id, queue_id, entry_id, seq, task_id, parked_at, fingerprint, state, stage)
    select %s, queue_id, entry_id, seq, (select {{id}} from lattice_invocation i where i.seq = l.seq), parked_at,
        fingerprint, 0, 0
    from lattice_letter l where queue_id = %s and {{narrowed}} and replays < %s and not {_PINNED}
        and exists (select 1 from lattice_invocation i where i.seq = l.seq)"""
_FREEZE_ONES = Statement(
    _FREEZE.format(id="i.id::text", narrowed=NARROWED[POSTGRES]),
    sqlite=_FREEZE.format(id="i.id", narrowed=NARROWED[SQLITE]),
)
_LEFT_OUT = f"""select coalesce(sum(case when replays >= %s then 1 else 0 end), 0),
        coalesce(sum(case when replays < %s and {_PINNED} then 1 else 0 end), 0)
    from lattice_letter l where queue_id = %s and {{narrowed}}"""
_COUNT_LEFT_OUT = Statement(
    _LEFT_OUT.format(narrowed=NARROWED[POSTGRES]), sqlite=_LEFT_OUT.format(narrowed=NARROWED[SQLITE])
)
_OF_LETTER = "join lattice_letter l on l.queue_id = t.queue_id and l.entry_id = t.entry_id"
_TALLIES = Statement(
    f"""select t.queue_id, t.fingerprint, l.actor, l.reason,
        coalesce((select g.message from lattice_group g
            where g.queue_id = t.queue_id and g.fingerprint = t.fingerprint), ''), count(*)
        from lattice_plan_item t {_OF_LETTER} where t.plan_id = %s
        group by t.queue_id, t.fingerprint, l.actor, l.reason order by count(*) desc, t.fingerprint"""
)
_SAMPLES = Statement(
    """select fingerprint, queue_id, entry_id, task_id from (
           select fingerprint, queue_id, entry_id, task_id,
               row_number() over (partition by fingerprint order by parked_at desc, queue_id, entry_id) as n
           from lattice_plan_item where plan_id = %s) numbered where n <= %s"""
)

_CLAIM = Statement(
    """update lattice_plan set owner = %s, beat_at = {now}, state = 'running', why = null, ended_at = null
       where id = %s and (owner = '' or beat_at < {now} - %s) and state <> 'finished' returning state"""
)
_BEAT = Statement("update lattice_plan set beat_at = {now} where id = %s and owner = %s returning state")
_RELEASE = Statement(
    """update lattice_plan set owner = '', state = %s, why = %s, ended_at = case when %s = 1 then {now} end
       where id = %s and owner = %s"""
)
_SWITCH = Statement("update lattice_plan set state = %s, why = %s where id = %s and state = %s")
_STAGE = Statement("update lattice_plan set stage = %s where id = %s")

# What has changed since the plan; null: nothing. `t` is the item.
_CHANGE = """case
    when not exists (select 1 from lattice_letter l where l.queue_id = t.queue_id and l.entry_id = t.entry_id)
        then coalesce((select case i.state when 1 then 'replayed' when 6 then 'discarded or evicted' else 'moved' end
            from lattice_invocation i where i.seq = t.seq), 'gone')
    when not exists (select 1 from lattice_letter l
            where l.queue_id = t.queue_id and l.entry_id = t.entry_id and l.parked_at = t.parked_at)
        then 'parked again'
    when exists (select 1 from lattice_fifo_pin p where p.entry_id = t.entry_id
            and p.tree_id = (select id from lattice_tree where name = '_lattice_dlq_' || t.queue_id))
        then 'being replayed' end"""
_CHANGED = Statement(
    f"""select {_CHANGE} as change, count(*), min(t.queue_id), min(t.entry_id)
        from lattice_plan_item t where t.plan_id = %s and t.state = 0 group by 1"""
)
_SKIP_CHANGED = Statement(
    f"""update lattice_plan_item as t set state = 4, ended_at = {{now}}, detail = {_CHANGE} || ' since the plan'
        where t.plan_id = %s and t.state = 0 and {_CHANGE} is not null"""
)
_ITEM = """queue_id, entry_id, seq, task_id, parked_at, fingerprint, state, stage, to_queue_id, to_entry_id, detail, ended_at
    from lattice_plan_item"""
_NEXT = Statement(f"select {_ITEM} where plan_id = %s and state = 0 order by parked_at, queue_id, entry_id limit %s")
_PAGE = Statement(
    f"select {_ITEM} where plan_id = %s and (queue_id, entry_id) > (%s, %s) order by queue_id, entry_id limit %s"
)
_COUNTS = Statement("select state, count(*) from lattice_plan_item where plan_id = %s group by state")
_SENT_IN = Statement(
    """select count(*), coalesce(sum(case when state = 2 then 1 else 0 end), 0),
           coalesce(sum(case when state = 3 then 1 else 0 end), 0)
       from lattice_plan_item where plan_id = %s and stage = %s"""
)
# An item's letter is looked up where it lies now. Whether a replay has ended shows in one snapshot of both.
_OUTS = Statement(
    """select t.queue_id, t.entry_id, t.stage, t.parked_at, i.state, l.parked_at, i.error
       from lattice_plan_item t left join lattice_invocation i on i.seq = t.seq
       left join lattice_letter l on l.queue_id = coalesce(t.to_queue_id, t.queue_id)
           and l.entry_id = coalesce(t.to_entry_id, t.entry_id)
       where t.plan_id = %s and t.state = 1"""
)
# Each item by its whole key (lateral), and the row by its place: before the first ANALYZE Postgres takes a plan for one row,
# and would compare every waiting item with every one that is given. Who wrote the row meanwhile has moved it: nothing is done.
_SEND = Statement(
    postgres="""update lattice_plan_item t set state = g.state, stage = %s, detail = g.detail, to_queue_id = g.to_queue,
            to_entry_id = g.to_entry, ended_at = case when g.state <> 1 then {now} end
        from (select r.place, r.before, u.state, u.detail, u.to_queue, u.to_entry
            from unnest(%s::bigint[], %s::bigint[], %s::smallint[], %s::text[], %s::bigint[], %s::bigint[])
                as u (wanted_queue, wanted_entry, state, detail, to_queue, to_entry)
            cross join lateral (select ctid as place, state as before from lattice_plan_item
                where plan_id = %s and queue_id = wanted_queue and entry_id = wanted_entry limit 1) r) g
        where t.ctid = g.place and g.before = 0""",
    sqlite="""update lattice_plan_item set state = %s, stage = %s, detail = %s, to_queue_id = %s, to_entry_id = %s,
            ended_at = case when %s <> 1 then {now} end
        where plan_id = %s and queue_id = %s and entry_id = %s and state = 0""",
)
_SETTLE = Statement(
    postgres="""update lattice_plan_item t set state = g.state, detail = g.detail, ended_at = {now}
        from (select r.place, r.before, u.state, u.detail
            from unnest(%s::bigint[], %s::bigint[], %s::smallint[], %s::text[])
                as u (wanted_queue, wanted_entry, state, detail)
            cross join lateral (select ctid as place, state as before from lattice_plan_item
                where plan_id = %s and queue_id = wanted_queue and entry_id = wanted_entry limit 1) r) g
        where t.ctid = g.place and g.before = 1""",
    sqlite="""update lattice_plan_item set state = %s, detail = %s, ended_at = {now}
        where plan_id = %s and queue_id = %s and entry_id = %s and state = 1""",
)


def add(session: Session, namespace_id: int, name: str, verb: str) -> int:
    """A plan without items; its id."""
    return session.fetch(_ADD, (namespace_id, name, verb))[0][0]


def write(session: Session, plan_id: int, definition: str, digest: str, total: int) -> None:
    """What was frozen."""
    session.execute(_WRITE, (definition, digest, total, plan_id))


def find(session: Session, namespace_id: int, name: str) -> PlanRow | None:
    """The plan of this name."""
    rows = session.fetch(_FIND, (namespace_id, name))
    return PlanRow(*rows[0]) if rows else None


def list_all(session: Session, namespace_id: int, limit: int) -> list[PlanRow]:
    """The newest plans, at most so many."""
    return [PlanRow(*row) for row in session.fetch(_LIST, (namespace_id, limit))]


def delete(session: Session, plan_id: int, limit: int) -> bool:
    """Remove up to so many items of a plan, and itself when none are left; True: it is gone."""
    if session.execute(_DELETE_ITEMS, (plan_id, limit)):
        return False
    session.execute(_DELETE, (plan_id,))
    return True


def prune(session: Session, older_us: int, limit: int) -> bool:
    """Remove a page of the oldest plan that ended, or was never applied, so long ago; True: there is more to do."""
    rows = session.fetch(_OLD, (older_us,))
    if rows:
        with session.transaction():
            delete(session, rows[0][0], limit)
    return bool(rows)


def high_water(session: Session, tree: str) -> int:
    """The last entry id that a shelf has issued."""
    return session.fetch(_HIGH_WATER, (tree,))[0][0]


def freeze(session: Session, plan_id: int, queue_id: int, tree: str, chosen: Chosen, below_replays: int) -> int:
    """Make items of the chosen letters of one shelf that nobody replays and whose replays failed less often; how many."""
    return session.execute(_FREEZE_ONES, (plan_id, queue_id, *chosen.params(), below_replays, tree))


def left_out(session: Session, queue_id: int, tree: str, chosen: Chosen, below_replays: int) -> tuple[int, int]:
    """How many chosen letters `freeze` leaves out: replayed in vain too often, being replayed now."""
    rows = session.fetch(_COUNT_LEFT_OUT, (below_replays, below_replays, tree, queue_id, *chosen.params()))
    return int(rows[0][0]), int(rows[0][1])


def tallies(session: Session, plan_id: int) -> list[Tally]:
    """The letters of a plan counted by what they have in common, the largest first."""
    return [Tally(*row) for row in session.fetch(_TALLIES, (plan_id,))]


def samples(session: Session, plan_id: int, number: int) -> dict[str, list[tuple[int, int, str]]]:
    """The newest (queue id, entry id, task id) of each group, by fingerprint."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for fingerprint, *where in session.fetch(_SAMPLES, (plan_id, number)):
        found.setdefault(fingerprint, []).append((where[0], where[1], where[2]))
    return found


def claim(session: Session, plan_id: int, owner: str, lease_us: int) -> bool:
    """Become the owner, and let it run; False: another one has beaten within the lease, or it is finished."""
    return bool(session.fetch(_CLAIM, (owner, plan_id, lease_us)))


def beat(session: Session, plan_id: int, owner: str) -> str | None:
    """Stay the owner, and lock the plan until the transaction ends; its state, None: somebody else owns it now."""
    rows = session.fetch(_BEAT, (plan_id, owner))
    return rows[0][0] if rows else None


def release(session: Session, plan_id: int, owner: str, state: str, why: str | None) -> bool:
    """Stop owning it and leave it in this state; False: it was another's already."""
    return session.execute(_RELEASE, (state, why, int(state == "finished"), plan_id, owner)) == 1


def switch(session: Session, plan_id: int, before: str, after: str, why: str | None) -> bool:
    """Change the state; False: it was not in `before`."""
    return session.execute(_SWITCH, (after, why, plan_id, before)) == 1


def set_stage(session: Session, plan_id: int, stage: int) -> None:
    """Remember which step is under way."""
    session.execute(_STAGE, (stage, plan_id))


def changed(session: Session, plan_id: int) -> list[tuple[str, int, int, int]]:
    """What has become of waiting items that are not as they were planned: (what, how many, queue id and entry id of one)."""
    return [(row[0], row[1], row[2], row[3]) for row in session.fetch(_CHANGED, (plan_id,)) if row[0] is not None]


def skip_changed(session: Session, plan_id: int) -> int:
    """Skip the waiting items that are not as they were planned; how many."""
    return session.execute(_SKIP_CHANGED, (plan_id,))


def next_items(session: Session, plan_id: int, limit: int) -> list[ItemRow]:
    """The oldest waiting items."""
    return [ItemRow(*row) for row in session.fetch(_NEXT, (plan_id, limit))]


def page(session: Session, plan_id: int, after: tuple[int, int], limit: int) -> list[ItemRow]:
    """Items after a (queue id, entry id), in that order."""
    return [ItemRow(*row) for row in session.fetch(_PAGE, (plan_id, *after, limit))]


def counts(session: Session, plan_id: int) -> dict[int, int]:
    """How many items there are in each state."""
    return dict(session.fetch(_COUNTS, (plan_id,)))


def sent_in(session: Session, plan_id: int, stage: int) -> tuple[int, int, int]:
    """How many items a step has taken up; how many of them ended well, and badly."""
    rows = session.fetch(_SENT_IN, (plan_id, stage))
    return int(rows[0][0]), int(rows[0][1]), int(rows[0][2])


def outs(session: Session, plan_id: int) -> list[Out]:
    """The items whose replays are under way, as of one moment."""
    return [Out(*row) for row in session.fetch(_OUTS, (plan_id,))]


def send(session: Session, plan_id: int, stage: int, settled: Sequence[Settled]) -> None:
    """Move waiting items on, in a step."""
    rows = [(one.queue_id, one.entry_id, one.state, one.detail, *(one.to or (None, None))) for one in settled]
    if rows and session.dialect == POSTGRES:
        session.execute(_SEND, (stage, *(list(column) for column in zip(*rows, strict=True)), plan_id))
    elif rows:
        lite = [(r[2], stage, r[3], r[4], r[5], r[2], plan_id, r[0], r[1]) for r in rows]
        session.execute_many(_SEND, lite)


def settle(session: Session, plan_id: int, settled: Sequence[Settled]) -> None:
    """Write down how replays under way have ended; one that was written already stays as it is."""
    rows = [(one.queue_id, one.entry_id, one.state, one.detail) for one in settled]
    if rows and session.dialect == POSTGRES:
        session.execute(_SETTLE, (*(list(column) for column in zip(*rows, strict=True)), plan_id))
    elif rows:
        session.execute_many(_SETTLE, [(r[2], r[3], plan_id, r[0], r[1]) for r in rows])
