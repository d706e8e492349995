"""Progress by tqdm, where it is installed."""

from collections.abc import Callable


def bar(shown: bool) -> Callable[[int, int], None]:
    """Returns a function of bytes done and bytes in all that draws a bar, or one that does nothing."""
    if not shown:
        return lambda done, total: None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ValueError("progress: True draws a bar by the package tqdm, which is not installed") from error
    # Now, so that its time is that of the whole. Each file of a load has a bar.
    drawn = tqdm(unit="B", unit_scale=True)

    def tell(done: int, total: int) -> None:
        nonlocal drawn
        if drawn.disable:
            drawn = tqdm(unit="B", unit_scale=True)
        drawn.total = total
        drawn.update(done - drawn.n)
        if done == total:
            drawn.close()

    return tell
