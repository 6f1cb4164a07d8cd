"""Durable tasks for Dramatiq: the store is the record, RabbitMQ carries the wake-ups.

The floors of this package; imports only go down:

    __main__
    admin                                       click, one file per noun
    app                                         Lattice, the only maker
    why                                         why a task does not go on
    broker   maintenance   insights             the only room that speaks Dramatiq and AMQP; chores; pictures
    tasks                                       the life of one task
    queues                                      what a task queue is
    dead_letters   trees                        one shelf for everything that failed for good; ordered key spaces
    audit   fifo                                who changed what; one engine under every buffer
    store                                       the only room that speaks SQL
    clock   keys   settings   telemetry
    errors   masking
"""

from lattice_tasks.app import Lattice
from lattice_tasks.broker.middleware import DeadLetters
from lattice_tasks.errors import (
    CallCancelled,
    LatticeError,
    Park,
    QueueFull,
    TaskCancelled,
    TaskDiscarded,
    TaskExpired,
    TaskParked,
)
from lattice_tasks.fifo import Cancellation, FifoLanes, LatticeQueue
from lattice_tasks.tasks.current import current
from lattice_tasks.tasks.job import Job
from lattice_tasks.trees.tree import LatticeTree, TreeEntry

__all__ = [
    "CallCancelled",
    "Cancellation",
    "DeadLetters",
    "FifoLanes",
    "Job",
    "Lattice",
    "LatticeError",
    "LatticeQueue",
    "LatticeTree",
    "Park",
    "QueueFull",
    "TaskCancelled",
    "TaskDiscarded",
    "TaskExpired",
    "TaskParked",
    "TreeEntry",
    "current",
]
