"""Section `server`: keys, and which sites and hosts may call."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..section import Section, about
from ..types import Flag, Secrets, Text, Texts

OPEN_ROUTES = ("/metrics", "/version", "/load", "/v1/models")  # that `routes_without_key` can open


class AccessOptions(Section):
    """Who may use the server."""

    auth: Literal["key", "none"] = Field(
        "key",
        description=(
            "Who may call the server. `key`: an address that other machines can reach needs an api_key or an "
            "api_keys_file. `none`: serve without keys, for a private network or with a proxy that checks keys."
        ),
        examples=["none"],
    )

    api_key: Secrets = Field(
        (),
        description=(
            "Keys that clients send as `Authorization: Bearer KEY` or `x-api-key: KEY`; each key gives access to every "
            "route, and only the probes and `routes_without_key` need none. For keys with names and limits see "
            "api_keys_file. Without either the server is open to everyone who can reach it."
        ),
        examples=[[{"env": "API_KEY"}], [{"file": "./keys/team-a"}]],
    )

    api_keys_file: Text | None = Field(
        None,
        description=(
            "YAML file with keys that have a name, scopes, limits per minute and an end date, beside those of api_key. "
            "It is read again when it changes and at `engine reload`, so that keys are replaced without a restart; an "
            "invalid change is logged and the previous keys remain valid. Names appear in the log and the metrics."
        ),
        examples=["./keys.yaml"],
        json_schema_extra=about(kind="path"),
    )

    routes_without_key: Texts = Field(
        (),
        description=(
            "Routes that need no api_key, for scrapers and balancers that send none. They show the load, the model's "
            "name and the version to everyone who can reach the server. The probes never need a key."
        ),
        examples=[["/metrics", "/version"]],
        json_schema_extra=about(notation="commas"),
    )

    allowed_origins: Texts = Field(
        (),
        description=(
            "Web sites whose scripts may call the server from a browser (CORS), such as https://chat.example; `*` is "
            "any site. Empty, browsers block all other sites; programs other than browsers are not affected."
        ),
        examples=[["https://chat.example"]],
    )

    allowed_hosts: Texts = Field(
        (),
        description=(
            "Further names under which the server may be called, such as llm.example; `*` is any name. A server "
            "without keys on a loopback address answers only to localhost, loopback addresses and these, because any "
            "web site can give its own name this machine's address (DNS rebinding). Listed names are checked on every "
            "server."
        ),
        examples=[["llm.example"]],
    )

    allowed_methods: Texts = Field(
        ("*",),
        description=(
            "HTTP methods that scripts of `allowed_origins` may use (CORS); `*` is all. Fewer methods, such as POST "
            "alone, limit what a compromised site can do."
        ),
        examples=[["GET", "POST"]],
    )

    allowed_headers: Texts = Field(
        ("*",),
        description=(
            "Request headers that scripts of `allowed_origins` may set (CORS); `*` is all. Clients need Content-Type "
            "and, with keys, Authorization; official client libraries add others."
        ),
        examples=[["Authorization", "Content-Type"]],
    )

    allow_credentials: Flag = Field(
        False,
        description=(
            "Let browsers send cookies and stored logins with calls of `allowed_origins` (CORS). Needed with a proxy "
            "that signs users in; not needed for an API key in a header."
        ),
    )
