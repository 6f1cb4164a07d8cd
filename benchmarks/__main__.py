"""python -m benchmarks: measure, print the tables, write the JSON.

Every round measures all peers once, so that a change of the machine's mood hits all of them. PostgreSQL and RabbitMQ
run at their default durability; the servers of the tests are used, or those that LATTICE_TEST_POSTGRES_URL and
LATTICE_TEST_RABBITMQ_URL name. A full run takes about an hour on two cores, which it wants for itself.
"""

import argparse
import json
import platform
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from benchmarks import report
from benchmarks.crowded import CROWDED
from benchmarks.figures import FIGURES, QUICK, Figures, Scale, measured
from benchmarks.goals import OURS
from benchmarks.peers import PEERS
from benchmarks.processes import Failed, Ground, peers_environment
from tests.servers import Postgres, RabbitMQ, Unavailable
from tests.services import choose, folder_of, fresh_database, home, shared

Runs = dict[str, dict[str, list[Figures]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; 1 when a peer failed or a goal that must be kept was missed."""
    options = _options(arguments)
    console = Console()
    folder = home() / "benchmarks"
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir(parents=True)
    try:
        with ExitStack() as stack:
            postgres = stack.enter_context(shared(choose(Postgres), folder_of(Postgres)))
            rabbitmq = stack.enter_context(shared(choose(RabbitMQ), folder_of(RabbitMQ)))
            ground = Ground(
                folder=folder / "run",
                postgres_url=stack.enter_context(fresh_database(postgres.url)),
                rabbitmq_url=rabbitmq.url,
                peers_bin=peers_environment(folder / "venv"),
            )
            runs, failures = _measure_all(console, ground, options.only, QUICK if options.quick else Scale())
            about = _about(ground)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 69
    summary = report.summarised(runs)
    options.json.write_text(json.dumps({"about": about, "summary": summary, "runs": runs}, indent=1) + "\n")
    sheets = report.sheets(summary)
    report.show(console, sheets)
    if options.markdown:
        options.markdown.write_text(report.markdown(sheets))
    console.print(f"All runs: {options.json}", soft_wrap=True)
    for failure in failures:
        console.print(failure, style="red", markup=False)
    return 0 if not failures and (options.quick or report.are_goals_kept(summary)) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [*PEERS, *FIGURES, *CROWDED]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument(
        "--quick", action="store_true", help="one short run of each: shows that it works, proves nothing"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help=f"a peer or a figure; may be repeated: {'; '.join(names)}",
    )
    parser.add_argument("--json", type=Path, default=home() / "benchmarks" / "results.json", help="where the runs go")
    parser.add_argument("--markdown", type=Path, help="write the tables here, too, for a page")
    return parser.parse_args(arguments)


def _measure_all(console: Console, ground: Ground, only: Sequence[str], scale: Scale) -> tuple[Runs, list[str]]:
    peers = [name for name in PEERS if name in only] or [*PEERS]
    figures = [name for name in (*FIGURES, *CROWDED) if name in only] or [*FIGURES, *CROWDED]
    plan = [(peer, figure) for peer in peers for figure in PEERS[peer].figures if figure in figures]
    plan += [(OURS, figure) for figure in CROWDED if figure in figures and OURS in peers]
    runs: Runs = defaultdict(lambda: defaultdict(list))
    failures: list[str] = []
    for round_number in range(1, scale.rounds + 1):
        for peer, figure in plan:
            try:
                found = _measure(ground, peer, figure, scale)
            except Failed as error:
                failures.append(f"round {round_number}, {peer}, {figure}: {error}")
                console.print(failures[-1], style="red", markup=False)
                continue
            runs[peer][figure].append(found)
            shown = ", ".join(f"{name} {value:,.3g}" for name, value in found.items())
            console.print(f"round {round_number}  {peer:<20} {figure:<9} {shown}", highlight=False, soft_wrap=True)
    return {peer: dict(figures) for peer, figures in runs.items()}, failures


def _measure(ground: Ground, peer: str, figure: str, scale: Scale) -> Figures:
    if figure in CROWDED:
        return CROWDED[figure](ground, PEERS[peer], scale)
    return measured(ground, PEERS[peer], figure, scale)


def _about(ground: Ground) -> dict[str, Any]:
    """What was measured where: figures without that are worth little."""
    with psycopg.connect(ground.postgres_url) as connection:
        durability = {
            name: connection.execute("select current_setting(%s)", (name,)).fetchone()[0]
            for name in ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
        }
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "lattice-tasks": metadata.version("lattice-tasks"),
        "postgres": durability,
    }


if __name__ == "__main__":
    sys.exit(main())
