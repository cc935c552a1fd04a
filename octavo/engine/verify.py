"""The scheduler's picture of the rows against the rows themselves, for tests and debugging.

Plans carry only what changes, so a lost or doubled change would show as a wrong token much later;
this finds it in the step in which it happens.
"""

from __future__ import annotations

import numpy as np

from octavo.runner import Rows
from octavo.sched import Scheduler


def verify_rows(scheduler: Scheduler, rows: Rows) -> None:
    """Compare tokens, lengths and block tables. Only while no step is in flight."""
    for request in scheduler.running:
        row, count = request.row, request.num_tokens
        where = f"request {request.request_id}, row {row}"
        assert rows.num_tokens[row] == count, f"{where}: number of tokens"
        assert rows.num_computed[row] == request.num_computed, f"{where}: computed tokens"
        assert rows.max_len[row] == request.max_len, f"{where}: longest"
        assert np.array_equal(rows.tokens[row, :count], request.tokens()), f"{where}: tokens"
        table = request.table
        assert table is not None
        for group, blocks in enumerate(table.blocks):
            first = table.first[group]
            held = rows.block_tables[group, row, first : first + len(blocks)]
            assert held.tolist() == blocks, f"{where}: block table of group {group}"
