"""Rescue: what becomes of the leases of a worker that died.

Nobody's wall clock decides who lives. An observer sees heartbeat counters and measures, on its own monotonic clock, how
long each has stood still; after a disconnection or a stall of its own it starts every measurement anew.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import REPLAY_LOST, WORKER_DIED, Life
from lattice_tasks.dead_letters.parking import cancel_replays, fail_replay
from lattice_tasks.store import settles as moves
from lattice_tasks.store import workers as rows
from lattice_tasks.store.engine import Session
from lattice_tasks.tasks.invocation import Flag, State, step

__all__ = ["Observer", "Rescue", "rescue", "take_back"]


@dataclass(frozen=True, slots=True)
class Rescue:
    """A buried worker: how many leases were freed and which queues have work again."""

    worker_id: int
    host: str
    pid: int
    leases: int
    queue_ids: frozenset[int]


class Observer:
    """Watches the heartbeats of all workers and names those that have stood still for a whole lease.

    What holds up the observer, a frozen machine or a stalled store, may hold up those it observes. So time counts only
    from an answer to the next question, and after a gap of half a lease between two answers all measuring starts anew.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._answered_at = clock.monotonic()
        self._seen: dict[int, tuple[int, float]] = {}

    def forget(self) -> None:
        """Start every measurement anew: after a disconnection, standing still proves nothing."""
        self._seen.clear()

    def dead(self, look: Callable[[], list[tuple[int, int, str, int]]]) -> list[tuple[int, int]]:
        """(worker id, beat) of those whose counter has not moved for a lease, by this observer's clock.

        `look` gives the `pulses` of all workers; more than twice within a lease, or nobody is ever named.
        """
        asked_at = clock.monotonic()
        pulses = look()
        now, before = clock.monotonic(), self._answered_at
        self._answered_at = now
        if now - before > self._lease_s / 2:
            self.forget()
        fresh = {}
        overdue = []
        for worker_id, beat, _host, _pid in pulses:
            seen_beat, since = self._seen.get(worker_id, (None, now))
            if seen_beat != beat:
                since = now
            elif asked_at - since >= self._lease_s:
                overdue.append((worker_id, beat))
            fresh[worker_id] = (beat, since)
        self._seen = fresh
        return sorted(overdue)


def rescue(engine_session: Session, worker_id: int, seen_beat: int | None) -> Rescue | None:
    """Bury a dead worker and place its leases anew; None: it lives, or somebody else was quicker.

    A lease that was alone is charged; of several all become suspects, and only one whose start was recorded is charged.
    The claim that finds the budget spent parks it. A replay was its one attempt: its dead letter is unpinned.
    """
    with engine_session.transaction() as session:
        found = rows.bury(session, worker_id, seen_beat)
        if found is None:
            return None
        host, pid, orphans = found
        lost = f"{WORKER_DIED} ({host}:{pid}, worker {worker_id})"
        replays = []
        for orphan in orphans:
            charged = len(orphans) == 1 or bool(orphan.flags & Flag.STARTED)
            if orphan.flags & Flag.REPLAY and (charged or orphan.flags & Flag.CANCEL):
                replays.append((orphan.queue_id, orphan.seq, charged))
            elif orphan.flags & Flag.CANCEL:
                code = step(State.RUNNING, "cancel").code
                why = moves.cancel_reason(session, orphan.seq)
                moves.rest(session, orphan.seq, code, orphan.attempt, why, None, None, None)
            else:
                kept = (orphan.flags | Flag.SUSPECT) & ~Flag.STARTED
                rows.place_orphan(session, orphan, orphan.attempt + charged, kept)
                if charged:
                    moves.record_failure(session, orphan.seq, orphan.attempt + 1, lost, None, False)
        for queue_id, seq, charged in sorted(replays):
            if charged:
                _lose_replay(session, queue_id, seq, f"{host}:{pid}, worker {worker_id}")
            else:
                take_back(session, queue_id, {seq: moves.cancel_reason(session, seq)})
    return Rescue(worker_id, host, pid, len(orphans), frozenset(orphan.queue_id for orphan in orphans))


def take_back(session: Session, queue_id: int, reasons: Mapping[int, str]) -> None:
    """Replays that were cancelled before they failed: letter and invocation are again what the last failure left.

    Args:
        reasons: seq → why, for the note on its dead letter.
    """
    if not reasons:
        return
    facts = moves.facts_of(session, list(reasons))
    entry_ids = {seq: facts[seq].entry_id or 0 for seq in reasons}
    notes = {entry_ids[seq]: f"replay cancelled: {why}" for seq, why in reasons.items()}
    letters = {letter.entry_id: letter for letter in cancel_replays(session, queue_id, notes)}
    code = step(State.RUNNING, "park").code
    for seq, entry_id in sorted(entry_ids.items()):
        letter = letters.get(entry_id)
        if letter is None or not letter.is_readable:
            moves.rest(session, seq, code, 0, notes[entry_id], None, None, entry_id)
        else:
            trace = letter.traceback or None
            moves.rest(session, seq, code, letter.attempts, letter.error, trace, None, entry_id, letter.reason)


def _lose_replay(session: Session, queue_id: int, seq: int, worker: str) -> None:
    """A replay that killed its worker: its dead letter is unpinned with one more life, it is parked again."""
    entry_id = moves.facts_of(session, [seq])[seq].entry_id or 0
    life = Life(reason="worker_lost", error=WORKER_DIED, attempts=1, worker=worker, ended=REPLAY_LOST)
    fail_replay(session, queue_id, entry_id, life)
    code = step(State.RUNNING, "park").code
    moves.rest(session, seq, code, 1, life.error, None, None, entry_id, life.reason)
