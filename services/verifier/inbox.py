"""What other threads hand to the engine's thread: commands, ends of streams, calls, and the order to stop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dartspec.services.verifier.messages import Command, Event, Load

T = TypeVar("T")


class Owner(Protocol):
    """One Rounds stream. ``deliver`` is called on the engine thread and must not block."""

    def deliver(self, events: list[Event], load: Load) -> None:
        """Send the events of one step."""


@dataclass(frozen=True)
class Order:
    """A command for a session of a stream."""

    owner: Owner
    command: Command


@dataclass(frozen=True)
class Drop:
    """A stream has ended, and all its sessions with it."""

    owner: Owner


@dataclass(frozen=True)
class Call:
    """A function to run on the engine's thread between two steps."""

    function: Callable[[], Any]
    future: Future[Any]

    def run(self) -> None:
        """Run it unless it was cancelled; its future has the result or the error."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except Exception as error:
            self.future.set_exception(error)


@dataclass(frozen=True)
class Stop:
    """End the thread."""


Item = Order | Drop | Call | Stop


class Inbox:
    """A queue in the order of arrival. Everything but ``get`` may be called on any thread."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        """Hand something over."""
        self._items.put(item)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Hand a function over; its result comes with the future."""
        future: Future[T] = Future()
        self._items.put(Call(function, future))
        return future

    def get(self, wait: float) -> Item | None:
        """The next item, waiting so many seconds for it; None when there is none."""
        try:
            return self._items.get(block=wait > 0, timeout=wait or None)
        except queue.Empty:
            return None
