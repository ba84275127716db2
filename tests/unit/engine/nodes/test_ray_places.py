"""Ray that cannot be used."""

from __future__ import annotations

import socket

import pytest

from stoker.engine.nodes.ray_places import CannotUseRay, RayPlaces


def test_an_address_at_which_nothing_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(CannotUseRay, match=rf"cannot be reached at {address} \(RAY_ADDRESS\): Connection refused"):
        RayPlaces("parallel.data_parallel_backend: ray", lambda what: None)
