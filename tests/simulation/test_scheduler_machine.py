"""The simulation driven by hypothesis, which looks for the shortest story that breaks a world."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stoker.engine.api import SamplingParams
from stoker.engine.core import SchedulerSettings

from .simulation import Abort, Add, Drain, Execute, Fail, Finish, Plan, Simulation
from .truth import EOS


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 4),
        spare_tokens=st.integers(0, 12),
        chunked=st.booleans(),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
        depth=st.integers(1, 3),
        partial=st.integers(1, 3),
        long_partial=st.integers(1, 3),
        threshold=st.integers(0, 8),
        share=st.sampled_from([1.0, 0.5, 0.01]),
    )
    def start(
        self, num_blocks, block_size, max_num_seqs, spare_tokens, chunked, caching, policy, depth, partial,
        long_partial, threshold, share
    ):  # fmt: skip
        max_model_len = 16
        least = max_num_seqs if chunked else max_model_len
        world = SchedulerSettings(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=least + spare_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=caching,
            max_prefill_share=share,
            max_num_partial_prefills=partial,
            max_long_partial_prefills=long_partial,
            long_prefill_token_threshold=threshold,
            enable_chunked_prefill=chunked,
            scheduling_policy=policy,
            max_queued_requests=4,
            max_queued_tokens=40,
            eos_token_ids=(EOS,),
            records_block_events=True,
        )
        self.simulation = Simulation(world, depth)
        self.num_added = 0

    @rule(
        length=st.integers(1, 15),
        change=st.integers(0, 15),
        salt=st.integers(0, 1),
        priority=st.integers(0, 2),
        max_tokens=st.none() | st.integers(1, 12),
        ignore_eos=st.booleans(),
    )
    def add(self, length, change, salt, priority, max_tokens, ignore_eos):
        """Prompts are one stem, which differ in one position."""
        length = min(length, self.simulation.settings.max_sequence_len - 1)
        prompt = [1 + position + 20 * (position == change) for position in range(length)]
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, seed=salt)
        self.num_added += 1
        self.simulation.apply(Add(f"r{self.num_added}", prompt, sampling, priority))

    @precondition(lambda self: self.simulation.live)
    @rule(choice=st.integers(0, 20))
    def abort(self, choice):
        live = list(self.simulation.live)
        self.simulation.apply(Abort(live[choice % len(live)]))

    @rule(count=st.integers(1, 6), is_early=st.booleans())
    def step(self, count, is_early):
        """is_early: the runner executes each step before the next one is planned."""
        for _ in range(count):
            for _ in range(self.simulation.depth):
                self.simulation.apply(Plan())
                if is_early:
                    self.simulation.apply(Execute())
            self.simulation.apply(Finish())

    @rule(action=st.sampled_from([Plan(), Execute(), Finish()]))
    def move(self, action):
        self.simulation.apply(action)

    @rule(num_whole=st.integers(0, 2), is_begun=st.booleans())
    def fail(self, num_whole, is_begun):
        self.simulation.apply(Plan())
        self.simulation.apply(Fail(num_whole, is_begun))

    def teardown(self):
        if hasattr(self, "simulation"):
            self.simulation.apply(Drain())


def _settings(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = _settings(10)


@pytest.mark.slow
@pytest.mark.timeout(900)  # shortening a failure takes some minutes
class TestSchedulerMachineAtLength(SchedulerMachine.TestCase):
    settings = _settings(150)
