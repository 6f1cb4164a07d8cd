"""Side by side with other Python task queues, in one run, on the same private servers: `python -m benchmarks`."""
