"""Where in the machine's memory an index is, for people and for programs."""

from __future__ import annotations

from typing import Any

import ngram_index

PLACED_BEFORE = (
    "pages of a file are shared by all processes and lie where the process that read them first put them; "
    "a later one with another --numa does not move them"
)


def page_report(index: ngram_index.Index) -> dict[str, Any]:
    """Bytes in memory, and pages by memory node, as JSON values.

    Of a large file some pages are asked about, and the numbers by node are scaled to all that are in memory.
    """
    pages = ngram_index.pages(index)
    resident = -(-pages["resident_bytes"] // pages["page_bytes"])
    found = sum(pages["by_node"].values())
    return {
        "resident_bytes": pages["resident_bytes"],
        "resident_share": round(pages["resident_bytes"] / index.file_bytes, 4),
        "page_bytes": pages["page_bytes"],
        "pages_sampled": pages["sampled"],
        "pages_by_node": {
            str(node): round(resident * count / found) for node, count in sorted(pages["by_node"].items())
        },
        "note": PLACED_BEFORE,
    }


def text(report: dict[str, Any]) -> str:
    """The report in lines."""
    lines = [f"in memory    {report['resident_bytes']:,} bytes, {report['resident_share']:.1%}"]
    lines += [f"node {node:<7} {pages:,} pages" for node, pages in report["pages_by_node"].items()]
    lines.append(f"             {report['note']}")
    return "\n".join(lines)
