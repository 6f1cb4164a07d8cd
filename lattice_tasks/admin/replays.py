"""`lattice-tasks dlq replay`: one more attempt for dead letters, through a worker or in this very process."""

import pdb
import threading
from collections.abc import Sequence

import click

from lattice_tasks import clock, insights
from lattice_tasks.admin import letters
from lattice_tasks.admin.desk import TIMED_OUT, Desk, pass_desk
from lattice_tasks.admin.filters import Narrowed, narrowing
from lattice_tasks.admin.letters import Result
from lattice_tasks.admin.options import Change, Seconds, Verb, changing
from lattice_tasks.admin.progress import progress
from lattice_tasks.app import Lattice
from lattice_tasks.broker.here import replay_here
from lattice_tasks.broker.loading import load_app
from lattice_tasks.errors import AlreadyHandled, AppImportFailed, DeadLetterNotFound, TaskNotFound
from lattice_tasks.tasks.invocation import State

__all__ = ["lattice_of", "replay"]

_LOOK_EVERY_S = 0.1
_GOOD = ("replaying", "succeeded", "would_replay")


@click.command(cls=Verb)
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--queue", metavar="Q", help="The queue; not needed with tasks' ids.")
@letters.every
@narrowing(changes=True)
@click.option("--wait", "wait_s", type=Seconds(), metavar="SPAN", help="Wait so long for the outcome: 30, 90s, 5m.")
@click.option("--here", is_flag=True, help="Run it in this process instead of a worker; needs --app.")
@click.option("--app", metavar="MODULE", help="With --here: the module that declares the tasks.")
@click.option("--pdb", "is_debugged", is_flag=True, help="With --here: open the debugger where the task fails.")
@changing
@pass_desk
def replay(
    desk: Desk,
    ids: tuple[str, ...],
    queue: str | None,
    is_all: bool,
    narrowed: Narrowed,
    wait_s: float | None,
    here: bool,
    app: str | None,
    is_debugged: bool,
    change: Change,
) -> None:
    """Give dead letters one more attempt, under the same task id.

    A letter stays on the shelf while it is replayed; success takes it away, another failure leaves it there with the
    new error.
    """
    if (app or is_debugged) and not here:
        raise click.UsageError("--app and --pdb belong to --here")
    if here and not app:
        raise click.UsageError("--here needs --app: the module that declares the task")
    if app is not None:
        desk.adopt(lattice_of(app))
    targets = letters.wanted(desk, queue, ids, is_all, narrowed)
    if not targets:
        desk.screen.many([], letters.FIELDS, letters.COLUMNS, "dead letters")
        return
    if is_all:
        desk.confirm(change, f"Replay {letters.counted(targets)}?")
    if change.is_dry:
        results = [Result(target, "would_replay", target.detail) for target in targets]
    else:
        with letters.audited(desk, change, targets) as act:
            results = _here(desk, targets, is_debugged) if here else _through_workers(desk, targets)
            act.after = letters.outcomes(results)
        if wait_s is not None and not here:
            _await(desk, results, wait_s)
    letters.show(desk, results, _GOOD)
    if any(result.outcome == "waiting" for result in results):
        desk.fail(TIMED_OUT, f"after {wait_s:g} s not all had ended; look again with `lattice-tasks tasks show ID`")
    letters.end_with(desk, results, _GOOD)


def _through_workers(desk: Desk, targets: Sequence[letters.Target]) -> list[Result]:
    return letters.work_through(desk, targets, "replaying", "replaying", lambda shelf, part: shelf.replay_many(part))


def _here(desk: Desk, targets: Sequence[letters.Target], is_debugged: bool) -> list[Result]:
    lattice = desk.lattice

    def on_failure(error: BaseException) -> None:
        desk.screen.trace(error)
        if is_debugged:
            pdb.post_mortem(error.__traceback__)

    results = []
    for target in targets:
        result = Result(target, "not_found" if target.detail else "replaying", target.detail)
        results.append(result)
        if target.detail:
            continue
        record = lattice.queues.get(target.queue or "")
        parts = (lattice.engine, lattice.settings, lattice.telemetry, lattice.broker, lattice.namespace_id)
        try:
            replay_here(*parts, record, target.entry_id or 0, on_failure)
        except AlreadyHandled as error:
            result.outcome, result.detail = "already_handled", str(error)
            continue
        _has_ended(desk, result)
    return results


def lattice_of(app: str) -> Lattice:
    """The `Lattice` that an app's module made; the letter is looked for in that one's store."""
    module, named = load_app(app)
    found = [named] if named is not None else list(vars(module).values())
    ours = list({id(each): each for each in found if isinstance(each, Lattice)}.values())
    if len(ours) != 1:
        what = "no Lattice" if not ours else f"{len(ours)} of them; name one, as in module:attribute"
        raise AppImportFailed(f"app {app!r} holds {what}")
    return ours[0]


def _await(desk: Desk, results: Sequence[Result], wait_s: float) -> None:
    """Fill in how each replay ended; `waiting` for those that did not in time."""
    deadline, pause = clock.monotonic() + wait_s, threading.Event()
    pending = [result for result in results if result.outcome == "replaying"]
    with progress(desk.screen, "waiting for outcomes", len(pending)) as advance:
        while pending:
            ended = [result for result in pending if _has_ended(desk, result)]
            advance(len(ended))
            pending = [result for result in pending if result not in ended]
            if not pending or clock.monotonic() >= deadline:
                break
            pause.wait(_LOOK_EVERY_S)
    for result in pending:
        result.outcome = "waiting"


def _has_ended(desk: Desk, result: Result) -> bool:
    target = result.target
    if target.task_id is None:  # named by its entry id
        return False
    try:
        with desk.session() as (session, namespace_id):
            task = insights.show_task(session, namespace_id, target.task_id).task
    except TaskNotFound:
        result.outcome, result.detail = "succeeded", "its task has been pruned since"
        return True
    if task.state.is_open:
        return False
    result.outcome = task.state.value
    result.detail = "" if task.state is State.SUCCEEDED else _why_not(desk, target, task.error)
    return True


def _why_not(desk: Desk, target: letters.Target, error: str | None) -> str:
    """What ended the replay: a cancel leaves a note that is newer than the letter's last failure."""
    try:
        letter = desk.lattice.dead_letters(target.queue or "").get(target.entry_id or 0)
    except DeadLetterNotFound:
        return f"failed again: {error}"
    if letter.notes and letter.notes[-1].at > letter.parked_at:
        return letter.notes[-1].text
    return f"failed again: {error}"
