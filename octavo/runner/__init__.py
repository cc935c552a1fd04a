"""Request rows, and step plans turned into backend calls."""

from octavo.runner.device import DeviceThread, Launched
from octavo.runner.rows import Rows, TokenTable
from octavo.runner.runner import Runner

__all__ = ["DeviceThread", "Launched", "Rows", "Runner", "TokenTable"]
