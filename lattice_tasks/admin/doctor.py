"""`lattice-tasks doctor` and `health`: is everything there that work needs, and what would mend what is not."""

import os
from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import timedelta

import click

from lattice_tasks import clock, insights
from lattice_tasks.admin import findings
from lattice_tasks.admin.about import our_version
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.findings import ERROR, INFO, OK, Finding
from lattice_tasks.admin.options import Verb
from lattice_tasks.broker.probe import probe
from lattice_tasks.errors import BrokerUnavailable, SchemaMismatch, SettingsError, StoreError
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import SQLITE
from lattice_tasks.store.schema import status

__all__ = ["doctor", "health"]

_MENDS = {
    "store_unreachable": "is the server up, and are LATTICE_STORE_URL and the network right?",
    "store_read_only": "let this user write the file and its folder, or run as the user that may",
    "store_unusable": "name another file or database in LATTICE_STORE_URL, or restore it",
    "schema": "lattice-tasks db migrate, or upgrade lattice-tasks on this host",
}


@click.command(cls=Verb)
@pass_desk
def doctor(desk: Desk) -> None:
    """Look at everything that work needs. Exit 0: no error found; 69: no store; 78: wrong settings; else 1."""
    found = list(_findings(desk))
    names = tuple(field.name for field in fields(Finding))
    records = [asdict(each) for each in found]
    if desk.screen.form == "table":
        mends = {"severity": "", "code": ""}
        records = [
            row
            for each in records
            for row in (each, {**mends, "finding": f"fix: {each['fix']}"})[: 1 + bool(each["fix"])]
        ]
    desk.screen.many(records, names, ("severity", "code", "finding"), "findings", wraps=True)
    errors = [each for each in found if each.severity == ERROR]
    if any(each.code == "store_unreachable" for each in errors):
        desk.fail(69, "the store cannot be reached")
    if any(each.code == "settings" for each in errors):
        desk.fail(SettingsError.exit_code, "the settings are wrong")
    if errors:
        desk.fail(1, f"{len(errors)} error{'s' if len(errors) > 1 else ''} found")


@click.command(cls=Verb)
@pass_desk
def health(desk: Desk) -> None:
    """One line for a probe. Exit 0: the store answers and its schema is current; else 1. Changes nothing."""
    settings = desk.settings()
    where = masked(settings.store_url)
    try:
        if desk.store_is_missing():
            raise SchemaMismatch("there is no store yet; the first use or `lattice-tasks db migrate` makes one")
        applied, pending, newer = status(desk.lattice.engine)
    except (StoreError, SettingsError) as error:
        problem = str(error)
    else:
        problem = _schema_problem(applied, pending, newer)
    text = f"unhealthy: {where}: {problem}" if problem else f"healthy: {where}: the store answers, schema current"
    desk.screen.value({"healthy": not problem, "store": where, "problem": problem or None}, text)
    if problem:
        raise click.exceptions.Exit(1)


def _findings(desk: Desk) -> Iterator[Finding]:
    try:
        settings = desk.settings()
        yield Finding("version", OK, f"lattice-tasks {our_version()}, namespace {settings.namespace}")
        yield from _about_schema_and_more(desk, settings)
        yield _about_broker(settings)
    except SettingsError as error:
        yield Finding("settings", ERROR, str(error), "correct the flag, the variable or the line in the file")


def _about_schema_and_more(desk: Desk, settings: Settings) -> Iterator[Finding]:
    try:
        if desk.store_is_missing():
            text = f"{masked(settings.store_url)} does not exist yet; the first use makes it"
            yield Finding("store", INFO, text, "is this the right folder?")
            return
        applied, pending, newer = status(desk.lattice.engine)
        problem = _schema_problem(applied, pending, newer)
        if problem:
            severity = ERROR if applied or newer else INFO
            yield Finding("schema", severity, f"{masked(settings.store_url)}: {problem}", _MENDS["schema"])
            return
        yield from _about_content(desk, settings)
    except StoreError as error:
        code = "store_unreachable" if error.exit_code == 69 else "store_unusable"
        yield Finding(code, ERROR, f"{masked(settings.store_url)}: {error}", _MENDS[code])


def _about_content(desk: Desk, settings: Settings) -> Iterator[Finding]:
    with desk.session() as (session, namespace_id):
        store = insights.store_health(session)
        queues = insights.queue_depth(session, namespace_id, None, settings.lease_ms)
        workers = insights.list_workers(session, namespace_id)
        actors = list(findings.about_actors(session, namespace_id, workers))
    yield from findings.about_store(store, settings)
    if store.engine == SQLITE and not os.access(desk.lattice.engine.database.database, os.W_OK):
        yield Finding(
            "store_read_only", ERROR, "this user may not write the file: no submit, no work", _MENDS["store_read_only"]
        )
    yield from findings.about_workers(workers, settings.lease_ms, our_version())
    an_hour_ago = store.now - timedelta(hours=1)
    recent = {
        each.name: desk.lattice.dead_letters(each.name).count(since=an_hour_ago) for each in queues if each.depth.parked
    }
    yield from findings.about_queues(queues, clock.to_us(store.now), settings.shelf_capacity, recent)
    yield from actors


def _about_broker(settings: Settings) -> Finding:
    if not settings.broker_url:
        return Finding("broker", INFO, f"no RabbitMQ is set; idle workers look every {min(250, settings.poll_ms)} ms")
    try:
        answered = probe(settings.broker_url)
    except BrokerUnavailable as error:
        fix = "is it up, and is LATTICE_BROKER_URL right? Work goes on meanwhile: workers poll"
        return Finding("broker_unreachable", ERROR, str(error), fix)
    return Finding("broker", OK, ", ".join(f"{url}: RabbitMQ {version}" for url, version in answered.items()))


def _schema_problem(applied: list[str], pending: list[str], newer: list[str]) -> str:
    if newer:
        return f"the schema is newer than this code (it has {newer[0]})"
    if pending and applied:
        return f"the schema is older than this code ({len(pending)} pending, first {pending[0]})"
    return "" if applied else "the store is empty; the first use or `lattice-tasks db migrate` prepares it"
