"""The environment of a launcher, and what is said of one that does not fit."""

from __future__ import annotations

import pytest

from stoker.config import load_deployment
from stoker.config.schema.parallel import ParallelConfig
from stoker_launcher.launch import Launch, NotLaunched, launch_of

ENV = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def parallel(*words: str) -> ParallelConfig:
    return load_deployment([], ["--model", "x", *words], env={}).config.parallel


TWO = parallel("-tp", "2")


def test_a_rank_is_where_its_environment_says():
    assert launch_of(TWO, ENV) == Launch(1, 2, "10.0.0.1", 29500)
    assert launch_of(parallel(), ENV | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}).world_size == 1
    on_two = ENV | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert launch_of(parallel("-tp", "2", "-n", "2"), on_two).rank == 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "needs RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment"),
        ({k: v for k, v in ENV.items() if k != "MASTER_PORT"}, "needs MASTER_PORT in the environment"),
        (ENV | {"RANK": "one"}, "RANK is 'one' in the environment; allowed: an integer from 0"),
        (ENV | {"WORLD_SIZE": "4"}, "WORLD_SIZE is 4, and `tensor_parallel_size` 2 times"),
        (ENV | {"RANK": "2"}, "RANK is 2, and WORLD_SIZE 2"),
        (ENV | {"LOCAL_RANK": "0"}, "RANK 1 is LOCAL_RANK 0 of 2 on its machine"),
        (ENV | {"LOCAL_WORLD_SIZE": "1"}, "RANK 1 is LOCAL_RANK 1 of 1 on its machine"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(env: dict[str, str], message: str):
    with pytest.raises(NotLaunched) as refused:
        launch_of(TWO, env)
    assert message in str(refused.value)
    assert refused.value.exit_code == 4
