"""The arithmetic of the benchmarks: what is claimed from the runs, not the runs themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import marks
from benchmarks.goals import GOALS, Goal
from benchmarks.lanes import pairs
from benchmarks.peers import PEERS
from benchmarks.report import are_goals_kept, markdown, sheets, summarised

ROOT = Path(__file__).resolve().parents[1]


def runs_of(rate: float) -> list[dict[str, float]]:
    return [{"per_second": rate * factor} for factor in (1.0, 3.0, 2.0)]


def test_a_figure_is_the_median_with_its_spread() -> None:
    summary = summarised({"lattice": {"submit": runs_of(100)}})

    assert summary["lattice"]["submit"]["per_second"] == {"median": 200, "min": 100, "max": 300, "runs": 3}


def test_starting_the_workers_is_not_charged_to_the_tasks() -> None:
    idle = {"start_cpu_s": 1.0, "cpu_s_in_20_s": 0.0, "pss_mib": 1.0}
    drain = {"worker_cpu_s": 3.0, "tasks": 20_000, "per_second": 1.0}

    summary = summarised({"lattice": {"idle": [idle], "drain": [drain]}})

    assert summary["lattice"]["drain"]["worker_cpu_s_per_1000"]["median"] == pytest.approx(0.1)


def test_our_figure_is_shown_as_a_multiple_of_each_peer() -> None:
    summary = summarised({"lattice": {"submit": runs_of(300)}, "pgqueuer": {"submit": runs_of(100)}})

    page = markdown(sheets(summary))

    assert "| pgqueuer | 200 | 100 – 300 | 3.00× |" in page


def test_a_missed_goal_is_missed_and_an_unmeasured_one_says_nothing() -> None:
    slow = summarised({"lattice": {"submit": runs_of(100)}, "pgqueuer": {"submit": runs_of(1000)}})
    alone = summarised({"lattice": {"submit": runs_of(100)}})

    assert not are_goals_kept(slow)
    assert are_goals_kept(alone)


def test_less_is_better_where_a_goal_says_so() -> None:
    goal = Goal("latency", "lattice", ("latency", "p50_ms"), "", must=15, aim=5, more_is_better=False)

    assert goal.is_met(4, goal.aim)
    assert not goal.is_met(16, goal.must)


def test_every_goal_names_peers_that_are_measured() -> None:
    assert {goal.ours for goal in GOALS} | {goal.beside for goal in GOALS if goal.beside} <= {*PEERS}


def test_marks_of_other_processes_are_counted_once_per_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks.clear(tmp_path)
    monkeypatch.setenv("BENCH_FOLDER", str(tmp_path))
    program = "from benchmarks import marks; [marks.ran(number) for number in (0, 7, 7, marks.UNMARKED)]"

    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

    assert len(marks.instants_ns(tmp_path)) == 2


def test_eight_clients_share_as_many_lanes_as_they_are_told() -> None:
    lanes: list[int] = []

    class Lane:
        def __init__(self, number: int) -> None:
            lanes.append(number)
            self.held: list[int] = []

        def put(self, number: int) -> None:
            self.held.append(number)

        def get(self) -> object:
            return (self.held.pop(),)

    class Lossy(Lane):
        def get(self) -> object:
            return None

    assert pairs(Lane, 0.05, 1)["per_second"] > 0
    assert pairs(Lane, 0.05, 8)["per_second"] > 0
    assert lanes == [0] * 8 + list(range(8))
    with pytest.raises(SystemExit, match="empty"):
        pairs(Lossy, 0.05, 1)
