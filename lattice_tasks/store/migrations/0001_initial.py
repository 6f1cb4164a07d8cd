"""The first schema. `tables.py` holds the same as models; a test compares them on both engines.

Hot tables (`ready`, `scheduled`, `lease`) hold only what waits, sleeps or runs, without foreign keys: rows go through them
at thousands a second, and the store's own moves are their only writers. `invocation` is wide and cold.
"""

from typing import Any

C = ' collate "C"'

TABLES = """
create table lattice_namespace (
    id {serial}, name text{c} not null, wake_id text not null, created_at bigint not null);
create table lattice_queue (
    id {serial}, namespace_id bigint not null references lattice_namespace (id), name text{c} not null,
    kind text not null, state text not null, retention_ms bigint, dlq_capacity bigint, dlq_on_full text not null,
    created_at bigint not null, updated_at bigint not null, dlq_retention_ms bigint);
create table lattice_invocation (
    seq {serial}, id {uuid} not null, queue_id bigint not null, actor text{c} not null, body {bytes} not null,
    priority integer not null, key text{c}, submitted_at bigint not null, deadline_at bigint,
    state smallint not null, finished_at bigint, attempt integer not null, reason text, error text,
    traceback text, result {bytes}, entry_id bigint, unknown_since bigint, redirected_from text,
    replay_of {uuid}, replaced_by {uuid});
create unique index lattice_namespace_name on lattice_namespace (name);
create unique index lattice_queue_namespace_id_name on lattice_queue (namespace_id, name);
create unique index lattice_invocation_id on lattice_invocation (id);
create unique index lattice_invocation_key on lattice_invocation (queue_id, key) where key is not null;
create table lattice_ready (
    queue_id bigint not null, seq bigint not null, priority integer not null, attempt integer not null,
    flags smallint not null, primary key (queue_id, seq)){rowless};
create table lattice_scheduled (
    queue_id bigint not null, due_at bigint not null, seq bigint not null, priority integer not null,
    attempt integer not null, flags smallint not null, primary key (queue_id, due_at, seq)){rowless};
create unique index lattice_scheduled_seq on lattice_scheduled (seq);
create table lattice_lease (
    worker_id bigint not null, seq bigint not null, batch bigint not null, queue_id bigint not null,
    priority integer not null, attempt integer not null, flags smallint not null, claimed_at bigint not null,
    primary key (worker_id, seq)){rowless};
create table lattice_held (
    queue_id bigint not null, seq bigint not null, primary key (queue_id, seq)){rowless};
create table lattice_worker (
    id {incarnation}, namespace_id bigint not null, host text not null, pid integer not null, threads integer not null,
    queues text not null, actors text not null, version text not null, state text not null, beat bigint not null,
    started_at bigint not null, seen_at bigint not null);
create table lattice_audit (
    namespace_id bigint not null, n bigint not null, at bigint not null, who text not null, verb text not null,
    target text not null, reason text, before text not null, after text not null, begun bigint, previous text not null,
    hash text not null, primary key (namespace_id, n)){rowless};
create table lattice_audit_head (
    namespace_id bigint primary key, n bigint not null, hash text not null);
create table lattice_counter (
    key text{c} primary key, value bigint not null, expires_at bigint not null);
create table lattice_tree (
    id {serial}, name text{c} not null, kind text not null, created_at bigint not null);
create unique index lattice_tree_name on lattice_tree (name);
create table lattice_tree_row (
    tree_id bigint not null, key text{c} not null, value {bytes} not null, primary key (tree_id, key)){rowless};
create table lattice_tree_head (
    tree_id bigint primary key, mode text, wall bigint not null, counter bigint not null, next_seq bigint not null);
create table lattice_cell (
    tree_id bigint not null, key text{c} not null, value {bytes}, wall bigint not null, counter bigint not null,
    origin text{c} not null, dead_at bigint, primary key (tree_id, key)){rowless};
create index lattice_cell_dead_at on lattice_cell (dead_at) where dead_at is not null;
create table lattice_journal (
    tree_id bigint not null, seq bigint not null, op text not null, key text{c}, end_key text{c}, value {bytes},
    wall bigint not null, counter bigint not null, origin text{c} not null, expires_at bigint, transaction_id text{c},
    batch_size bigint, batch_index bigint, primary key (tree_id, seq)){rowless};
create table lattice_tree_batch (
    tree_id bigint not null, transaction_id text{c} not null, fingerprint text not null, outcome text not null,
    decided_at bigint not null, primary key (tree_id, transaction_id)){rowless};
create index lattice_tree_batch_decided_at on lattice_tree_batch (decided_at);
create table lattice_cursor (
    id text{c} primary key, tree text{c} not null, kind text not null, is_reverse smallint not null,
    start_key text{c} not null, end_key text{c} not null, page_size bigint not null, is_done smallint not null,
    total bigint not null, idle_us bigint not null, expires_at bigint not null);
create index lattice_cursor_expires_at on lattice_cursor (expires_at);
create table lattice_fifo_head (
    tree_id bigint primary key, floor bigint not null, next_id bigint not null, count bigint not null);
create table lattice_fifo_pin (
    tree_id bigint not null, entry_id bigint not null, primary key (tree_id, entry_id)){rowless};
create table lattice_letter (
    queue_id bigint not null, entry_id bigint not null, seq bigint not null, fingerprint text{c} not null,
    actor text{c} not null, reason text not null, error_class text{c} not null, key text{c}, parked_at bigint not null,
    replays bigint not null, primary key (queue_id, entry_id)){rowless};
create index lattice_letter_group on lattice_letter (queue_id, fingerprint, entry_id);
create table lattice_group (
    queue_id bigint not null, fingerprint text{c} not null, actor text{c} not null, error_class text{c} not null,
    message text not null, first_seen bigint not null, last_seen bigint not null, hits bigint not null,
    primary key (queue_id, fingerprint)){rowless};
create table lattice_group_hour (
    queue_id bigint not null, fingerprint text{c} not null, hour bigint not null, hits bigint not null,
    primary key (queue_id, fingerprint, hour)){rowless};
create table lattice_triage (
    namespace_id bigint not null, fingerprint text{c} not null, state text not null, until bigint, owner text, note text,
    ticket text, changed_at bigint not null, changed_by text not null, primary key (namespace_id, fingerprint)){rowless};
create table lattice_plan (
    id {serial}, namespace_id bigint not null, name text{c} not null, verb text not null, definition text not null,
    digest text not null, total bigint not null, created_at bigint not null, state text not null, stage bigint not null,
    why text, owner text not null, beat_at bigint not null, ended_at bigint);
create unique index lattice_plan_namespace_id_name on lattice_plan (namespace_id, name);
create table lattice_plan_item (
    plan_id bigint not null, queue_id bigint not null, entry_id bigint not null, seq bigint not null,
    task_id text not null, parked_at bigint not null, fingerprint text{c} not null, state smallint not null,
    stage bigint not null, to_queue_id bigint, to_entry_id bigint, detail text, ended_at bigint,
    primary key (plan_id, queue_id, entry_id)){rowless};
create index lattice_plan_item_order on lattice_plan_item (plan_id, state, parked_at, queue_id, entry_id);
create table lattice_redirect (
    id {serial}, namespace_id bigint not null, kind text not null, queue text{c} not null, source text{c} not null,
    target text{c} not null, created_at bigint not null);
create unique index lattice_redirect_source on lattice_redirect (namespace_id, kind, queue, source);
create table lattice_failure (
    scope text{c} not null, digest {bytes} not null, attempts bigint not null, failed_at bigint not null,
    primary key (scope, digest)){rowless};
create index lattice_failure_failed_at on lattice_failure (failed_at);
create table lattice_bin (
    id {serial}, queue_id bigint not null, entry_id bigint not null, seq bigint not null, task_id text not null,
    actor text{c} not null, reason text not null, error text not null, why text not null, binned_at bigint not null,
    value {bytes} not null);
create index lattice_bin_binned_at on lattice_bin (binned_at);
create index lattice_bin_queue_id_id on lattice_bin (queue_id, id)
"""

POSTGRES = {
    "serial": "bigserial primary key", "uuid": "uuid", "bytes": "bytea", "c": C, "rowless": "",
    "incarnation": "bigserial primary key",
}  # fmt: skip
SQLITE = {
    "serial": "integer primary key", "uuid": "text", "bytes": "blob", "c": "", "rowless": " without rowid",
    # Without this word SQLite gives the number of a buried worker to the next one, and its fencing tokens with it.
    "incarnation": "integer primary key autoincrement",
}  # fmt: skip

#: Rows live for moments: vacuum these early, so that a claim never walks many dead entries.
HOT = """
alter table {table} set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0)
"""


def up(migrator: Any, db: Any) -> None:
    """Make every table and index; `playhouse.migrations` calls it with its migrator and the database."""
    postgres = type(migrator).__name__.startswith("Postgres")
    for statement in TABLES.format(**(POSTGRES if postgres else SQLITE)).split(";"):
        db.execute_sql(statement)
    if postgres:
        for table in ("lattice_ready", "lattice_scheduled", "lattice_lease"):
            db.execute_sql(HOT.format(table=table))
