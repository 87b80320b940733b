"""The app for code without an event loop: `from ostinato.sync import Client`."""

from .client import Client
from .views import Handle

__all__ = ["Client", "Handle"]
