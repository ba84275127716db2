from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.plan.devices import find_profile
from stoker.config.plan.distribution import Distribution, Exchange, manifest_of
from stoker.config.plan.model import read_model
from stoker.config.plan.plan import Plan, make_plan
from stoker.config.resolve.resolve import examine

from ..deployments import MACHINE, load
from .shapes import SHAPES, write_config


def planned(folder: Path, name: str, devices: int, *words: str, device: str = "h200", per_node: int = 8) -> Plan:
    model = write_config(folder / "model", SHAPES[name][0])
    words = ("--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init", *words)
    deployment = load(folder, "{}", *words)
    found = read_model(deployment)
    decisions = examine(deployment, found.files, MACHINE).decisions
    return make_plan(found, find_profile(device, MACHINE), decisions, (), (devices, per_node))


def distribution(plan: Plan) -> Distribution:
    assert plan.distribution is not None
    return plan.distribution


def sizes(found: Distribution) -> list[tuple[int, int, int]]:
    return [
        (each.tensor_parallel_size, each.pipeline_parallel_size, each.data_parallel_size) for each in found.placements
    ]


def test_a_70b_model_on_eight(tmp_path: Path) -> None:
    """By hand: 80 layers of 8192, 64 heads and 8 key heads of 128, a block of 28672, a vocabulary of 128256."""
    found = distribution(planned(tmp_path, "llama-3.1-70b", 8))
    assert sizes(found) == [(1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1)]
    assert found.chosen == 1
    assert found.obstacle is None
    assert manifest_of(found.placements[1]) == "tensor_parallel_size: 2, data_parallel_size: 4"
    for placement, parts in zip(found.placements, (1, 2, 4, 8), strict=True):
        matrices = 2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192
        weights = (80 * matrices + 2 * 128256 * 8192) // parts + (80 * 2 + 1) * 8192
        assert placement.weights_bytes == 2 * weights
        sent = 161 * 2 * 8192 * 2 * (parts - 1) // parts
        assert placement.exchange == Exchange(
            num_all_reduces=161 * (parts > 1), num_sends=0, bytes_per_token=sent, sent_per_token=0
        )
    assert found.placements[0].of_decode is None
    assert found.placements[0].reason.startswith("the weights alone need 131.42 GiB of the 125.82 GiB")
    shares = [placement.of_decode for placement in found.placements[1:]]
    assert all(share is not None and 0 < share[0] < share[1] < 1 for share in shares)
    assert shares == sorted(shares)  # the more devices, the less each reads, and the more it waits


def test_the_rest_of_the_plan_is_of_one_of_the_chosen_devices(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-70b", 8, "--max-model-len", "8192")
    chosen = distribution(plan).shown
    assert plan.num_replicas == chosen.data_parallel_size == 4
    assert plan.estimate.weights_bytes == chosen.weights_bytes
    assert plan.estimate.kv.token_bytes == 80 * 2 * 4 * 128 * 2  # four of eight key heads
    assert plan.verdict == "fits"
    assert "no run on several of them was measured" in " ".join(plan.notes)
    assert plan.changes == ()


def test_a_model_too_large_for_a_node_becomes_stages(tmp_path: Path) -> None:
    """A stage has 32 or 29 of the 61 layers; latents are on all devices of a stage."""
    found = distribution(planned(tmp_path, "deepseek-v3", 16))
    assert sizes(found)[-2:] == [(8, 1, 2), (8, 2, 1)]
    assert found.chosen == len(found.placements) - 1
    assert "so 2 nodes are stages" in found.why
    chosen = found.shown
    assert chosen.exchange.num_sends == 2  # the results of the last stage return to the first
    assert chosen.exchange.sent_per_token == 2 * 7168 * 2  # of a prompt, of which the last token returns
    assert chosen.weights_bytes < found.placements[-2].weights_bytes < 2 * chosen.weights_bytes
    assert distribution(planned(tmp_path, "deepseek-v3", 8)).chosen is None


def test_the_second_stage_keeps_its_own_layers_only(tmp_path: Path) -> None:
    plan = planned(tmp_path, "deepseek-v3", 16)
    assert plan.ask.num_devices == 16
    assert plan.estimate.kv.token_bytes == 32 * 576 * 2


def test_a_model_that_cannot_be_divided_says_why(tmp_path: Path) -> None:
    found = distribution(planned(tmp_path, "minimax-m2", 8))
    assert {tensor for tensor, _, _ in sizes(found)} == {1}
    assert found.obstacle == "the norm of its queries is over all heads together"


def test_replicas_that_are_asked_for_limit_the_devices_of_each(tmp_path: Path) -> None:
    found = distribution(planned(tmp_path, "llama-3.1-8b", 8, "-dp", "4"))
    assert sizes(found) == [(1, 1, 8), (2, 1, 4)]
    assert found.chosen == 0
    assert found.why == "1 device holds the model with all of its context, and nothing is exchanged"


def test_small_nodes_are_not_left_by_tensor_parallel(tmp_path: Path) -> None:
    found = distribution(planned(tmp_path, "llama-3.1-70b", 4, device="h100-80gb", per_node=2))
    assert sizes(found) == [(1, 1, 4), (2, 1, 2), (2, 2, 1)]
    assert found.shown.pipeline_parallel_size == 2


@pytest.mark.parametrize("crosses", [False, True])
def test_bytes_and_messages_take_time(crosses: bool) -> None:
    device = find_profile("h200", MACHINE)
    one = Exchange(num_all_reduces=100, num_sends=1, bytes_per_token=10**6, sent_per_token=10**4)
    low, high = one.seconds(1000, device, crosses_nodes=crosses)
    between = 50e9 if crosses else 450e9
    assert low == pytest.approx(100 * 5e-6 + 5e-6 + 1e9 / (450e9 * 0.9) + 1e7 / (between * 0.9))
    assert high == pytest.approx(100 * 20e-6 + 40e-6 + 1e9 / (450e9 * 0.6) + 1e7 / (between * 0.6))
