"""The life of one task: its states, its submit, its retries, its claim and its settlement."""
