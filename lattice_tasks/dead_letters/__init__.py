"""The shelf of letters that failed for good: parked, looked at, replayed, discarded."""
