"""What is counted and logged."""

from octavo.obs.counters import EngineCounters, Histogram
from octavo.obs.log import fields, set_up_logging

__all__ = ["EngineCounters", "Histogram", "fields", "set_up_logging"]
