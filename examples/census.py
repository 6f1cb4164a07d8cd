"""A census of the Python standard library, on one embedded SQLite file and without any service.

    python -m examples.census

One task per real source file of the running interpreter. Some of those files are broken on purpose (bad syntax, wrong
encodings, Python 2): they fail, are tried again and end on the dead-letter shelf by themselves. Then a repaired release
of the task is deployed, the shelf is replayed, and the books are balanced: submitted = succeeded + parked, 0 lost.
The exit code is 0 only when they balance.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from lattice_tasks.admin.progress import progress
from lattice_tasks.admin.screen import Record, Screen

CHECKOUT = Path(__file__).resolve().parents[1]
STDLIB = Path(sysconfig.get_path("stdlib"))
STUCK_S = 60
SHOWN = 12


@dataclass(frozen=True)
class Plan:
    """What to count, with how much, and where the store and the workers' logs live."""

    files: list[Path]
    folder: Path
    processes: int
    threads: int

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder / 'census.db'}"


class Stuck(Exception):
    """The workers died or made no end; the text says which, and ends with their log."""


def source_files(pattern: str) -> list[Path]:
    """The standard library's own files, in a steady order; what pip installed does not belong to it."""
    foreign = {"site-packages", "dist-packages"}
    return sorted(path for path in STDLIB.glob(pattern) if path.is_file() and not foreign & {*path.parts})


