"""What is inside an index, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import ngram_index


def description(index: ngram_index.Index) -> dict[str, Any]:
    """Sizes, fingerprint, manifest and sections as JSON values."""
    sections = [
        {"kind": kind, "length": length, "offset": offset, "bytes": size, "items": items}
        for kind, length, offset, size, items in index.sections
    ]
    return {
        "path": index.path,
        "order": index.order,
        "vocab_size": index.vocab_size,
        "fingerprint": index.fingerprint,
        "tokens": index.windows,
        "nodes": index.nodes,
        "bytes": index.file_bytes,
        "bytes_per_node": round(index.file_bytes / sum(index.nodes), 2),
        "manifest": _manifest(index.manifest),
        "sections": sections,
    }


def _manifest(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # another program's


def text(what: dict[str, Any]) -> str:
    """The description in lines."""
    lines = [
        f"file         {what['path']}",
        f"order        {what['order']}",
        f"vocabulary   {what['vocab_size']:,} ids, fingerprint {what['fingerprint']}",
        f"counted      {what['tokens']:,} tokens",
    ]
    for length, nodes in enumerate(what["nodes"], start=1):
        size = sum(section["bytes"] for section in what["sections"] if section["length"] == length)
        lines.append(f"{length}-grams      {nodes:,} in {size:,} bytes")
    lines.append(f"size         {what['bytes']:,} bytes, {what['bytes_per_node']} a node")
    lines.append(f"manifest     {json.dumps(what['manifest'], sort_keys=True)}")
    return "\n".join(lines)
