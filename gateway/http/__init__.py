"""The OpenAI-style HTTP API: bodies in, the same requests as over gRPC, bodies or server-sent events out."""
