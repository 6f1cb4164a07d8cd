"""`lattice-tasks dlq edit`: repair what a dead letter's task was called with, and submit it anew in the letter's place."""

import json
from collections.abc import Sequence
from typing import Any

import click

from lattice_tasks import insights
from lattice_tasks.admin import letters
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.escape import visible
from lattice_tasks.admin.letter import difference_lines, difference_records
from lattice_tasks.admin.options import Change, JsonText, Verb, changing
from lattice_tasks.admin.replays import lattice_of
from lattice_tasks.broker.actor import require_fit
from lattice_tasks.dead_letters.call import Call, Difference, call_of, changed, differences
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.shelf import Shelf
from lattice_tasks.errors import ActorUnknown, AlreadyHandled, DeadLetterNotFound, InvalidInput, InvalidOperation
from lattice_tasks.masking import HIDDEN, hidden, is_secret

__all__ = ["edit"]

_MOST_NAMES = 20


class _Setting(click.ParamType[tuple[str, Any]]):
    """`PATH=JSON`."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if not isinstance(value, str):
            return value
        path, sign, text = value.partition("=")
        if not sign:
            self.fail(f"{value!r:.60} is not PATH=JSON, such as kwargs.lr=0.1", param, ctx)
        try:
            return path.strip(), json.loads(
                text, parse_constant=lambda name: self.fail(f"{name} is no JSON", param, ctx)
            )
        except (ValueError, RecursionError):
            self.fail(f"{path}: {text!r:.60} is not JSON; a text stands in quotes: '{path}=\"text\"'", param, ctx)


@click.command(cls=Verb)
@click.argument("letter_id", metavar="ID")
@click.option("--queue", metavar="Q", help="The queue; not needed with a task's id.")
@click.option(
    "--set", "sets", type=_Setting(), multiple=True, metavar="PATH=JSON", help="kwargs.lr=0.1, args.0='\"x\"'."
)
@click.option("--unset", "unsets", multiple=True, metavar="PATH", help="Take an argument away: kwargs.lr.")
@click.option("--args", type=JsonText(list, "a JSON array"), metavar="JSON", help="All positional arguments anew.")
@click.option("--kwargs", type=JsonText(dict, "a JSON object"), metavar="JSON", help="All keyword arguments anew.")
@click.option("--editor", "in_editor", is_flag=True, help="Change them in $EDITOR; what is shown as *** stays.")
@click.option("--key", metavar="TEXT", help="Idempotency key of the new task; it has none otherwise.")
@click.option(
    "--app", metavar="MODULE", help="The module that declares the tasks: checks the call against its signature."
)
@click.option("--force", is_flag=True, help="Also when no worker knows the actor.")
@changing
@pass_desk
def edit(
    desk: Desk,
    letter_id: str,
    queue: str | None,
    sets: tuple[tuple[str, Any], ...],
    unsets: tuple[str, ...],
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    in_editor: bool,
    key: str | None,
    app: str | None,
    force: bool,
    change: Change,
) -> None:
    """Submit a dead letter's task with other arguments, in the letter's place.

    The new task has an id of its own, the letter's queue, actor and priority, and no idempotency key unless --key gives it
    one. The letter leaves the shelf; its task ends as discarded, keeps its message, and both name each other.
    """
    if app is not None:
        desk.adopt(lattice_of(app))
    target = letters.the_letter(desk, queue, letter_id)
    shelf = desk.lattice.dead_letters(target.queue or "")
    letter = shelf.get(target.entry_id or 0)
    before = _readable(letter)
    after = changed(Call(_or(args, before.args), _or(kwargs, before.kwargs), before.options), sets, unsets)
    if in_editor:
        after = _edited(after, desk.lattice.settings.redact)
    found = differences(before, after)
    if not found:
        raise InvalidInput(
            "nothing is changed: use --set, --unset, --args, --kwargs or --editor; `dlq replay` repeats it"
        )
    _check(desk, letter.actor, after, app, force)
    _show_differences(desk, found)
    if change.is_dry:
        _show(desk, letter, shelf.queue_name, None, found)
        return
    desk.confirm(change, f"Replace dead letter {letter.entry_id} of queue {shelf.queue_name} by this?")
    _act(desk, shelf, letter, after, key, found, change)


def _act(
    desk: Desk,
    shelf: Shelf,
    letter: DeadLetter,
    after: Call,
    key: str | None,
    found: Sequence[Difference],
    change: Change,
) -> None:
    try:
        with desk.acting(change, f"{shelf.queue_name}/{letter.entry_id}") as act:
            act.before = {"task_id": letter.task_id}
            edited = shelf.edit(letter.entry_id, args=after.args, kwargs=after.kwargs, key=key, by=desk.operator)
            act.after = {"task_id": edited.child_id, "changed": [one.path for one in found]}
    except DeadLetterNotFound:
        raise AlreadyHandled(
            f"dead letter {letter.entry_id} of queue {shelf.queue_name} was edited, replayed or discarded meanwhile; "
            f"see `lattice-tasks tasks show {letter.task_id}`"
        ) from None
    _show(desk, letter, shelf.queue_name, edited.child_id, found)


def _or(given: Any, there: Any) -> Any:
    return there if given is None else given


def _readable(letter: DeadLetter) -> Call:
    call = call_of(letter.body) if letter.is_readable else None
    if call is None:
        raise InvalidOperation(f"dead letter {letter.entry_id} cannot be edited: its message cannot be read")
    return call


def _edited(call: Call, words: Sequence[str]) -> Call:
    """What a person makes of the call in their editor; secrets are not shown, and stay unless they are written anew."""
    shown = {"args": hidden(call.args, words), "kwargs": hidden(call.kwargs, words)}
    text = click.edit(json.dumps(shown, ensure_ascii=False, indent=2) + "\n", extension=".json")
    if text is None:
        return call
    try:
        made = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"what the editor left is not JSON: {error}") from None
    is_call = isinstance(made, dict) and made.keys() == {"args", "kwargs"}
    if not is_call or not isinstance(made["args"], list) or not isinstance(made["kwargs"], dict):
        raise InvalidInput('what the editor left is not {"args": […], "kwargs": {…}}')
    return Call(_unhidden(made["args"], call.args, words), _unhidden(made["kwargs"], call.kwargs, words), call.options)


def _unhidden(made: Any, original: Any, words: Sequence[str]) -> Any:
    if isinstance(made, dict) and isinstance(original, dict):
        return {
            name: original[name]
            if inner == HIDDEN and name in original and is_secret(name, words)
            else _unhidden(inner, original.get(name), words)
            for name, inner in made.items()
        }
    if isinstance(made, list) and isinstance(original, list):
        beside = [*original, *[None] * len(made)]
        return [_unhidden(inner, there, words) for inner, there in zip(made, beside, strict=False)]
    return made


def _check(desk: Desk, actor: str, call: Call, app: str | None, force: bool) -> None:
    """Against the app's own declaration, when it is given; else against what workers say they know."""
    if app is not None:
        if actor not in desk.lattice.broker.actors:
            raise ActorUnknown(f"app {app} declares no task {actor!r}; nothing was changed")
        require_fit(desk.lattice.broker, actor, call.args, call.kwargs)
        return
    with desk.session() as (session, namespace_id):
        workers = insights.live_workers(insights.list_workers(session, namespace_id), desk.lattice.settings.lease_ms)
    known = insights.known_actors(workers)
    if workers and actor not in known and not force:
        shown = ", ".join(sorted(known)[:_MOST_NAMES]) or "none"
        raise ActorUnknown(f"no worker knows an actor {actor!r} (known: {shown}); nothing was changed; --force edits")


def _show_differences(desk: Desk, found: Sequence[Difference]) -> None:
    if desk.screen.form == "table":
        desk.screen.script(
            "".join(f"{visible(line)}\n" for line in difference_lines(found, desk.lattice.settings.redact))
        )


def _show(desk: Desk, letter: DeadLetter, queue: str, child_id: str | None, found: Sequence[Difference]) -> None:
    record = {
        "entry_id": letter.entry_id,
        "queue": queue,
        "task_id": letter.task_id,
        "outcome": "replaced" if child_id else "would_replace",
        "child_id": child_id,
        "differences": difference_records(found, desk.lattice.settings.redact),
    }
    if desk.screen.form != "table":
        desk.screen.one(record)
    elif child_id is None:
        desk.screen.note(f"would replace dead letter {letter.entry_id} of queue {queue}")
    else:
        desk.screen.script(f"task {letter.task_id} is replaced by {child_id}\n")
        desk.screen.note(f"its end: lattice-tasks tasks wait {child_id}")
