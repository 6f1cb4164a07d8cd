"""Whole lives of tasks, through real processes and real servers that are killed, stopped and restarted meanwhile.

Every test asserts that its fault really bit; a run in which it did not is not green but invalid.
"""
