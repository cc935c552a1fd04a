"""The plan of memory and the ledger."""

from octavo.memory.ledger import Entry, Ledger, plan_memory, process_memory

__all__ = ["Entry", "Ledger", "plan_memory", "process_memory"]
