"""The history of the schema: one numbered file a change, run in order by `playhouse.migrations`, never edited later."""
