"""What is inside an index, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import ngram_index

# Lines of the table whose n-grams are looked at for the numbers of continuations.
_SAMPLED_LINES = 1 << 17


def description(index: ngram_index.Index) -> dict[str, Any]:
    """Sizes, fingerprint, manifest and sections as JSON values."""
    sections = [_section(index, *section) for section in index.sections]
    return {
        "path": index.path,
        "order": index.order,
        "vocab_size": index.vocab_size,
        "fingerprint": index.fingerprint,
        "tokens": index.windows,
        "nodes": index.nodes,
        "bytes": index.file_bytes,
        "bytes_per_node": _ratio(index.file_bytes, sum(index.nodes)),
        "manifest": _manifest(index.manifest),
        "sections": sections,
        "children": [_children(index, length) for length in range(1, index.order)],
    }


def _children(index: ngram_index.Index, length: int) -> dict[str, Any]:
    """How many different tokens follow the n-grams of a length; of a large index from a sample of it.

    histogram: the numbers of continuations 0, 1, 2 to 3, 4 to 7, ..., each with the share of n-grams that have so many.
    """
    contexts, by_bits, total = index.children(length, _SAMPLED_LINES)
    return {
        "length": length,
        "contexts": contexts,
        "mean": _ratio(total, contexts),
        "histogram": {_range(bits): round(count / contexts, 4) for bits, count in enumerate(by_bits) if contexts},
    }


def _range(bits: int) -> str:
    """The numbers of so many bits."""
    first, last = (1 << bits) >> 1, (1 << bits) - 1
    return str(first) if first == last else f"{first}-{last}"


def _section(index: ngram_index.Index, kind: str, length: int, offset: int, size: int, items: int) -> dict[str, Any]:
    """bytes_per_node: of the n-grams that the section is about; None for one that is about none in particular."""
    nodes = index.nodes[length - 1] if 1 <= length <= index.order else 0
    return {
        "kind": kind,
        "length": length,
        "offset": offset,
        "bytes": size,
        "items": items,
        "bytes_per_node": _ratio(size, nodes),
    }


def _ratio(size: int, nodes: int) -> float | None:
    return round(size / nodes, 3) if nodes else None


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
        lines.append(f"{length}-grams      {nodes:,} in {size:,} bytes{_each(_ratio(size, nodes))}")
    lines.append(f"size         {what['bytes']:,} bytes{_each(what['bytes_per_node'])}")
    for section in what["sections"]:
        name = section["kind"] + (f" {section['length']}" if section["length"] else "")
        lines.append(
            f"  {name:<16} {section['bytes']:>16,} bytes at {section['offset']:,}{_each(section['bytes_per_node'])}"
        )
    for children in what["children"]:
        shares = ", ".join(f"{numbers}: {share:.1%}" for numbers, share in children["histogram"].items() if share)
        lines.append(f"after {children['length']} tokens: {children['mean']} different ones on average; {shares}")
    lines.append(f"manifest     {json.dumps(what['manifest'], sort_keys=True)}")
    return "\n".join(lines)


def _each(ratio: float | None) -> str:
    return "" if ratio is None else f", {ratio} a node"
