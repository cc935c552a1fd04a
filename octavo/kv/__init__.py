"""The KV pool: blocks, tables, fences."""

from octavo.kv.cache import Appended, BlockTable, KvCache
from octavo.kv.pool import BlockPool

__all__ = ["Appended", "BlockPool", "BlockTable", "KvCache"]
