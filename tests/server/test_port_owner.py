"""The process that listens on a port."""

import os
import socket

from stoker.server.http.port_owner import port_owner


def test_a_process_that_listens_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = port_owner(server.getsockname()[1])
    assert found is not None
    assert found[0] == os.getpid()


def test_without_proc_nothing_is_found(tmp_path):
    assert port_owner(80, tmp_path) is None
