"""From the runs to medians with their spread, ratios and goals; as a table for people and JSON for machines."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.goals import GOALS, OURS, Medians

#: peer → figure → what each run returned.
Runs = Mapping[str, Mapping[str, list[dict[str, float]]]]
Summary = dict[str, dict[str, dict[str, dict[str, float]]]]

#: What the big table shows: title, figure, number in it, digits, and whether more is better.
ROWS = (
    ("submit one by one, /s", "submit", "per_second", 0, True),
    ("producer CPU, s per 1,000", "submit", "producer_cpu_s_per_1000", 3, False),
    ("submit 1,000 a call, /s", "bulk", "per_second", 0, True),
    ("drain of no-ops, /s", "drain", "per_second", 0, True),
    ("worker CPU, s per 1,000", "drain", "worker_cpu_s_per_1000", 3, False),
    ("latency p50, ms", "latency", "p50_ms", 2, False),
    ("latency p99, ms", "latency", "p99_ms", 2, False),
    ("idle worker CPU, s in 20 s", "idle", "cpu_s_in_20_s", 2, False),
    ("idle worker memory, PSS MiB", "idle", "pss_mib", 0, False),
)
CROWDED_ROWS = (
    ("1,000,000 finished and 100,000 waiting around", "crowd"),
    ("a snapshot held for three minutes", "snapshot"),
)


def summarised(runs: Runs) -> Summary:
    """peer → figure → number → median, min, max and how many runs."""
    summary: Summary = {}
    for peer, figures in runs.items():
        summary[peer] = {}
        for figure, repeats in figures.items():
            full = [_with_cpu_per_task(run, figures) for run in repeats]
            summary[peer][figure] = {number: _spread(run[number] for run in full) for number in full[0]} if full else {}
    return summary


def medians_of(summary: Summary) -> Medians:
    """peer → (figure, number) → median."""
    return {
        peer: {
            (figure, number): spread["median"]
            for figure, numbers in figures.items()
            for number, spread in numbers.items()
        }
        for peer, figures in summary.items()
    }


def show(console: Console, summary: Summary) -> bool:
    """Print all tables; whether every `must` that was measured is kept."""
    medians = medians_of(summary)
    _show_figures(console, summary, medians)
    _show_crowded(console, summary)
    return _show_goals(console, medians)


def _show_figures(console: Console, summary: Summary, medians: Medians) -> None:
    table = Table("figure", "peer", "median", "min – max", "ours is", title="Figures", title_justify="left")
    for title, figure, number, digits, more_is_better in ROWS:
        heading = f"{title} ({'more' if more_is_better else 'less'} is better)"
        for peer, figures in summary.items():
            spread = figures.get(figure, {}).get(number)
            if spread is None:
                continue
            ours = medians.get(_ours_beside(peer), {}).get((figure, number))
            ratio = f"{ours / spread['median']:.2f}×" if ours and spread["median"] and not _is_ours(peer) else ""
            low, middle, high = (f"{spread[which]:,.{digits}f}" for which in ("min", "median", "max"))
            table.add_row(heading, peer, middle, f"{low} – {high}", ratio)
            heading = ""
        table.add_section()
    if table.row_count:
        console.print(table)


def _show_crowded(console: Console, summary: Summary) -> None:
    table = Table(
        "ours, drain /s",
        "plain",
        "so",
        "ratio: median, min – max",
        title="When the store is not empty",
        title_justify="left",
    )
    for title, figure in CROWDED_ROWS:
        numbers = summary.get(OURS, {}).get(figure)
        if numbers:
            ratio = numbers["ratio"]
            plain, hindered = numbers["plain_per_second"]["median"], numbers["per_second"]["median"]
            spread = f"{ratio['median']:.2f}, {ratio['min']:.2f} – {ratio['max']:.2f}"
            table.add_row(title, f"{plain:,.0f}", f"{hindered:,.0f}", spread)
    if table.row_count:
        console.print(table)


def _show_goals(console: Console, medians: Medians) -> bool:
    table = Table("goal", "beside", "value", "must / aim", "", title="Goals", title_justify="left")
    all_kept = True
    for goal in GOALS:
        value = goal.value(medians)
        if value is None:
            continue
        kept, reached = goal.is_met(value, goal.must), goal.is_met(value, goal.aim)
        all_kept &= kept
        verdict = "[red]missed[/]" if not kept else "[green]aim reached[/]" if reached else "[yellow]kept[/]"
        table.add_row(goal.what, goal.beside, f"{value:.2f}", goal.bound, verdict)
    if table.row_count:
        console.print(table)
    return all_kept


def _ours_beside(peer: str) -> str:
    return OURS + ", SQLite" if "SQLite" in peer else OURS


def _is_ours(peer: str) -> bool:
    return peer.startswith(OURS)


def _with_cpu_per_task(run: dict[str, float], figures: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    """A drain's processor time without what it costs to start the workers, which the idle run has measured."""
    if "worker_cpu_s" not in run or not figures.get("idle"):
        return run
    start_s = statistics.median(idle["start_cpu_s"] for idle in figures["idle"])
    return run | {"worker_cpu_s_per_1000": (run["worker_cpu_s"] - start_s) / run["tasks"] * 1000}


def _spread(numbers: Iterable[float]) -> dict[str, float]:
    all_runs = list(numbers)
    return {
        "median": statistics.median(all_runs),
        "min": min(all_runs),
        "max": max(all_runs),
        "runs": len(all_runs),
    }
