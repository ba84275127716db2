"""What the supervisor of several servers answers, from the starts, probes and ends of these."""

from __future__ import annotations

from stoker.server.replica_health import ProbeAnswer, ReplicaHealth, readiness, state_of_all
from stoker.server.supervisor_probe import SupervisorMetrics

READY = ProbeAnswer(is_alive=True, is_ready=True, state="ready", reason="")
RESTARTING = ProbeAnswer(is_alive=True, is_ready=False, state="restarting", reason="ended by SIGKILL")
STALLED = ProbeAnswer(is_alive=False, is_ready=False, state="stalled", reason="no progress for 10 s")


def served(*ranks: int) -> dict[int, ReplicaHealth]:
    replicas = {rank: ReplicaHealth(3, 2.0) for rank in ranks}
    for each in replicas.values():
        each.listens()
    return replicas


def codes(replicas: dict[int, ReplicaHealth]) -> tuple[str, str]:
    """Of /readyz and of /health."""
    errors = [readiness(replicas, is_draining=False, is_one_enough=one) for one in (False, True)]
    ready, health = ("ok" if error is None else error.code for error in errors)
    return ready, health


def test_servers_are_ready_together_when_all_have_started() -> None:
    replicas = {4: ReplicaHealth(3, 2.0), 5: ReplicaHealth(3, 2.0)}
    replicas[5].listens()
    assert codes(replicas) == ("engine_starting", "engine_starting")
    error = readiness(replicas, is_draining=False)
    assert state_of_all(replicas, error) == {
        "error": {
            "message": "the servers of these replicas are starting: 4",
            "type": "server_error",
            "param": None,
            "code": "engine_starting",
        },
        "status": "engine_starting",
        "reason": "the servers of these replicas are starting: 4",
        "replicas": {"4": "starting", "5": "ready"},
        "reasons": {"4": "the server is starting"},
    }
    replicas[4].listens()
    assert codes(replicas) == ("ok", "ok")
    assert state_of_all(replicas) == {"status": "ok", "replicas": {"4": "ready", "5": "ready"}}


def test_one_server_that_is_lost_ends_readiness_and_the_last_one_health() -> None:
    replicas = served(0, 1)
    replicas[1].restarts("the server was ended by SIGKILL")
    assert codes(replicas) == ("replica_not_ready", "ok")
    assert state_of_all(replicas)["reasons"] == {"1": "the server was ended by SIGKILL"}
    replicas[0].probed(RESTARTING)
    assert codes(replicas) == ("replica_not_ready", "replica_not_ready")
    replicas[1].listens()
    assert codes(replicas) == ("replica_not_ready", "ok")


def test_nothing_is_ready_during_a_drain() -> None:
    for one in (False, True):
        error = readiness(served(0), is_draining=True, is_one_enough=one)
        assert error is not None
        assert error.code == "server_shutting_down"


def test_a_server_is_replaced_after_failed_probes_in_succession() -> None:
    (health,) = served(0).values()
    for answer in (None, None, READY, None, STALLED):
        health.probed(answer)
        assert not health.must_be_replaced
    assert (health.state, health.reason) == ("stalled", "no progress for 10 s")
    health.probed(None)
    assert health.must_be_replaced
    assert (health.state, health.reason) == ("unresponsive", "no answer to 3 of 3 probes within 2 s")
    health.restarts(health.reason)
    assert not health.must_be_replaced


def test_a_server_that_restarts_its_engine_is_left_alone() -> None:
    (health,) = served(0).values()
    for _ in range(5):
        health.probed(RESTARTING)
    assert (health.must_be_replaced, health.is_ready, health.reason) == (False, False, "ended by SIGKILL")
    health.probed(READY)
    assert health.is_ready


def test_metrics_have_the_rank_of_the_replica() -> None:
    replicas = served(2, 3)
    replicas[3].restarts("the server was ended by SIGKILL")
    samples = [sample for family in SupervisorMetrics(replicas).collect() for sample in family.samples]
    assert [(sample.name, sample.labels["engine"], sample.value) for sample in samples] == [
        ("stoker_server_ready", "2", 1),
        ("stoker_server_ready", "3", 0),
        ("stoker_server_restarts_total", "2", 0),
        ("stoker_server_restarts_total", "3", 1),
    ]
