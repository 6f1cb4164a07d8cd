"""What really happened, written down outside the system, and a checker that compares it with the store.

Every process of a run, whoever kills it, appends lines to one file: what was submitted and what the answer was, which
attempt started and ended where, what was killed. The checker sees only that file and the final store, so it believes
nothing that the system says of itself.

    I1 conservation   what was accepted is stored, each in exactly one place
    I2 once           nothing is recorded as completed twice, and nothing leaves the completed state
    I3 no ghost       nothing starts, or is stored, that was not submitted; nothing starts after its cancel
    I5 attempts       executions stay within the budget plus the faults; each start has one end, or its process died
    I8 fencing        the stored result is that of an execution that ended well, and never changes
"""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_tasks.tasks.invocation import State
from tests.witness import Row, Witnessed

Record = dict[str, Any]


class History:
    """An append-only file of JSON lines; any process may append, and one that dies in the middle spoils only its line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._read_to = 0
        self._records: list[Record] = []
        self.torn = 0

    def note(self, what: str, **facts: Any) -> None:
        """Append one record, in one write; `at` is the machine's monotonic clock, the same in every process."""
        line = json.dumps({"what": what, "at": time.monotonic(), "pid": os.getpid(), **facts}, default=repr)
        os.write(self._file, f"\n{line}\n".encode())

    def records(self) -> list[Record]:
        """Everything so far; what was read once is not read again."""
        with open(self.path, "rb") as file:
            file.seek(self._read_to)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._read_to += whole
        for line in filter(None, text[:whole].split(b"\n")):
            try:
                self._records.append(json.loads(line))
            except ValueError:
                self.torn += 1
        return self._records

    def of(self, what: str, **facts: Any) -> list[Record]:
        """The records of one kind with these facts, in the order they were written."""
        return [one for one in self.records() if one["what"] == what and facts.items() <= one.items()]

    def events(self, name: str, **facts: Any) -> list[Record]:
        """The events of that name which the system's processes told."""
        return self.of("event", name=name, **facts)

    def in_flight(self) -> dict[int, list[str]]:
        """By process: the tasks that it has started and not ended."""
        open_starts: dict[tuple[int, str], int] = defaultdict(int)
        for one in self.records():
            if one["what"] in ("start", "end"):
                open_starts[one["pid"], one["name"]] += 1 if one["what"] == "start" else -1
        running: dict[int, list[str]] = defaultdict(list)
        for (pid, name), count in open_starts.items():
            if count > 0:
                running[pid].append(name)
        return running

    def submitting(self, name: str, submit: Callable[[], Any]) -> Any:
        """Submit one task and write down what was asked and what was answered: accepted, or nobody knows."""
        self.note("invoke", name=name)
        try:
            job = submit()
        except Exception as error:
            self.note("unknown", name=name, error=str(error))
            raise
        self.note("accepted", name=name, id=job.id)
        return job


_SHELVED = "select value from lattice_tree_row r join lattice_tree t on t.id = r.tree_id where t.name like {prefix}"
_STRAYS = """select (select count(*) from lattice_ready where seq not in (select seq from lattice_invocation)),
        (select count(*) from lattice_scheduled where seq not in (select seq from lattice_invocation)),
        (select count(*) from lattice_lease where seq not in (select seq from lattice_invocation)
            or worker_id not in (select id from lattice_worker))"""


