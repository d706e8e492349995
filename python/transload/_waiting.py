"""Awaits copies in asyncio and trio, without a thread for each."""

import sys


def wait(pending):
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


def _asyncio(pending):
    asyncio = sys.modules.get("asyncio")
    try:
        loop = asyncio.get_running_loop()
    except (AttributeError, RuntimeError):
        return None
    future = loop.create_future()

    def settle():
        if not future.done():
            future.set_result(None)

    _when_done(pending, loop.call_soon_threadsafe, settle)
    return future.__await__()


def _trio(pending):
    trio = sys.modules.get("trio")
    try:
        token = trio.lowlevel.current_trio_token()
    except (AttributeError, RuntimeError):
        return None
    event = trio.Event()
    _when_done(pending, token.run_sync_soon, event.set)
    return event.wait().__await__()


def _when_done(pending, run_soon, settle):
    def tell():
        try:
            run_soon(settle)
        except RuntimeError:
            pass  # The loop is closed, and nothing waits any more.

    pending.add_done_callback(tell)
