"""Requests, queues and plans."""

from octavo.sched.request import Preemption, Request, State, Update
from octavo.sched.scheduler import Scheduler, SchedulerConfig

__all__ = ["Preemption", "Request", "Scheduler", "SchedulerConfig", "State", "Update"]
