"""From the runs to medians with their spread, ratios and goals; as tables for a terminal or a page."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table

from benchmarks.goals import EMBEDDED, GOALS, OURS, Medians

__all__ = ["Sheet", "Summary", "are_goals_kept", "markdown", "sheets", "show", "summarised"]

#: peer → figure → what each run returned.
Runs = Mapping[str, Mapping[str, list[dict[str, float]]]]
#: peer → figure → number → median, min, max and how many runs.
Summary = dict[str, dict[str, dict[str, dict[str, float]]]]

#: What the big table shows: title, figure, number in it, digits. An arrow tells where better lies.
ROWS = (
    ("submit one by one, /s ↑", "submit", "per_second", 0),
    ("… producer CPU, s per 1,000 ↓", "submit", "producer_cpu_s_per_1000", 3),
    ("submit 1,000 a call, /s ↑", "bulk", "per_second", 0),
    ("drain of no-ops, /s ↑", "drain", "per_second", 0),
    ("… worker CPU, s per 1,000 ↓", "drain", "worker_cpu_s_per_1000", 3),
    ("latency p50, ms ↓", "latency", "p50_ms", 2),
    ("latency p99, ms ↓", "latency", "p99_ms", 2),
    ("FIFO, one queue: in and out, /s ↑", "fifo", "one_per_second", 0),
    ("… on eight lanes", "fifo", "lanes_per_second", 0),
    ("idle worker CPU, s in 20 s ↓", "idle", "cpu_s_in_20_s", 2),
    ("idle worker memory, PSS MiB ↓", "idle", "pss_mib", 0),
)
CROWDED_ROWS = (
    ("many finished and waiting rows around", "crowd"),
    ("a snapshot held meanwhile", "snapshot"),
)


@dataclass(frozen=True)
class Sheet:
    """One table; an empty row parts its sections."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def summarised(runs: Runs) -> Summary:
    """The median and the spread of every number."""
    return {
        peer: {figure: _summarised(repeats, figures) for figure, repeats in figures.items() if repeats}
        for peer, figures in runs.items()
    }


def sheets(summary: Summary) -> list[Sheet]:
    """Every table that has something to show."""
    found = (_figures_sheet(summary), _crowded_sheet(summary), _goals_sheet(summary))
    return [sheet for sheet in found if sheet.rows]


def are_goals_kept(summary: Summary) -> bool:
    """Whether every `must` that was measured is kept."""
    medians = _medians_of(summary)
    values = ((goal, goal.value(medians)) for goal in GOALS)
    return all(goal.is_met(value, goal.must) for goal, value in values if value is not None)


def show(console: Console, found: Iterable[Sheet]) -> None:
    """Print the tables on a terminal."""
    for sheet in found:
        table = Table(*sheet.columns, box=ROUNDED)
        for row in sheet.rows:
            if row:
                table.add_row(*row)
            else:
                table.add_section()
        console.print(f"\n[bold]{sheet.title}[/]")
        console.print(table)


def markdown(found: Iterable[Sheet]) -> str:
    """The tables as text for a page."""
    lines: list[str] = []
    for sheet in found:
        lines += [f"**{sheet.title}**", "", f"| {' | '.join(sheet.columns)} |", "|---" * len(sheet.columns) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in sheet.rows if row] + [""]
    return "\n".join(lines)


def _figures_sheet(summary: Summary) -> Sheet:
    medians, rows = _medians_of(summary), []
    for title, figure, number, digits in ROWS:
        heading = title
        for peer, figures in summary.items():
            spread = figures.get(figure, {}).get(number)
            if spread is None:
                continue
            ours = medians.get(EMBEDDED if "SQLite" in peer else OURS, {}).get((figure, number))
            is_ours = peer in (OURS, EMBEDDED)
            ratio = f"{ours / spread['median']:.2f}×" if ours and spread["median"] and not is_ours else ""
            low, middle, high = (f"{spread[which]:,.{digits}f}" for which in ("min", "median", "max"))
            rows.append((heading, peer, middle, f"{low} – {high}", ratio))
            heading = ""
        rows.append(())
    return Sheet("Figures", ("figure", "peer", "median", "min – max", "ours is"), rows if any(rows) else [])


def _crowded_sheet(summary: Summary) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for title, figure in CROWDED_ROWS:
        numbers = summary.get(OURS, {}).get(figure)
        if numbers:
            plain, hindered, ratio = (numbers[name] for name in ("plain_per_second", "per_second", "ratio"))
            rows.append(
                (
                    title,
                    f"{plain['median']:,.0f}",
                    f"{hindered['median']:,.0f}",
                    f"{ratio['median']:.2f}",
                    f"{ratio['min']:.2f} – {ratio['max']:.2f}",
                )
            )
    return Sheet("When the store is not empty", ("drain, /s", "plain", "so", "ratio", "min – max"), rows)


def _goals_sheet(summary: Summary) -> Sheet:
    medians, rows = _medians_of(summary), []
    for goal in GOALS:
        value = goal.value(medians)
        if value is not None:
            is_kept, is_reached = goal.is_met(value, goal.must), goal.is_met(value, goal.aim)
            verdict = "missed" if not is_kept else "aim reached" if is_reached else "kept"
            rows.append((goal.what, goal.beside, f"{value:.2f}", goal.bounds, verdict))
    return Sheet("Goals", ("goal", "beside", "value", "must / aim", ""), rows)


def _summarised(
    repeats: list[dict[str, float]], figures: Mapping[str, list[dict[str, Any]]]
) -> dict[str, dict[str, float]]:
    runs = [_with_cpu_per_task(run, figures) for run in repeats]
    return {
        number: {
            "median": statistics.median(run[number] for run in runs),
            "min": min(run[number] for run in runs),
            "max": max(run[number] for run in runs),
            "runs": len(runs),
        }
        for number in runs[0]
    }


def _with_cpu_per_task(run: dict[str, float], figures: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    """A drain's processor time without what it costs to start the workers, which the idle run has measured."""
    if "worker_cpu_s" not in run or not figures.get("idle"):
        return run
    start_s = statistics.median(idle["start_cpu_s"] for idle in figures["idle"])
    return run | {"worker_cpu_s_per_1000": (run["worker_cpu_s"] - start_s) / run["tasks"] * 1000}


def _medians_of(summary: Summary) -> Medians:
    return {
        peer: {
            (figure, number): spread["median"]
            for figure, numbers in figures.items()
            for number, spread in numbers.items()
        }
        for peer, figures in summary.items()
    }
