"""The isolated processes of all tests of texts: starting one takes long."""

from __future__ import annotations

from stoker.isolated.isolation import IsolatedProcesses
from stoker.text.template_jobs import TEMPLATE_JOBS

PROCESSES = IsolatedProcesses(TEMPLATE_JOBS)
