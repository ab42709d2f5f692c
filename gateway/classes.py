"""Classes of requests that are likely to speculate equally well: a small, bounded set of names."""

from __future__ import annotations

MOST_CLASSES = 32
OTHER = "other"
# Prompts below so many tokens are "short", "medium", or "long".
SHORT, MEDIUM = 256, 2048


def request_class(task: str, prompt_tokens: int, temperature: float) -> str:
    """The class of a request: its task as the client names it, how long its prompt is, and whether it is greedy."""
    size = "short" if prompt_tokens < SHORT else "medium" if prompt_tokens < MEDIUM else "long"
    return f"{task or 'any'}/{size}/{'greedy' if temperature == 0 else 'sampled'}"


class Classes:
    """Names that are told apart; clients choose tasks, so the first so many count and the rest are one."""

    def __init__(self, most: int = MOST_CLASSES) -> None:
        self._most = most
        self._names: set[str] = set()

    def admit(self, name: str) -> str:
        """The name, or OTHER when there are enough."""
        if name not in self._names:
            if len(self._names) >= self._most:
                return OTHER
            self._names.add(name)
        return name
