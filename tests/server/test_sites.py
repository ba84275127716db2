"""Browsers as attackers: pages of other sites, and names that other sites gave to this machine's address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from .deployment import Served
from .test_gate import ON_DEMAND

ORIGIN = "https://chat.example"
EVIL = {"origin": "http://evil.example"}
CROSS = {"sec-fetch-site": "cross-site"}


def test_a_page_of_another_site_changes_nothing_on_any_route(folder: Path):
    """A page could put a local server without keys to sleep: routes without a body checked neither type nor origin."""
    served = Served(folder, **ON_DEMAND)
    for route in served.app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or {"POST", "DELETE"}) - {"GET", "HEAD"}:
            for headers in (EVIL, CROSS, {**EVIL, **CROSS}, {**EVIL, "sec-fetch-site": "same-site"}):
                path = route.path.replace("{", "").replace("}", "").replace(":path", "")
                answer = served.request(method, path, headers={**headers, "content-type": "text/plain"})
                found = answer.status_code, answer.json()["error"]["code"]
                assert found == (403, "cross_origin_refused"), (method, path, headers)
    assert served.engine.requests == []


OWN = {"origin": "http://localhost"}


@pytest.mark.parametrize(
    ("origins", "headers", "status"),
    [
        ([], {}, 200),  # not a browser
        ([], OWN, 200),
        ([], {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, 200),
        ([], {"host": "localhost:80", "origin": "http://localhost"}, 200),
        ([], {"sec-fetch-site": "same-origin", "origin": "https://through-a-proxy.example"}, 200),
        ([], {"sec-fetch-site": "none"}, 200),
        ([], {"origin": "null"}, 403),
        ([], {"origin": "http://localhost:3000"}, 403),  # another program of this machine
        ([], {**OWN, **CROSS}, 403),
        ([ORIGIN], {"origin": ORIGIN, **CROSS}, 200),
        ([ORIGIN], {"origin": ORIGIN}, 200),
        ([ORIGIN], {"origin": f"{ORIGIN}.evil.example"}, 403),
        ([ORIGIN], CROSS, 403),
        (["*"], {**EVIL, **CROSS}, 200),
        (["null"], {"origin": "null", **CROSS}, 200),
    ],
)
@pytest.mark.parametrize("keys", [{}, {"api_key": ["secret"], "host": "0.0.0.0"}])
@pytest.mark.quick_cases(14)
def test_requests_of_browsers_pass_from_the_page_itself_and_from_allowed_origins(
    folder: Path, origins: list[str], headers: dict[str, str], status: int, keys: dict[str, Any]
):
    served = Served(folder, allowed_origins=origins, **keys)
    sent = {**headers, "content-type": "application/json", "authorization": "Bearer secret"}
    assert served.post("/tokenize", b'{"prompt": "a"}', headers=sent).status_code == status
    assert served.get("/v1/models", headers=sent).status_code == 200  # its answer cannot be read by the page


@pytest.mark.effect("server.allowed_hosts")
@pytest.mark.parametrize(
    ("options", "accepted", "refused"),
    [
        (
            {},
            ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"],
            ["evil.example", "localhost.evil.example", "localhost@evil.example", "evil.example:8000", "10.0.0.1",
             "localhost:8000/x", "[::1", "", "test/health?x="],
        ),
        ({"host": "my.localhost"}, ["my.localhost", "localhost"], ["evil.example"]),
        ({"host": "::1"}, ["[::1]", "localhost"], ["evil.example"]),
        ({"allowed_hosts": ["llm.example"]}, ["llm.example", "LLM.example:443", "localhost"], ["evil.example"]),
        ({"allowed_hosts": ["*"]}, ["evil.example"], []),
        ({"api_key": ["secret"]}, ["evil.example"], []),
        ({"host": "0.0.0.0"}, ["evil.example"], []),
        ({"uds": "/run/stoker.sock"}, ["evil.example"], []),
        (
            {"host": "0.0.0.0", "api_key": ["secret"], "allowed_hosts": ["llm.example"]},
            ["llm.example", "localhost", "10.0.0.1", "[fe80::1]:8000"],
            ["evil.example"],
        ),
    ],
)  # fmt: skip
def test_a_name_that_another_site_gave_to_this_address_is_refused(
    folder: Path, options: dict[str, Any], accepted: list[str], refused: list[str]
):
    """A page of evil.example that had this machine's address for its name was served as if it were the server's own."""
    served = Served(folder, **options)
    for names, is_refused in ((accepted, False), (refused, True)):
        for name in names:
            answer = served.get("/version", headers={"host": name, "authorization": "Bearer secret"})
            code = answer.json().get("error", {}).get("code")
            assert (code == "host_not_allowed") is is_refused, name