@dataclass
class HistoryChecker:
    """Compares a history with its store.

    Args:
        budget: how often one task may be charged at most (`max_retries` + 1); None: no limit.
        is_over: whether all work was given time to finish, so that nothing may be open any more.
    """

    history: History
    store: Witnessed
    budget: int | None = None
    is_over: bool = True
    _found: list[str] = field(default_factory=list)

    def check(self) -> dict[str, Row]:
        """The rows by name, when every invariant holds; else an AssertionError that names what broke."""
        rows = self.store.rows()
        by_name = {row.name: row for row in rows if row.name is not None}
        for rule in (self._conservation, self._places, self._once, self._no_ghost, self._attempts, self._fencing):
            self._found += [f"{(rule.__doc__ or '')[:2]} {text}" for text in rule(rows, by_name)]
        shown = "\n  ".join(self._found[:20])
        assert not self._found, f"{len(self._found)} violations, see {self.history.path}:\n  {shown}"
        return by_name

    def _conservation(self, rows: list[Row], by_name: Mapping[str, Row]) -> Iterator[str]:
        """I1: what was accepted is stored, and under the id that was told."""
        for one in self.history.of("accepted"):
            row = by_name.get(one["name"])
            if row is None:
                yield f"{one['name']} was accepted and is not stored"
            elif row.id != one["id"]:
                yield f"{one['name']} was accepted as {one['id']} and is stored as {row.id}"
        for name, count in Counter(row.name for row in rows).items():
            if count > 1 and name is not None:
                yield f"{name} is stored {count} times"

    def _places(self, rows: list[Row], _by_name: Mapping[str, Row]) -> Iterator[str]:
        """I1: each invocation is in exactly one place, and every dead letter has one."""
        for row in rows:
            places = row.ready + row.scheduled + row.leased
            if places != (1 if row.state.is_open else 0):
                yield f"{row.name} is {row.state} and in {places} places"
            if self.is_over and row.state.is_open:
                yield f"{row.name} is still {row.state}"
        strays = self.store.fetch(_STRAYS)[0]
        if any(strays):
            yield f"ready, scheduled and leased rows without an owner: {strays}"
        parked = sorted(row.entry_id or 0 for row in rows if row.state is State.PARKED)
        shelved = self.store.fetch(_SHELVED.format(prefix="%s"), "%dlq%")
        if len(shelved) != len(parked):
            yield f"{len(parked)} are parked and {len(shelved)} lie on the shelf"

    def _once(self, rows: list[Row], _by_name: Mapping[str, Row]) -> Iterator[str]:
        """I2: at most one completion each."""
        done = Counter(seq for (seq,) in self.store.fetch("select seq from witness where after = 1 and before <> 1"))
        for row in rows:
            if done[row.seq] != (row.state is State.SUCCEEDED):
                yield f"{row.name} is {row.state} and was completed {done[row.seq]} times"
        for seq, after in self.store.fetch("select seq, after from witness where before = 1"):
            yield f"seq {seq} was completed and then written again (state {after})"

    def _no_ghost(self, rows: list[Row], by_name: Mapping[str, Row]) -> Iterator[str]:
        """I3: nothing is stored or starts that was not submitted."""
        asked = {one["name"]: one["at"] for one in self.history.of("invoke")}
        for row in rows:
            if row.name not in asked:
                yield f"{row.name} ({row.id}) is stored and nobody submitted it"
        cancelled = {one["name"]: one["at"] for one in self.history.of("cancelled")}
        for one in self.history.of("start"):
            row = by_name.get(one["name"])
            if row is None or row.id != one["id"]:
                yield f"{one['name']} ({one['id']}) started and is not stored"
            if one["at"] < asked.get(one["name"], 0.0):
                yield f"{one['name']} started before it was submitted"
            if one["at"] > cancelled.get(one["name"], float("inf")):
                yield f"{one['name']} started after it was cancelled"

    def _attempts(self, rows: list[Row], _by_name: Mapping[str, Row]) -> Iterator[str]:
        """I5: executions within the budget and the faults, without gap, each with one end."""
        faults = len(self.history.of("fault"))
        dead = {one["victim"] for one in self.history.of("fault") if "victim" in one}
        starts: dict[str, list[Record]] = defaultdict(list)
        ends: Counter[tuple[str, int, int]] = Counter()
        for one in self.history.records():
            if one["what"] == "start":
                starts[one["name"]].append(one)
            elif one["what"] == "end":
                ends[one["name"], one["pid"], one["thread"]] += 1
        for name, begun in starts.items():
            numbers = [one["attempt"] for one in begun]
            if self.budget is not None and max(numbers) > self.budget:
                yield f"{name} made attempt {max(numbers)} of {self.budget}"
            if self.budget is not None and len(numbers) > self.budget + faults:
                yield f"{name} was executed {len(numbers)} times"
            gap = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
            if len(gap) > faults:
                yield f"{name} made attempts {numbers}"
            if not faults and len(numbers) != len(set(numbers)):
                yield f"{name} made attempts {numbers} without any fault"
            for key, count in Counter((name, one["pid"], one["thread"]) for one in begun).items():
                if ends[key] != count and key[1] not in dead:
                    yield f"{name} started {count} times and ended {ends[key]} times in process {key[1]}"
        if self.budget is not None:
            for row in rows:
                if row.attempt > self.budget:
                    yield f"{row.name} was charged {row.attempt} attempts of {self.budget}"

    def _fencing(self, rows: list[Row], _by_name: Mapping[str, Row]) -> Iterator[str]:
        """I8: the stored result is that of an execution that ended well."""
        tokens: dict[str, set[str]] = defaultdict(set)
        for one in self.history.of("end", how="ok"):
            tokens[one["name"]].add(one["token"])
        for row in rows:
            if row.state is State.SUCCEEDED and row.result not in tokens[row.name or ""]:
                yield f"{row.name} has the result {row.result}, its executions gave {sorted(tokens[row.name or ''])}"
        for seq, is_same in self.store.fetch("select seq, is_same from witness where before <> 0 and after = before"):
            if not is_same:
                yield f"the result of seq {seq} was changed after its end"
