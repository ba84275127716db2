"""POST /sleep and /wake_up, GET /is_sleeping."""

from __future__ import annotations

from pathlib import Path

import pytest

from .deployment import Served


def test_the_routes_exist_with_the_option_alone(folder: Path) -> None:
    for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")):
        answer = Served(folder).request(method, path)
        assert answer.status_code == 404
        assert "`model.enable_sleep_mode: true` adds it" in answer.json()["error"]["message"]


@pytest.mark.effect("model.enable_sleep_mode")
def test_an_engine_sleeps_and_wakes_up(folder: Path) -> None:
    served = Served(folder, model={"enable_sleep_mode": True})
    assert served.get("/is_sleeping").json() == {"is_sleeping": False, "level": 0}
    assert served.post("/sleep", {}).json() == {"status": "ok", "level": 1}
    assert served.get("/is_sleeping").json() == {"is_sleeping": True, "level": 1}
    assert served.get("/livez").status_code == 200  # the process is well
    assert served.get("/readyz").json()["status"] == "engine_sleeping"
    assert served.get("/v1/models").status_code == 200
    refused = served.post("/v1/completions", {"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_sleeping")
    assert 'state="sleeping"} 1.0' in served.get("/metrics").text
    assert served.post("/sleep?level=2&mode=wait", {}).json() == {"status": "ok", "level": 2}
    assert served.post("/wake_up", {}).json() == {"status": "ok", "is_sleeping": False}
    assert served.post("/v1/completions", {"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(("first", "second"), [("weights", "kv_cache"), ("kv_cache", "weights")])
def test_an_engine_is_woken_in_parts(folder: Path, first: str, second: str) -> None:
    """Trainers wake the weights, and the cache when they have done their part. Either tag woke everything."""
    served = Served(folder, model={"enable_sleep_mode": True})
    for _ in range(2):  # what was asked for counts until the engine is awake
        served.post("/sleep", {})
        found = {"status": "ok", "is_sleeping": True, "missing": [second]}
        assert served.post(f"/wake_up?tags={first}", {}).json() == found
        assert served.get("/is_sleeping").json()["is_sleeping"]
        assert served.post("/v1/completions", {"prompt": "a"}).json()["error"]["code"] == "engine_sleeping"
        assert served.post(f"/wake_up?tags={second}", {}).json() == {"status": "ok", "is_sleeping": False}
        assert served.post("/v1/completions", {"prompt": "a"}).status_code == 200
    served.post("/sleep", {})
    served.post(f"/wake_up?tags={first}", {})
    served.post("/sleep?level=2", {})  # all of it sleeps again
    assert served.post(f"/wake_up?tags={second}", {}).json()["missing"] == [first]
    assert not served.post("/wake_up?tags=weights&tags=kv_cache", {}).json()["is_sleeping"]
    assert served.post("/wake_up?tags=weights", {}).json() == {"status": "ok", "is_sleeping": False}  # it is awake


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/sleep?level=3", "level"),
        ("/sleep?mode=keep", "mode"),
        ("/wake_up?tags=graphs", "tags"),
        ("/wake_up?tags=weights&tags=x", "tags"),
        ("/wake_up?tags=", "tags"),
    ],
)
def test_what_a_query_may_say(folder: Path, path: str, param: str) -> None:
    answer = Served(folder, model={"enable_sleep_mode": True}).post(path, {})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_engine_that_is_down_does_not_sleep(folder: Path) -> None:
    served = Served(folder, model={"enable_sleep_mode": True})
    served.engine.die()
    assert served.post("/sleep", {}).json()["error"]["code"] == "engine_not_ready"