@contextmanager
def workers(plan: Plan, *, tolerant: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Worker processes as an operator would start them; asked to stop, not killed, at the end."""
    log = plan.folder / "workers.log"
    command = [sys.executable, "-m", "lattice_tasks", "worker", "examples.census_tasks"]
    command += ["--processes", str(plan.processes), "--threads", str(plan.threads)]
    environment = os.environ | {"CENSUS_STORE_URL": plan.store_url, "CENSUS_TOLERANT": str(int(tolerant))}
    environment["LATTICE_LOG_LEVEL"] = "info"
    with open(log, "ab") as output:
        supervisor = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output)
        try:
            yield supervisor
        finally:
            supervisor.terminate()
            try:
                supervisor.wait(timeout=30)
            except subprocess.TimeoutExpired:
                supervisor.kill()


def wait_until_idle(
    screen: Screen, plan: Plan, app: Any, supervisor: subprocess.Popen[bytes], total: int, title: str
) -> float:
    """Show a bar until nothing waits, sleeps or runs any more; returns the seconds since the first task ended.

    Raises:
        Stuck: the workers died, or ended nothing for a minute.
    """
    moved_at, first_ended, last_open = time.monotonic(), None, total
    with progress(screen, title, total) as advance:
        while True:
            depth = app.lattice.queues.depth(app.QUEUE)
            still_open = depth.waiting + depth.scheduled + depth.running
            now = time.monotonic()
            if still_open != last_open:
                advance(last_open - still_open)
                moved_at, last_open, first_ended = now, still_open, first_ended or now
            if not still_open:
                return now - (first_ended or now)
            if supervisor.poll() is not None or now - moved_at > STUCK_S:
                why = "died" if supervisor.poll() is not None else f"ended nothing for {STUCK_S} s"
                raise Stuck(f"the workers {why}:\n{(plan.folder / 'workers.log').read_text()[-2000:]}")
            time.sleep(0.1)


def show_first_run(screen: Screen, app: Any, jobs: Sequence[Any], seconds: float) -> None:
    """Tasks, rate, retries, and the dead letters by reason."""
    pictures = [job.refresh() for job in jobs]
    letters = app.lattice.dead_letters(app.QUEUE).list()
    numbers = {
        "tasks": len(jobs),
        "tasks a second": round(len(jobs) / max(seconds, 0.001)),
        "succeeded": sum(picture.state == "succeeded" for picture in pictures),
        # The last failure of each letter was not tried again.
        "retries": sum(picture.attempt for picture in pictures) - len(letters),
        "dead letters": len(letters),
    }
    show_numbers(screen, "First run, with a strict reader", numbers)
    if not letters:
        click.echo(
            "\nNo file of this installation is broken (its test folders are probably missing), so the shelf is empty. "
            "The demo adds none."
        )
        return
    reasons = Counter((letter.reason, letter.error.split(":")[0]) for letter in letters)
    show_table(
        screen,
        "On the shelf",
        [{"files": count, "reason": reason, "error": error} for (reason, error), count in reasons.most_common()],
    )
    show_table(screen, "File by file", [letter_row(letter) for letter in letters[:SHOWN]])
    if len(letters) > SHOWN:
        click.echo(f"… and {len(letters) - SHOWN} more")


def letter_row(letter: Any) -> Record:
    """A dead letter in a line: its number, the file, what the reader said of it."""
    file = Path(json.loads(letter.body)["args"][0]).relative_to(STDLIB)
    return {"entry": letter.entry_id, "file": str(file), "error": letter.error.split(": ", 1)[-1]}


def show_table(screen: Screen, title: str, rows: Sequence[Record]) -> None:
    """A table under its title."""
    click.secho(f"\n{title}", bold=True)
    screen.many(rows, (), tuple(rows[0]), "rows")


def show_numbers(screen: Screen, title: str, numbers: Mapping[str, int]) -> None:
    """Names and numbers, the numbers one under the other's digits."""
    shown = {name: f"{number:,}" for name, number in numbers.items()}
    width = max(map(len, shown.values()))
    click.secho(f"\n{title}", bold=True)
    screen.one({name: number.rjust(width) for name, number in shown.items()})


def replay_shelf(app: Any) -> int:
    """Replay every dead letter once; returns how many."""
    shelf = app.lattice.dead_letters(app.QUEUE)
    letters = shelf.list()
    for letter in letters:
        shelf.replay(letter.entry_id)
    return len(letters)


def show_census(screen: Screen, jobs: Sequence[Any]) -> None:
    """The sum of what the tasks returned."""
    total: Counter[str] = Counter()
    for job in jobs:
        if job.refresh().state == "succeeded":
            total.update(job.result())
    show_numbers(screen, "The census", total)


def balance(app: Any, jobs: Sequence[Any]) -> bool:
    """Print the sum that has to come out even; whether it does.

    Each side is counted by itself: the handles that submit returned, the state of each id in the store, the shelf.
    """
    states = Counter(str(job.refresh().state) for job in jobs)
    shelved = app.lattice.dead_letters(app.QUEUE).count()
    submitted, succeeded, parked = len(jobs), states["succeeded"], states["parked"]
    lost = submitted - succeeded - parked
    even = lost == 0 and parked == shelved
    click.secho("\nThe books", bold=True)
    text = f"submitted {submitted:,} = succeeded {succeeded:,} + parked {parked:,}, {lost} lost"
    click.secho(text, fg="green" if even else "red", bold=True)
    if parked != shelved:
        click.secho(f"{parked} invocations are parked, but {shelved} dead letters are on the shelf", fg="red")
    if lost:
        click.secho(f"states: {dict(states)}", fg="red")
    return even


def census(screen: Screen, plan: Plan) -> bool:
    """The whole story; whether the books balance."""
    # The app file reads its store's address when it is imported, as an app does: so only now.
    os.environ |= {"CENSUS_STORE_URL": plan.store_url, "LATTICE_LOG_LEVEL": "error"}
    app = import_module("examples.census_tasks")
    began = time.monotonic()
    jobs = app.count.submit_many([(str(path),) for path in plan.files])
    click.echo(f"{len(jobs):,} tasks submitted in {time.monotonic() - began:.2f} s, one transaction.")
    with workers(plan, tolerant=False) as supervisor:
        seconds = wait_until_idle(screen, plan, app, supervisor, len(jobs), "counting")
    show_first_run(screen, app, jobs, seconds)
    parked = app.lattice.dead_letters(app.QUEUE).count()
    if parked:
        click.echo(f"\nThe repaired release is deployed: a tolerant reader. Replaying {parked} dead letters…")
        with workers(plan, tolerant=True) as supervisor:
            replayed = replay_shelf(app)
            wait_until_idle(screen, plan, app, supervisor, replayed, "replaying")
    show_census(screen, jobs)
    even = balance(app, jobs)
    app.lattice.close()
    return even


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m examples.census", description=__doc__.splitlines()[0])
    parser.add_argument("--files", default="**/*.py", metavar="GLOB", help="which files, below the standard library")
    parser.add_argument("--folder", type=Path, help="keep the store and the logs here (default: a temporary folder)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="per process")
    options = parser.parse_args(arguments)
    screen = Screen(sys.stdout, sys.stderr, colour="never" if os.environ.get("NO_COLOR") else "auto")
    files = source_files(options.files)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    place = nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory(prefix="census-")
    with place as folder:
        plan = Plan(files, Path(folder).resolve(), options.processes, options.threads)
        click.secho(f"A census of Python {platform.python_version()}'s standard library", bold=True)
        click.echo(
            f"{len(files):,} files under {STDLIB}\n"
            f"{plan.processes} worker processes × {plan.threads} threads on one SQLite file, no service."
        )
        try:
            return 0 if census(screen, plan) else 1
        except Stuck as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
