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
    drawn = None

    def tell(done: int, total: int) -> None:
        nonlocal drawn
        if drawn is None:
            drawn = tqdm(total=total, unit="B", unit_scale=True)
        drawn.update(done - drawn.n)
        if done == total:
            drawn.close()

    return tell
