"""The documents keep what they say."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.server import fields

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


def test_every_field_is_listed_in_the_servers_page() -> None:
    page = (DOCS / "server.md").read_text()
    tables = (fields.SAMPLING, fields.COMPLETION, fields.CHAT, fields.TOKENIZE, fields.DETOKENIZE)
    named = {name for table in tables for name in table} | set(fields.INERT) | set(fields.REFUSED)
    assert {name for name in named if f"`{name}`" not in page} == set()
    refused = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert refused == list(fields.REFUSED)


def test_no_field_is_in_two_tables() -> None:
    supported = set(fields.COMPLETION) | set(fields.CHAT)
    assert not supported & set(fields.INERT)
    assert not supported & set(fields.REFUSED)
    assert not set(fields.INERT) & set(fields.REFUSED)


def test_every_room_has_a_page_and_links_lead_somewhere() -> None:
    rooms = {path.name for path in (ROOT / "octavo").iterdir() if (path / "__init__.py").exists()}
    for room in rooms - {"bench"}:  # bench shares a page with cli
        assert (DOCS / f"{room}.md").exists(), room
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
