"""A client of the HTTP service: create, watch, download and cancel videos over connections that may break."""

from h3serve.client.async_client import AsyncClient
from h3serve.client.client import Client
from h3serve.client.problems import ServerLost, ServerRefused
from h3serve.client.served_video import Video

__all__ = ["AsyncClient", "Client", "ServerLost", "ServerRefused", "Video"]
