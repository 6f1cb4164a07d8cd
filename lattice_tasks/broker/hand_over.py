"""From a claim to Dramatiq's threads: the lanes, what waits in them, and who may start.

Messages lie in the work queue until a thread runs them (and, while their consumer thread is paused, in a lane's feed).
Both can be taken back, so that nothing claimed is kept from other workers without reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from lattice_tasks import clock
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.lane import Lane, share
from lattice_tasks.broker.quarantine import Quarantine
from lattice_tasks.broker.work_queue import WorkQueue
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.settings import Settings
from lattice_tasks.store.turns import Claimed, Want
from lattice_tasks.tasks.arguments import decode_body
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.tasks.settle import Kind, Outcome
from lattice_tasks.telemetry import Telemetry

__all__ = ["HandOver", "Screen"]

#: What a claimed invocation must pass before it runs: its outcome when it shall not run at all, else None.
Screen = Callable[[Claimed, int], Outcome | None]


class HandOver:
    """The way of claimed messages to the threads of one worker. Lanes are added by any thread, all else is the pump's."""

    def __init__(self, settings: Settings, threads: int, work_queue: WorkQueue, screen: Screen) -> None:
        self._lookahead_s = settings.lookahead_ms / 1_000
        self._lookahead_most = settings.lookahead_count
        self._threads = threads
        self._work_queue = work_queue
        self._screen = screen
        self._quarantine = Quarantine()
        self._rotation = 0
        self.lanes: dict[int, Lane] = {}

    def open_lane(self, name: str, queue_id: int, shelf: ShelfSpec) -> Lane:
        """The lane of a queue, made when it is missing."""
        if queue_id not in self.lanes:
            self.lanes = {**self.lanes, queue_id: Lane(name, queue_id, shelf)}
        return self.lanes[queue_id]

    def wake(self) -> None:
        """Any queue may have work, anywhere in its order."""
        for lane in self.lanes.values():
            lane.wake()

    @property
    def has_more(self) -> bool:
        """Whether some queue may have work."""
        return any(lane.has_more for lane in self.lanes.values())

    @property
    def unstarted(self) -> int:
        """How many messages no thread has begun."""
        return len(self._work_queue) + sum(lane.feed.qsize() for lane in self.lanes.values())

    def room(self, free: int) -> int:
        """How many more may be claimed, with so many free threads. Loaded, memory is refilled when half of it is gone."""
        if self._quarantine.is_closed:
            return 0
        ahead = max(self._aheads().values(), default=0)
        if not ahead:
            return free
        return 0 if self.unstarted > ahead // 2 else max(0, free + ahead)

    def wants(self, free: int, poll_s: float) -> list[Want]:
        """Claims for the queues that may have work, and for those that nobody has asked for so long."""
        if self.room(free) <= 0:
            return []
        since = clock.monotonic() - poll_s
        hopeful = [lane for lane in self.lanes.values() if lane.has_more or lane.looked_at <= since]
        self._rotation += 1
        return share(hopeful, max(0, free), self._aheads(), self._rotation)

    def note(self, wants: Sequence[Want], claimed: Sequence[Claimed], now: float, cost_s: float) -> set[int]:
        """Remember what a claim brought; ids of the queues whose claim was full."""
        full = set()
        for want in wants:
            seqs = [one.seq for one in claimed if one.queue_id == want.queue_id]
            if self.lanes[want.queue_id].note(want, seqs, now, cost_s):
                full.add(want.queue_id)
        return full

    def tell_claimed(self, telemetry: Telemetry, claimed: Sequence[Claimed]) -> None:
        """Emit how many were claimed from each queue, when somebody listens."""
        if telemetry.is_heard:
            for queue_id, count in Counter(one.queue_id for one in claimed).items():
                telemetry.emit("task.claimed", queue=self.lanes[queue_id].name, count=count)

    def receive(self, claimed: Sequence[Claimed], batch: int, now_us: int) -> list[LatticeMessage]:
        """Messages of claimed rows; those that must not run have their outcome already."""
        return [self._message(one, batch, now_us) for one in claimed]

    def deliver(self, messages: Sequence[LatticeMessage]) -> None:
        """Send those without an outcome on their way. Each may come back ended before this returns."""
        for message in messages:
            if message.outcome is not None:
                continue
            if message.claimed.flags & Flag.SUSPECT:
                self._quarantine.add(message)
            elif self._quarantine.is_closed:
                self._quarantine.put_behind([message])
            else:
                self.lanes[message.claimed.queue_id].hand_over(message)

    def start_next(self, may_start: Callable[[LatticeMessage], bool], held: Iterable[LatticeMessage]) -> None:
        """Let the next suspect run, its start recorded durably first; without any, what waited behind goes on.

        Args:
            held: everything that this process has claimed and not settled.
        """
        if self._quarantine.is_running:
            return
        if self._quarantine.is_closed:
            self._quarantine.put_behind(self.take_back())
            if not self._quarantine.is_alone(held):
                return
        suspect = self._quarantine.next(may_start)
        for message in [suspect] if suspect is not None else self._quarantine.release():
            self.lanes[message.claimed.queue_id].hand_over(message)

    def forget(self, message: LatticeMessage) -> None:
        """Its end is stored."""
        self._quarantine.forget(message)

    def take_back(self) -> list[LatticeMessage]:
        """Everything on its way that no thread has begun."""
        messages = [item.message for item in self._work_queue.take_back()]
        return messages + [message for lane in self.lanes.values() for message in lane.take_back()]

    def take_back_all(self) -> list[LatticeMessage]:
        """The same, and everything in quarantine that has not started."""
        return [*self.take_back(), *self._quarantine.empty()]

    def take_back_stuck(self, running_ns: Sequence[int], after_s: float) -> list[LatticeMessage]:
        """Look-ahead that sits on slow work: every thread has been busy with one message for so long.

        Args:
            running_ns: monotonic start of each message that runs.
        """
        if not self.unstarted or self._quarantine.is_closed or len(running_ns) < self._threads:
            return []
        if clock.monotonic_ns() - max(running_ns) < after_s * 1e9:
            return []
        for lane in self.lanes.values():
            lane.mean_s = None
        return self.take_back()

    def _aheads(self) -> dict[int, int]:
        return {
            lane.queue_id: lane.ahead(self._threads, self._lookahead_s, self._lookahead_most)
            for lane in self.lanes.values()
            if lane.has_more
        }

    def _message(self, one: Claimed, batch: int, now_us: int) -> LatticeMessage:
        refusal = self._screen(one, now_us)
        try:
            body = decode_body(one.body if refusal is None else b"{}")
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            body = decode_body(b"{}")
            refusal = Outcome(Kind.PARK, reason="schema", error=f"undecodable message: {error}", is_charged=False)
        message = LatticeMessage(one, batch, self.lanes[one.queue_id].name, body, now_us)
        message.outcome = refusal
        return message
