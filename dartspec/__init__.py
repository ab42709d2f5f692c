"""Lossless speculative decoding as a set of small gRPC services."""

__version__ = "0.1.0"
