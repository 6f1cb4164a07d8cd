"""What we want to be true of our figures, next to the peers' or by themselves."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["EMBEDDED", "GOALS", "OURS", "Goal", "Medians"]

#: peer → (figure, number) → median.
Medians = Mapping[str, Mapping[tuple[str, str], float]]


@dataclass(frozen=True)
class Goal:
    """Our number, divided by a peer's unless `beside` is empty, lies on the right side of `must`, better still of `aim`."""

    what: str
    ours: str
    number: tuple[str, str]
    beside: str
    must: float | None
    aim: float | None
    more_is_better: bool = True

    def value(self, medians: Medians) -> float | None:
        """The quotient or the plain number; None when something was not measured."""
        ours = medians.get(self.ours, {}).get(self.number)
        theirs = medians.get(self.beside, {}).get(self.number) if self.beside else 1.0
        return ours / theirs if ours is not None and theirs else None

    def is_met(self, value: float, bound: float | None) -> bool:
        """Whether the value keeps the bound; no bound is always kept."""
        if bound is None:
            return True
        return value >= bound if self.more_is_better else value <= bound

    @property
    def bounds(self) -> str:
        """Both bounds as text."""
        sign = "≥" if self.more_is_better else "≤"
        texts = [f"{sign} {bound:g}" if bound is not None else "–" for bound in (self.must, self.aim)]
        return " / ".join(texts)


SUBMIT, BULK, DRAIN = ("submit", "per_second"), ("bulk", "per_second"), ("drain", "per_second")
P50, P99 = ("latency", "p50_ms"), ("latency", "p99_ms")
WORKER_CPU = ("drain", "worker_cpu_s_per_1000")
OURS, EMBEDDED, HUEY = "lattice", "lattice, SQLite", "huey, SQLite"

GOALS = (
    Goal("submit one by one", OURS, SUBMIT, "dramatiq, confirms", 1.6, None),
    Goal("submit one by one", OURS, SUBMIT, "pgqueuer", 0.9, 1.2),
    Goal("submit 1,000 a call", OURS, BULK, "dramatiq, confirms", 20, None),
    Goal("submit 1,000 a call", OURS, BULK, "pgqueuer", None, 1.1),
    Goal("drain of 20,000", OURS, DRAIN, "dramatiq", 1.8, None),
    Goal("drain of 20,000", OURS, DRAIN, "celery", 2.5, None),
    Goal("drain of 20,000", OURS, DRAIN, "pgqueuer", None, 1.0),
    Goal("latency p50", OURS, P50, "dramatiq", 2.2, 1.5, more_is_better=False),
    Goal("latency p99", OURS, P99, "dramatiq", 3, 1.5, more_is_better=False),
    Goal("latency p50", OURS, P50, "pgqueuer", 1, None, more_is_better=False),
    Goal("worker CPU per task", OURS, WORKER_CPU, "dramatiq", 0.75, 0.5, more_is_better=False),
    Goal("idle CPU, s in 20 s", OURS, ("idle", "cpu_s_in_20_s"), "", 0.2, 0.1, more_is_better=False),
    Goal("idle memory (PSS)", OURS, ("idle", "pss_mib"), "dramatiq", 1.4, None, more_is_better=False),
    Goal("drain, crowded / empty", OURS, ("crowd", "ratio"), "", 0.85, 0.95),
    Goal("drain, snapshot held / not", OURS, ("snapshot", "ratio"), "", 0.7, 0.9),
    Goal("SQLite: submit one by one", EMBEDDED, SUBMIT, HUEY, 0.5, 1),
    Goal("SQLite: drain", EMBEDDED, DRAIN, HUEY, 1.5, 3),
    Goal("SQLite: latency p50, ms", EMBEDDED, P50, "", 15, 5, more_is_better=False),
)
