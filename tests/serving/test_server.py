"""Opening a port, and what the user is told when it cannot be had."""

import contextlib
import socket

import pytest

from jaxformer.errors import InputError
from jaxformer.serving.server import listen, url


def test_any_free_port_is_found_and_named():
    with contextlib.closing(listen("localhost", 0)) as opened:
        port = opened.getsockname()[1]
        assert url(opened) in (f"http://127.0.0.1:{port}/", f"http://[::1]:{port}/")
        with socket.create_connection(opened.getsockname()[:2]):
            pass


def test_a_port_in_use_is_an_error_of_the_users():
    with contextlib.closing(listen("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(InputError, match=f"port={port} .*in use.* another port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no.such.host.invalid", 0, "--host=no.such.host.invalid is not known"),
        ("a" * 70, 0, "is not known"),
        ("192.0.2.1", 0, "--host=192.0.2.1"),  # nobody's address
        ("127.0.0.1", 65536, "--port=65536 is no port"),
    ],
)
def test_a_wrong_address_is_an_error_of_the_users(host, port, message):
    with pytest.raises(InputError, match=message) as caught:
        listen(host, port)
    assert "\n" not in str(caught.value)
