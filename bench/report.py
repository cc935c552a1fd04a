"""What was measured, as Markdown, SVG and JSON. Pure: from a `Report` to text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from statistics import median
from typing import Any

from figures import TIMES, Spread, collect, times_better

GROUPS: Mapping[str, Mapping[str, str]] = {
    "One stream": {
        "load_s": "load to first token, s",
        "decode_tok_per_s": "decode, tok/s",
        "prompt_tok_per_s": "prompt, tok/s",
    },
    "32 streams": {"streams_tok_per_s": "generated together, tok/s"},
    "Served traffic": {
        "ttft_ms_p50": "TTFT p50, ms",
        "ttft_ms_p99": "TTFT p99, ms",
        "itl_ms_p50": "ITL p50, ms",
        "itl_ms_p99": "ITL p99, ms",
        "longest_gap_ms_p99": "longest wait in a reply p99, ms",
        "served_tok_per_s": "generated, tok/s",
        "goodput_req_per_s": "goodput, requests/s",
        "good_percent": "within limits, %",
        "failures": "failed requests",
    },
}
PLOTTED = (
    "decode_tok_per_s",
    "prompt_tok_per_s",
    "streams_tok_per_s",
    "load_s",
    "ttft_ms_p99",
    "itl_ms_p99",
)
NO_RATIO = ("failures", "good_percent")


@dataclass(frozen=True)
class Row:
    """One engine. runs: the figures of each round.

    baselines: octavo's rows that it is compared with; of each figure, the first that has it.
    """

    name: str
    version: str
    weights: str
    way: str
    notes: Sequence[str]
    baselines: Sequence[str]
    runs: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """skipped: engine → why it has no figures, or no more of them."""

    date: str
    machine: Mapping[str, Any]
    model: str
    options: Mapping[str, Any]
    rows: Sequence[Row]
    skipped: Mapping[str, str]

    def values(self, name: str) -> dict[str, list[float]]:
        """Figure → values over the rounds, of the engine `name`; empty if it is not there."""
        return next((collect(row.runs) for row in self.rows if row.name == name), {})


def to_json(report: Report) -> str:
    return json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n"


def to_markdown(report: Report) -> str:
    """Tables by group, then who was measured how, then who was not and why."""
    machine, options = report.machine, report.options
    lines = [
        f"# octavo and its peers, {report.date}",
        "",
        f"{machine.get('cpu', 'a CPU')}, {options.get('threads')} threads; model {report.model}; "
        f"{options.get('runs')} rounds in which the engines take turns. Cells are "
        "min–median–max; **n×** is how many times as good the octavo row of the same kind is by "
        "medians: above 1 octavo is faster, below 1 the other engine is.",
    ]
    for group, columns in GROUPS.items():
        lines += _table(report, group, columns)
    lines += ["", "## Engines", ""]
    for row in report.rows:
        said = "; ".join((row.way, *row.notes))
        lines.append(f"- **{row.name}**: {row.version}, {row.weights} weights; {said}.")
    if report.skipped:
        lines += ["", "## Not measured", ""]
        lines += [f"- **{name}**: {why}" for name, why in report.skipped.items()]
    return "\n".join(lines) + "\n"


def _table(report: Report, group: str, columns: Mapping[str, str]) -> list[str]:
    rows = [row for row in report.rows if any(name in run for run in row.runs for name in columns)]
    if not rows:
        return []
    head = ["engine", "weights", "way", *columns.values()]
    lines = ["", f"## {group}", ""]
    if group == "Served traffic":
        lines += [str(report.options.get("traffic", "")), ""]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        values = collect(row.runs)
        cells = [cell(report, row, name, values.get(name)) for name in columns]
        lines.append("| " + " | ".join([row.name, row.weights, row.way, *cells]) + " |")
    return lines


def cell(report: Report, row: Row, figure: str, values: Sequence[float] | None) -> str:
    """min–median–max and how many times as good octavo is; a dash where nothing was measured."""
    if not values:
        return "–"
    text = str(Spread.of(values))
    if row.name.startswith("octavo") or figure in NO_RATIO:
        return text
    found = (report.values(name).get(figure) for name in row.baselines)
    ours = next((values for values in found if values), None)
    if ours is None:
        return text
    return f"{text} **{times_better(figure, ours, values):.2f}×**"


# The plot: a panel per figure, a bar per engine (median), a line from minimum to maximum.
WIDTH, NAME, BAR = 470, 125, 240
ROW, HEAD, GAP, COLUMNS = 20, 34, 18, 2
OCTAVO, OCTAVO_BF16, OTHER = "#0b6e4f", "#5aa68a", "#9aa0a6"


def to_svg(report: Report) -> str:
    titles = {name: title for columns in GROUPS.values() for name, title in columns.items()}
    measured = {row.name: collect(row.runs) for row in report.rows}
    panels = []
    for figure in PLOTTED:
        found = {name: values[figure] for name, values in measured.items() if values.get(figure)}
        if found:
            better = "less" if figure.startswith(TIMES) else "more"
            panels.append((f"{titles[figure]} ({better} is better)", found))
    heights = [HEAD + ROW * len(found) + GAP for _, found in panels]
    # Panels side by side share the height of the taller one.
    bands = [max(heights[i : i + COLUMNS]) for i in range(0, len(panels), COLUMNS)]
    body: list[str] = []
    for index, (title, found) in enumerate(panels):
        x = GAP + WIDTH * (index % COLUMNS)
        y = 44 + sum(bands[: index // COLUMNS])
        body += _panel(x, y, title, found)
    width, height = GAP + WIDTH * min(COLUMNS, max(1, len(panels))), 44 + sum(bands)
    title = f"{report.model}, {report.options.get('threads')} threads, {report.date}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{GAP}" y="24" font-size="15">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def _panel(x: int, y: int, title: str, found: Mapping[str, Sequence[float]]) -> list[str]:
    scale = BAR / (max(max(values) for values in found.values()) or 1.0)
    out = [f'<text x="{x}" y="{y + 18}" font-weight="bold">{escape(title)}</text>']
    for index, (name, values) in enumerate(found.items()):
        top, left = y + HEAD + ROW * index, x + NAME
        color = OTHER
        if name.startswith("octavo"):
            color = OCTAVO_BF16 if name.endswith("bf16") else OCTAVO
        low, middle, high = (f(values) * scale for f in (min, median, max))
        text = escape(str(Spread.of([median(values)])).split("–")[1])
        out += [
            f'<text x="{left - 6}" y="{top + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{top}" width="{middle:.1f}" height="14" fill="{color}"/>',
            f'<path d="M{left + low:.1f} {top + 7}H{left + high:.1f}" stroke="#202124"/>',
            f'<text x="{left + high + 6:.1f}" y="{top + 11}">{text}</text>',
        ]
    return out
