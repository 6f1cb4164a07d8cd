"""Why one that waits or sleeps is not claimed: what a claim asks of its queue, and what workers ask of themselves."""

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from lattice_tasks import insights
from lattice_tasks.store import standings
from lattice_tasks.why.scene import PROGRAM, Reason, Scene, at, name_of, replaying, suspect_of

__all__ = ["scheduled", "waiting"]

_CLAIMED_FROM = ("active", "draining")


def waiting(scene: Scene) -> Iterator[Reason]:
    """It lines up in its queue."""
    if scene.place is None:
        yield Reason(
            "lost", "it is open, but neither waits, sleeps nor runs: it will never run", todo=f"{PROGRAM} db check"
        )
        return
    blocking = [*_closed(scene), *_stalled(scene), *_late(scene), *_unserved(scene), *_crowded(scene)]
    if not blocking:
        poll_s = scene.settings.poll_ms / 1_000
        text = f"nothing keeps it: a worker takes it next, within {poll_s:g} s even when its wake-up was lost"
        blocking = [Reason("next_in_line", text, {"within_s": poll_s})]
    yield from blocking
    yield from _marked(scene)
    yield from _deadline_ahead(scene)


def scheduled(scene: Scene) -> Iterator[Reason]:
    """It sleeps until it is due."""
    due_at = scene.task.due_at or scene.now
    if due_at > scene.now:
        yield _put_off(scene, due_at)
    else:
        text = f"it has been due since {at(due_at)}; a worker of the queue moves it on when it looks next"
        yield Reason("due", text, {"due_at": due_at})
    yield from _closed(scene)
    yield from _stalled(scene)
    yield from _late(scene)
    yield from _unserved(scene)
    yield from _marked(scene)
    yield from _deadline_ahead(scene)


def _put_off(scene: Scene, due_at: datetime) -> Reason:
    task = scene.task
    left_s = -scene.seconds_since(due_at)
    facts: dict[str, Any] = {"due_at": due_at, "in_s": round(left_s, 3)}
    until = f"until {at(due_at)} (in {left_s:.1f} s)"
    if scene.unknown_since is not None:
        return Reason("handed_back", f"a worker did not know its actor and handed it back {until}", facts)
    if task.attempt:
        most = None if scene.max_retries is None else scene.max_retries + 1
        count = f"{task.attempt}" + (f" of {most}" if most else "")
        facts |= {"attempt": task.attempt, "most_attempts": most, "error": task.error}
        return Reason("backing_off", f"it waits {until} after failed attempt {count}: {task.error}", facts)
    if task.error:
        return Reason("handed_back", f"it was handed back {until}: {task.error}", facts | {"error": task.error})
    return Reason("delayed", f"it was submitted to start no earlier than {at(due_at)} (in {left_s:.1f} s)", facts)


def _closed(scene: Scene) -> Iterator[Reason]:
    queue = scene.queue
    if queue.state not in _CLAIMED_FROM:
        text = f"queue {queue.name} is {queue.state} since {at(queue.updated_at)}: nothing of it is handed out"
        facts = {"queue": queue.name, "state": queue.state, "since": queue.updated_at}
        yield Reason(f"queue_{queue.state}", text, facts, f"{PROGRAM} queues resume {shlex.quote(queue.name)}")


def _stalled(scene: Scene) -> Iterator[Reason]:
    queue = scene.queue
    if queue.is_stalled and not scene.task.is_replay:
        text = f"queue {queue.name} is stalled: its shelf is full with {queue.depth.parked} dead letters and refuses more, "
        text += f"{queue.depth.held} are held; nothing but replays is handed out until there is room"
        facts = {"queue": queue.name, "parked": queue.depth.parked, "held": queue.depth.held}
        yield Reason("queue_stalled", text, facts, f"{PROGRAM} dlq list --queue {shlex.quote(queue.name)}")


def _late(scene: Scene) -> Iterator[Reason]:
    deadline_at = scene.task.deadline_at
    if deadline_at is not None and deadline_at <= scene.now:
        text = f"its deadline passed at {at(deadline_at)}: the worker that claims it will let it expire, not run it"
        yield Reason("deadline_passed", text, {"deadline_at": deadline_at})


def _deadline_ahead(scene: Scene) -> Iterator[Reason]:
    deadline_at = scene.task.deadline_at
    if deadline_at is not None and deadline_at > scene.now:
        left_s = -scene.seconds_since(deadline_at)
        text = f"if it has not started by {at(deadline_at)} (in {left_s:.0f} s), it will expire"
        yield Reason("deadline", text, {"deadline_at": deadline_at, "in_s": round(left_s, 3)})


