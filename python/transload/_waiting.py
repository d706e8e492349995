"""Awaits copies in asyncio and trio, without a thread for each."""

import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transload import Pending


def wait(pending: "Pending") -> Generator[Any, Any, Any]:
    """Suspends the task until the copy has ended. A task that is cancelled stops its copy."""
    if not pending.done():
        ended = _asyncio(pending) or _trio(pending)
        if ended is None:
            raise RuntimeError("a copy is awaited in asyncio or trio; call result() elsewhere")
        try:
            yield from ended
        except BaseException:
            pending.cancel()
            raise
    return pending.result()


def _asyncio(pending: "Pending") -> Generator[Any, Any, Any] | None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    future = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    _when_done(pending, loop.call_soon_threadsafe, settle)
    ended: Generator[Any, Any, Any] = future.__await__()
    return ended


def _trio(pending: "Pending") -> Generator[Any, Any, Any] | None:
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        token = trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None
    event = trio.Event()
    _when_done(pending, token.run_sync_soon, event.set)
    ended: Generator[Any, Any, Any] = event.wait().__await__()
    return ended


def _when_done(pending: "Pending", run_soon: Callable[[Callable[[], None]], object], settle: Callable[[], None]) -> None:
    def tell() -> None:
        try:
            run_soon(settle)
        except RuntimeError:
            pass  # The loop is closed, and nothing waits any more.

    pending.add_done_callback(tell)
