"""The service's own fixtures: a data folder and its store."""

from tests.service.conftest import folder, store

__all__ = ["folder", "store"]
