"""Progress bars for the stages of an experiment."""

import contextlib
from collections.abc import Callable, Iterator

from idmatters_tf._progress import Progress


@contextlib.contextmanager
def stage_bars(unit: str = "pieces") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a progress callback that shows a bar for each stage of the work.

    Args:
        unit: name of the units of work.
    """
    with contextlib.ExitStack() as bars:
        bar = None

        def show(stage: str, done: int, total: int) -> None:
            nonlocal bar
            if bar is None or bar.title != stage:
                bars.close()
                bar = bars.enter_context(Progress(total, stage, unit=unit, delay=0, leave=True))
            bar.advance(done - bar.done)

        yield show
