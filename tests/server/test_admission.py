"""Which connections are counted together, and when one more is refused."""

from __future__ import annotations

import pytest

from stoker.server.http.admission import Admission, client_of


@pytest.mark.parametrize(
    ("address", "client"),
    [
        (("192.0.2.1", 5555), "192.0.2.1"),
        (("2001:db8:0:7:1::1", 5555, 0, 0), "2001:db8:0:7::/64"),
        (("fe80::1%eth0", 5555, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_a_client_is_an_address_or_a_network_of_ipv6(address: object, client: str):
    assert client_of(address) == client


def test_a_client_at_its_limit_does_not_take_the_connections_of_others():
    admission = Admission(3, 2)
    assert [admission.enter("a"), admission.enter("a")] == [None, None]
    reached = admission.enter("a")
    assert reached is not None
    assert (reached.option, reached.num_open) == ("server.max_connections_per_client", 2)
    assert admission.enter("b") is None


def test_one_more_than_all_connections_is_refused_until_one_ends():
    admission = Admission(2)
    admission.enter("a")
    admission.enter("b")
    reached = admission.enter("c")
    assert reached is not None
    assert (reached.option, reached.num_open) == ("server.max_connections", 2)
    admission.leave("a")
    assert admission.enter("c") is None


def test_clients_of_a_unix_socket_share_only_the_total():
    admission = Admission(10, 1)
    assert [admission.enter("") for _ in range(10)] == [None] * 10
    assert admission.enter("") is not None
