"""The scheduler and its parts: pure Python and numpy; no torch, no clock, no threads."""

from .interface import SchedulerInterface
from .scheduler import Scheduler
from .settings import SchedulerSettings

__all__ = ["Scheduler", "SchedulerInterface", "SchedulerSettings"]