def _unserved(scene: Scene) -> Iterator[Reason]:
    """Nobody is there who could take it: the first of five that holds."""
    queue = scene.queue.name
    facts: dict[str, Any] = {"queue": queue}
    silent = [worker for worker in scene.workers if worker not in scene.live]
    if not scene.live:
        last = min(silent, key=lambda worker: worker.silent_s, default=None)
        seen = f"; the last one, {name_of(last)}, was seen {last.silent_s:.0f} s ago" if last else ""
        facts |= {"silent_workers": [worker.id for worker in silent]}
        yield Reason("no_worker", f"no live worker is there{seen}", facts, f"{PROGRAM} worker APP")
    elif not scene.serving:
        facts |= {"live_workers": [worker.id for worker in scene.live]}
        text = f"no live worker serves queue {queue}; those that live ({len(scene.live)}) serve others"
        yield Reason("not_served", text, facts, f"{PROGRAM} worker APP --queues {shlex.quote(queue)}")
    elif not scene.takers:
        names = ", ".join(map(name_of, scene.serving))
        facts |= {"draining_workers": [worker.id for worker in scene.serving]}
        text = f"all that serve queue {queue} are draining and take nothing new: {names}"
        yield Reason("draining", text, facts, f"{PROGRAM} worker APP --queues {shlex.quote(queue)}")
    elif all(map(scene.is_silent, scene.takers)):
        seen_s = min(worker.silent_s for worker in scene.takers)
        facts |= {"silent_workers": [worker.id for worker in scene.takers], "silent_s": round(seen_s, 3)}
        names = ", ".join(map(name_of, scene.takers))
        text = f"none that serves queue {queue} has been seen for {seen_s:.1f} s: {names}"
        yield Reason("workers_silent", text, facts, f"{PROGRAM} worker APP --queues {shlex.quote(queue)}")
    elif scene.task.actor not in insights.known_actors(scene.takers):
        yield _unknown_actor(scene)


def _unknown_actor(scene: Scene) -> Reason:
    """Its workers take it, find no actor and hand it back, until the grace is over."""
    task, since = scene.task, scene.unknown_since
    grace_s = scene.settings.unknown_actor_grace_ms / 1_000
    known = sorted(insights.known_actors(scene.takers))
    text = f"no worker of queue {task.queue} knows actor {task.actor} (known: {', '.join(known[:20]) or 'none'})"
    if since is not None:
        left_s = max(0.0, grace_s - scene.seconds_since(since))
        text += f", since {at(since)}; in {left_s:.0f} s it will be parked"
    else:
        text += f"; it will be handed back for {grace_s:.0f} s, then parked"
    facts = {"actor": task.actor, "known": known, "since": since, "workers": [worker.id for worker in scene.takers]}
    return Reason("actor_unknown", text, facts, f"deploy a worker whose app declares {task.actor}")


def _crowded(scene: Scene) -> Iterator[Reason]:
    """Somebody could take it, but others are in front."""
    held_up = [worker for worker in scene.takers if suspect_of(scene, worker.id) is not None]
    if held_up and len(held_up) == len(scene.takers):
        ids = [found.task_id for worker in held_up if (found := suspect_of(scene, worker.id))]
        text = f"its workers take nothing while a suspect runs alone there: task {', '.join(ids)}"
        yield Reason("suspect_alone", text, {"tasks": ids, "workers": [worker.id for worker in held_up]})
    threads, leased = sum(each.threads for each in scene.takers), sum(each.running for each in scene.takers)
    if threads and leased >= threads:
        text = f"all {threads} threads of the workers that serve queue {scene.queue.name} have work ({leased} leased)"
        yield Reason("busy", text, {"threads": threads, "leased": leased, "workers": [one.id for one in scene.takers]})
    ahead, running = standings.count_ahead(scene.session, scene.queue.kind, scene.queue.id, scene.seq)
    if ahead:
        text = f"before it in queue {scene.queue.name} ({scene.queue.kind}): {ahead} waiting; {running} running"
        yield Reason("behind", text, {"ahead": ahead, "running": running, "kind": scene.queue.kind})


def _marked(scene: Scene) -> Iterator[Reason]:
    """What is special about it, and will show when it is claimed."""
    if scene.task.is_suspect:
        text = "its worker died while it held it, so it is a suspect: it runs alone until it has proved harmless"
        yield Reason("is_suspect", text, {"attempt": scene.task.attempt})
    if scene.task.is_replay:
        yield replaying(scene)
