"""The records of one step: what is planned, what was computed, what requests get. numpy only."""

from .plan import AdapterLoad, Admission, BlockCopy, BlockLoad, StepPlan, plan_without_rows
from .result import StepOutputs, StepResult

__all__ = [
    "AdapterLoad",
    "Admission",
    "BlockCopy",
    "BlockLoad",
    "StepOutputs",
    "StepPlan",
    "StepResult",
    "plan_without_rows",
]
