"""What a task queue is: its record, its names and its depth."""
