"""One adapter per engine, behind the protocol in `api`."""
