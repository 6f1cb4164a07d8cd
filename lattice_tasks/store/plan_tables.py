"""The models of bulk work on dead letters: plans and their items, redirects, the bin. Made by `tables.models`."""

from collections.abc import Callable
from typing import Any

import peewee

__all__ = ["plan_models"]


def plan_models(row: type[peewee.Model], identity: Callable[[], Any], text: Callable[..., Any]) -> dict[str, Any]:
    """The models by name.

    Args:
        row: what they descend from; it knows the database.
        identity, text: make the fields that the engines say differently.
    """

    class Plan(row):  # type: ignore[valid-type,misc]
        id = identity()
        namespace_id = peewee.BigIntegerField()
        name = text()
        verb = peewee.TextField()
        definition = peewee.TextField()
        digest = peewee.TextField()
        total = peewee.BigIntegerField()
        created_at = peewee.BigIntegerField()
        state = peewee.TextField()
        stage = peewee.BigIntegerField()
        why = peewee.TextField(null=True)
        owner = peewee.TextField()
        beat_at = peewee.BigIntegerField()
        ended_at = peewee.BigIntegerField(null=True)

        class Meta:
            table_name = "lattice_plan"
            indexes = ((("namespace_id", "name"), True),)

    class PlanItem(row):  # type: ignore[valid-type,misc]
        plan_id = peewee.BigIntegerField()
        queue_id = peewee.BigIntegerField()
        entry_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()
        task_id = peewee.TextField()
        parked_at = peewee.BigIntegerField()
        fingerprint = text()
        state = peewee.SmallIntegerField()
        stage = peewee.BigIntegerField()
        to_queue_id = peewee.BigIntegerField(null=True)
        to_entry_id = peewee.BigIntegerField(null=True)
        detail = peewee.TextField(null=True)
        ended_at = peewee.BigIntegerField(null=True)

        class Meta:
            table_name = "lattice_plan_item"
            primary_key = peewee.CompositeKey("plan_id", "queue_id", "entry_id")

    PlanItem.add_index(
        PlanItem.plan_id,
        PlanItem.state,
        PlanItem.parked_at,
        PlanItem.queue_id,
        PlanItem.entry_id,
        name="lattice_plan_item_order",
    )

    class Redirect(row):  # type: ignore[valid-type,misc]
        id = identity()
        namespace_id = peewee.BigIntegerField()
        kind = peewee.TextField()
        queue = text()
        source = text()
        target = text()
        created_at = peewee.BigIntegerField()

        class Meta:
            table_name = "lattice_redirect"

    Redirect.add_index(
        Redirect.namespace_id,
        Redirect.kind,
        Redirect.queue,
        Redirect.source,
        unique=True,
        name="lattice_redirect_source",
    )

    class Bin(row):  # type: ignore[valid-type,misc]
        id = identity()
        queue_id = peewee.BigIntegerField()
        entry_id = peewee.BigIntegerField()
        seq = peewee.BigIntegerField()
        task_id = peewee.TextField()
        actor = text()
        reason = peewee.TextField()
        error = peewee.TextField()
        why = peewee.TextField()
        binned_at = peewee.BigIntegerField(index=True)
        value = peewee.BlobField()

        class Meta:
            table_name = "lattice_bin"
            indexes = ((("queue_id", "id"), False),)

    return {"Plan": Plan, "PlanItem": PlanItem, "Redirect": Redirect, "Bin": Bin}
