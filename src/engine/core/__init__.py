"""The scheduler and its parts: pure Python and numpy; no torch, no clock, no threads."""

from .interface import SchedulerInterface
from .scheduler import Scheduler
from .settings import SchedulerSettings
from .step_outputs import StepOutputs
from .step_plan import Admission, StepPlan, StepResult

__all__ = ["Admission", "Scheduler", "SchedulerInterface", "SchedulerSettings", "StepOutputs", "StepPlan", "StepResult"]
