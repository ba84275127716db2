"""Ray that cannot be used, and actors that have failed."""

from __future__ import annotations

import pytest
from tests.free_ports import free_port

from stoker.engine.cluster.ray_places import CannotUseRay, RayPlaces, loss


def test_an_address_at_which_nothing_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(CannotUseRay, match=rf"cannot be reached at {address} \(RAY_ADDRESS\): Connection refused"):
        RayPlaces("parallel.data_parallel_backend: ray", lambda what: None)


def test_an_actor_that_has_failed_says_why():
    """Not where Ray has called it, which the first line of Ray's message says."""
    exceptions = pytest.importorskip("ray").exceptions
    text = "ray::ReplicaActor.run() (pid=1, ip=192.0.2.2)\n  File ...\nValueError: 1 error\n  field missing"
    own = exceptions.RayTaskError("run", text, ValueError("1 error\n  field missing"))
    assert loss(own.as_instanceof_cause()) == "has failed: ValueError: 1 error field missing"

    text = "ray::ReplicaActor.__init__() (pid=1)\nRuntimeError: ...\nModuleNotFoundError: No module named 'stoker'\n"
    created = exceptions.ActorDiedError(exceptions.RayTaskError("__init__", text, RuntimeError("...")))
    assert loss(created) == "has failed: ModuleNotFoundError: No module named 'stoker'"

    assert loss(exceptions.ActorDiedError()).startswith("was lost by Ray: The actor died")
