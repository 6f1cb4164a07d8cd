"""The schema as peewee models, for reports and for the test that migrations and models agree.

Models are made per engine, so that two stores in one process never share a database by accident.
"""

from types import SimpleNamespace
from typing import Any

import peewee
from playhouse.sqlite_ext import AutoIncrementField

from lattice_tasks.store.plan_tables import plan_models

__all__ = ["models"]


def models(database: peewee.Database) -> Any:
    """Every table of the schema as a model bound to this database, as attributes of one namespace."""

    class Row(peewee.Model):
        class Meta:
            database = None
            legacy_table_names = False

    Row._meta.database = database
    postgres = isinstance(database, peewee.PostgresqlDatabase)
    identity = peewee.BigAutoField if postgres else peewee.AutoField

    def text(**options: Any) -> peewee.TextField:
        return peewee.TextField(collation='"C"' if postgres else None, **options)

    class Namespace(Row):
        id = identity()
        name = text(unique=True)
        wake_id = peewee.TextField()
        created_at = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_namespace"

    class Queue(Row):
        id = identity()
        namespace_id = peewee.BigIntegerField()
        name = text()
        kind = peewee.TextField()
        state = peewee.TextField()
        retention_ms = peewee.BigIntegerField(null=True)
        dlq_capacity = peewee.BigIntegerField(null=True)
        dlq_on_full = peewee.TextField()
        created_at = peewee.BigIntegerField()
        updated_at = peewee.BigIntegerField()
        dlq_retention_ms = peewee.BigIntegerField(null=True)

        class Meta:
            table_name = "lattice_queue"
            indexes = ((("namespace_id", "name"), True),)

    class Invocation(Row):
        seq = identity()
        id = peewee.UUIDField(unique=True)
        queue_id = peewee.BigIntegerField()
        actor = text()
        body = peewee.BlobField()
        priority = peewee.IntegerField()
        key = text(null=True)
        submitted_at = peewee.BigIntegerField()
        deadline_at = peewee.BigIntegerField(null=True)
        state = peewee.SmallIntegerField()
        finished_at = peewee.BigIntegerField(null=True)
        attempt = peewee.IntegerField()
        reason = peewee.TextField(null=True)
        error = peewee.TextField(null=True)
        traceback = peewee.TextField(null=True)
        result = peewee.BlobField(null=True)
        entry_id = peewee.BigIntegerField(null=True)
        unknown_since = peewee.BigIntegerField(null=True)
        redirected_from = peewee.TextField(null=True)
        replay_of = peewee.UUIDField(null=True)
        replaced_by = peewee.UUIDField(null=True)

        class Meta:
            table_name = "lattice_invocation"

    Invocation.add_index(
        Invocation.queue_id,
        Invocation.key,
        unique=True,
        where=Invocation.key.is_null(False),
        name="lattice_invocation_key",
    )

    class Ready(Row):
        queue_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()
        priority = peewee.IntegerField()
        attempt = peewee.IntegerField()
        flags = peewee.SmallIntegerField()

        class Meta:
            table_name = "lattice_ready"
            primary_key = peewee.CompositeKey("queue_id", "seq")

    class Scheduled(Row):
        queue_id = peewee.BigIntegerField()
        due_at = peewee.BigIntegerField()
        seq = peewee.BigIntegerField(unique=True)
        priority = peewee.IntegerField()
        attempt = peewee.IntegerField()
        flags = peewee.SmallIntegerField()

        class Meta:
            table_name = "lattice_scheduled"
            primary_key = peewee.CompositeKey("queue_id", "due_at", "seq")

    class Lease(Row):
        worker_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()
        batch = peewee.BigIntegerField()
        queue_id = peewee.BigIntegerField()
        priority = peewee.IntegerField()
        attempt = peewee.IntegerField()
        flags = peewee.SmallIntegerField()
        claimed_at = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_lease"
            primary_key = peewee.CompositeKey("worker_id", "seq")

    class Held(Row):
        queue_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_held"
            primary_key = peewee.CompositeKey("queue_id", "seq")

    class Worker(Row):
        id = identity() if postgres else AutoIncrementField()
        namespace_id = peewee.BigIntegerField()
        host = peewee.TextField()
        pid = peewee.IntegerField()
        threads = peewee.IntegerField()
        queues = peewee.TextField()
        actors = peewee.TextField()
        version = peewee.TextField()
        state = peewee.TextField()
        beat = peewee.BigIntegerField()
        started_at = peewee.BigIntegerField()
        seen_at = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_worker"

    class Audit(Row):
        namespace_id = peewee.BigIntegerField()
        n = peewee.BigIntegerField()
        at = peewee.BigIntegerField()
        who = peewee.TextField()
        verb = peewee.TextField()
        target = peewee.TextField()
        reason = peewee.TextField(null=True)
        before = peewee.TextField()
        after = peewee.TextField()
        begun = peewee.BigIntegerField(null=True)
        previous = peewee.TextField()
        hash = peewee.TextField()

        class Meta:
            table_name = "lattice_audit"
            primary_key = peewee.CompositeKey("namespace_id", "n")

    class AuditHead(Row):
        namespace_id = peewee.BigIntegerField(primary_key=True)
        n = peewee.BigIntegerField()
        hash = peewee.TextField()

        class Meta:
            table_name = "lattice_audit_head"

    class Counter(Row):
        key = text(primary_key=True)
        value = peewee.BigIntegerField()
        expires_at = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_counter"

    class Tree(Row):
        id = identity()
        name = text(unique=True)
        kind = peewee.TextField()
        created_at = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_tree"

    class TreeRow(Row):
        tree_id = peewee.BigIntegerField()
        key = text()
        value = peewee.BlobField()

        class Meta:
            table_name = "lattice_tree_row"
            primary_key = peewee.CompositeKey("tree_id", "key")

    class TreeHead(Row):
        tree_id = peewee.BigIntegerField(primary_key=True)
        mode = peewee.TextField(null=True)
        wall = peewee.BigIntegerField()
        counter = peewee.BigIntegerField()
        next_seq = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_tree_head"

    class Cell(Row):
        tree_id = peewee.BigIntegerField()
        key = text()
        value = peewee.BlobField(null=True)
        wall = peewee.BigIntegerField()
        counter = peewee.BigIntegerField()
        origin = text()
        dead_at = peewee.BigIntegerField(null=True)

        class Meta:
            table_name = "lattice_cell"
            primary_key = peewee.CompositeKey("tree_id", "key")

    Cell.add_index(Cell.dead_at, where=Cell.dead_at.is_null(False), name="lattice_cell_dead_at")

    class Journal(Row):
        tree_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()
        op = peewee.TextField()
        key = text(null=True)
        end_key = text(null=True)
        value = peewee.BlobField(null=True)
        wall = peewee.BigIntegerField()
        counter = peewee.BigIntegerField()
        origin = text()
        expires_at = peewee.BigIntegerField(null=True)
        transaction_id = text(null=True)
        batch_size = peewee.BigIntegerField(null=True)
        batch_index = peewee.BigIntegerField(null=True)

        class Meta:
            table_name = "lattice_journal"
            primary_key = peewee.CompositeKey("tree_id", "seq")

    class TreeBatch(Row):
        tree_id = peewee.BigIntegerField()
        transaction_id = text()
        fingerprint = peewee.TextField()
        outcome = peewee.TextField()
        decided_at = peewee.BigIntegerField(index=True)

        class Meta:
            table_name = "lattice_tree_batch"
            primary_key = peewee.CompositeKey("tree_id", "transaction_id")

    class Cursor(Row):
        id = text(primary_key=True)
        tree = text()
        kind = peewee.TextField()
        is_reverse = peewee.SmallIntegerField()
        start_key = text()
        end_key = text()
        page_size = peewee.BigIntegerField()
        is_done = peewee.SmallIntegerField()
        total = peewee.BigIntegerField()
        idle_us = peewee.BigIntegerField()
        expires_at = peewee.BigIntegerField(index=True)

        class Meta:
            table_name = "lattice_cursor"

    class FifoHead(Row):
        tree_id = peewee.BigIntegerField(primary_key=True)
        floor = peewee.BigIntegerField()
        next_id = peewee.BigIntegerField()
        count = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_fifo_head"

    class FifoPin(Row):
        tree_id = peewee.BigIntegerField()
        entry_id = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_fifo_pin"
            primary_key = peewee.CompositeKey("tree_id", "entry_id")

    class Letter(Row):
        queue_id = peewee.BigIntegerField()
        entry_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()
        fingerprint = text()
        actor = text()
        reason = peewee.TextField()
        error_class = text()
        key = text(null=True)
        parked_at = peewee.BigIntegerField()
        replays = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_letter"
            primary_key = peewee.CompositeKey("queue_id", "entry_id")

    Letter.add_index(Letter.queue_id, Letter.fingerprint, Letter.entry_id, name="lattice_letter_group")

    class Group(Row):
        queue_id = peewee.BigIntegerField()
        fingerprint = text()
        actor = text()
        error_class = text()
        message = peewee.TextField()
        first_seen = peewee.BigIntegerField()
        last_seen = peewee.BigIntegerField()
        hits = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_group"
            primary_key = peewee.CompositeKey("queue_id", "fingerprint")

    class GroupHour(Row):
        queue_id = peewee.BigIntegerField()
        fingerprint = text()
        hour = peewee.BigIntegerField()
        hits = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_group_hour"
            primary_key = peewee.CompositeKey("queue_id", "fingerprint", "hour")

    class Triage(Row):
        namespace_id = peewee.BigIntegerField()
        fingerprint = text()
        state = peewee.TextField()
        until = peewee.BigIntegerField(null=True)
        owner = peewee.TextField(null=True)
        note = peewee.TextField(null=True)
        ticket = peewee.TextField(null=True)
        changed_at = peewee.BigIntegerField()
        changed_by = peewee.TextField()

        class Meta:
            table_name = "lattice_triage"
            primary_key = peewee.CompositeKey("namespace_id", "fingerprint")

    class Failure(Row):
        scope = text()
        digest = peewee.BlobField()
        attempts = peewee.BigIntegerField()
        failed_at = peewee.BigIntegerField(index=True)

        class Meta:
            table_name = "lattice_failure"
            primary_key = peewee.CompositeKey("scope", "digest")

    ours = {name: cls for name, cls in locals().items() if _is_table(cls)}
    return SimpleNamespace(**ours, **plan_models(Row, identity, text))


def _is_table(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, peewee.Model) and candidate.__name__ != "Row"
