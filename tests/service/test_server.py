import socket

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.server import bind


def test_replies_do_not_wait_for_delayed_acknowledgements() -> None:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        port = listener.getsockname()[1]
        with pytest.raises(H3Error, match="cannot listen"):
            bind("127.0.0.1", port)
