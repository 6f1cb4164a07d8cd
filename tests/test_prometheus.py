"""The Prometheus plugin: what is counted under which name, where it is served, and what never becomes a label."""

import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lattice_tasks_plugins.prometheus import COUNTED, METRICS, PrometheusPlugin

from lattice_tasks import Lattice
from lattice_tasks.telemetry import EVENTS

SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)


@contextmanager
def plugged(store_url: str, **options: int) -> Iterator[tuple[Lattice, PrometheusPlugin]]:
    lattice = Lattice(store_url=store_url, broker_url="", namespace="shop", set_default=False, log_level="critical")
    plugin = PrometheusPlugin(port=0, store_every_s=0, **options)
    lattice.use(plugin)
    try:
        yield lattice, plugin
    finally:
        lattice.close()


def scraped(plugin: PrometheusPlugin) -> dict[str, float]:
    """Every sample as `name{labels}`, the namespace left out."""
    host, port = plugin.serve()
    with urllib.request.urlopen(f"http://{host}:{port}/metrics") as answer:
        text = answer.read().decode()
    samples = {}
    for match in SAMPLE.finditer(text):
        labels = [pair for pair in (match["labels"] or "").split(",") if pair and not pair.startswith("namespace=")]
        samples[match["name"] + "{" + ",".join(labels) + "}"] = float(match["value"])
    return samples


def test_every_counted_event_is_in_the_table_of_events() -> None:
    for event, counts in COUNTED.items():
        for count in counts:
            labels = set(METRICS[count.metric][1]) - {*count.says}
            assert not count.amount or count.amount in EVENTS[event].fields
            assert labels - {"actor"} <= {*EVENTS[event].fields}, event


def test_every_counter_is_fed_and_named_by_the_rules() -> None:
    assert {count.metric for counts in COUNTED.values() for count in counts} == {*METRICS}
    for name, (_, labels) in METRICS.items():
        assert re.fullmatch(r"lattice_[a-z_]+_total", name)
        assert not {"task_id", "error", "entry_id", "worker"} & {*labels}


def test_outcomes_are_counted_by_queue_actor_and_outcome(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (lattice, plugin):
        lattice.telemetry.emit("task.succeeded", queue="mail", actor="send", run_s=0.02)
        lattice.telemetry.emit("task.succeeded", queue="mail", actor="send", run_s=2.0)
        lattice.telemetry.emit(
            "task.parked", queue="mail", actor="send", task_id="1", reason="unknown", attempts=5, error="no"
        )

        samples = scraped(plugin)

    assert samples['lattice_tasks_total{actor="send",outcome="succeeded",queue="mail"}'] == 2
    assert samples['lattice_tasks_total{actor="send",outcome="parked",queue="mail"}'] == 1
    assert samples['lattice_dlq_parked_total{queue="mail",reason="unknown"}'] == 1
    assert samples['lattice_task_run_seconds_sum{actor="send",queue="mail"}'] == pytest.approx(2.02)
    assert samples['lattice_task_run_seconds_bucket{actor="send",le="0.025",queue="mail"}'] == 1


def test_an_event_that_carries_a_number_counts_that_many(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (lattice, plugin):
        lattice.telemetry.emit("wakeup.received", count=7)
        lattice.telemetry.emit("task.submitted", queue="mail", count=1000)

        samples = scraped(plugin)

    assert samples['lattice_wakeups_total{kind="received"}'] == 7
    assert samples['lattice_tasks_submitted_total{queue="mail"}'] == 1000


def test_actors_beyond_the_limit_share_one_label(sqlite_url: str) -> None:
    with plugged(sqlite_url, max_actors=2) as (lattice, plugin):
        for actor in ("a", "b", "c", "d", "a"):
            lattice.telemetry.emit("task.succeeded", queue="mail", actor=actor, run_s=0.0)

        samples = scraped(plugin)

    counted = {name: value for name, value in samples.items() if name.startswith("lattice_tasks_total")}
    assert sorted(counted.values()) == [1, 2, 2]
    assert counted['lattice_tasks_total{actor="_other",outcome="succeeded",queue="mail"}'] == 2


def test_depths_are_read_from_the_store_at_the_scrape(store_url: str) -> None:
    with plugged(store_url) as (lattice, plugin):
        lattice.submit("mail", "send", (1,))
        lattice.submit("mail", "send", (2,))

        samples = scraped(plugin)

    assert samples["lattice_store_up{}"] == 1
    assert samples['lattice_queue_depth{queue="mail",state="waiting"}'] == 2
    assert samples['lattice_dlq_depth{queue="mail"}'] == 0
    assert samples['lattice_queue_state{queue="mail",state="active"}'] == 1
    assert samples['lattice_queue_oldest_age_seconds{queue="mail"}'] >= 0


def test_a_store_that_does_not_answer_costs_the_gauges_only() -> None:
    with plugged("postgresql://nobody@127.0.0.1:1/nothing") as (lattice, plugin):
        lattice.telemetry.emit("store.unavailable", error="refused")

        samples = scraped(plugin)

    assert samples["lattice_store_up{}"] == 0
    assert samples['lattice_outages_total{service="store"}'] == 1


def test_importing_and_using_opens_no_port_and_the_first_event_opens_one_on_loopback(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (lattice, plugin):
        assert plugin.address is None

        lattice.telemetry.emit("wakeup.sent", count=1)

        deadline = time.monotonic() + 10
        while plugin.address is None and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert plugin.address is not None
        assert plugin.address[0] == "127.0.0.1"


def test_a_second_process_of_the_host_takes_the_next_port(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (lattice, first):
        _, port = first.serve()
        second = PrometheusPlugin(port=port, ports=50)
        lattice.use(second)

        assert port < second.serve()[1] < port + 50


def test_a_forked_child_serves_a_port_of_its_own(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (_, plugin):
        _, port = plugin.serve()
        reading, writing = os.pipe()

        child = os.fork()
        if not child:
            try:
                os.write(writing, f"{plugin.address} {plugin.serve()[1]}".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)

        before, _, served = os.read(reading, 100).decode().partition(" ")
        assert before == "None"
        assert int(served) != port


def test_when_no_port_is_free_the_error_names_the_ports(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (lattice, first):
        _, port = first.serve()
        second = PrometheusPlugin(port=port, ports=1)
        lattice.use(second)

        with pytest.raises(OSError, match=rf"ports {port} to {port}.*pass another host, port or more ports"):
            second.serve()


def test_closing_the_lattice_closes_the_port(sqlite_url: str) -> None:
    with plugged(sqlite_url) as (lattice, plugin):
        host, port = plugin.serve()

        lattice.close()

        assert plugin.address is None
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://{host}:{port}/metrics")
