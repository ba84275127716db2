"""Pools of isolated processes, with jobs about templates."""

from __future__ import annotations

import asyncio
import gc
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.isolated.isolation import IsolatedProcesses
from stoker.text.template import Rendering, Template
from stoker.text.template_jobs import TEMPLATE_JOBS

HELLO = [{"role": "user", "content": "Hello"}]


def test_a_process_that_has_ended_is_started_again():
    processes = IsolatedProcesses(TEMPLATE_JOBS)
    chat = Template.compile(processes, "{{ messages[0].content }}")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        running = processes._processes[0]._process
        assert running is not None
        running.send_signal(number)
        running.wait()
        assert chat.render(Rendering(HELLO, {})) == "Hello"
    processes.close()
    assert processes._processes[0]._process is None


def test_a_process_that_does_not_start_is_no_fault_of_the_template():
    with pytest.raises(OSError, match=r"did not start: its process ended \(exit code 1\)"):
        Template.compile(IsolatedProcesses(replace(TEMPLATE_JOBS, name="stoker.missing")), "x")


def test_the_process_gets_no_secrets_and_ends_with_its_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_KEY", "secret")
    processes = IsolatedProcesses(TEMPLATE_JOBS)
    Template.compile(processes, "x")
    process = processes._processes[0]
    running = process._process
    assert running is not None
    environment = Path(f"/proc/{running.pid}/environ")
    if environment.exists():
        assert b"secret" not in environment.read_bytes()
    process.socket.close()  # as when the server ends
    assert running.wait(60) == 0
    processes.close()


@pytest.mark.slow
def test_a_job_whose_caller_has_left_ends_and_its_process_is_used_again():
    """Cancelling must not end the process: clients that connect and leave could keep it from ever being ready."""
    processes = IsolatedProcesses(TEMPLATE_JOBS, 1)
    chat = Template.compile(processes, "{{ messages[0].content }}")
    running = processes._processes[0]._process

    async def run() -> None:
        abandoned = asyncio.ensure_future(chat.render_async(Rendering(HELLO, {})))
        waiting = asyncio.ensure_future(chat.render_async(Rendering(HELLO, {})))
        await asyncio.sleep(0)  # the first has sent its job, the second waits for the process
        abandoned.cancel()
        waiting.cancel()
        await asyncio.gather(abandoned, waiting, return_exceptions=True)
        assert await chat.render_async(Rendering(HELLO, {})) == "Hello"

    asyncio.run(run())
    assert processes._processes[0]._process is running
    assert len(processes._idle) == 1
    processes.close()


@pytest.mark.slow
def test_a_loop_that_ends_leaves_no_process_lent():
    processes = IsolatedProcesses(TEMPLATE_JOBS, 1)
    chat = Template.compile(processes, "{{ messages[0].content }}")

    async def leave() -> None:
        abandoned = asyncio.ensure_future(chat.render_async(Rendering(HELLO, {})))
        await asyncio.sleep(0)
        assert not abandoned.done()

    asyncio.run(leave())
    gc.collect()
    assert chat.render(Rendering(HELLO, {})) == "Hello"
    processes.close()
