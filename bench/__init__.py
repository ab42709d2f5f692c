"""Measurements, each `python -m bench.NAME`, printing one JSON object as the last line."""
