"""Where the threads that decode blocks of rows side by side stop for new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

import torch

from rlgraph.backends.engines.base import Refresh


class Pause:
    """New weights are taken once all threads have come to the end of a token: by the one that comes last."""

    def __init__(self, refresh: Refresh, agreed: Callable[[bool], bool] = bool) -> None:
        """agreed: from whether this rank could take new weights to whether all ranks of its copy can."""
        self._refresh, self._agreed = refresh, agreed
        self._changed = Condition()
        self._version = refresh.version
        self._decoding = self._stopped = self._taken = 0
        self._failure: BaseException | None = None

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """A thread decodes meanwhile: the others wait for it before they take new weights."""
        with self._changed:
            self._changed.wait_for(lambda: not self._stopped or self._failure is not None)
            self._decoding += 1
        try:
            yield
        finally:
            with self._changed:
                self._decoding -= 1
                self._take()

    def version(self) -> int:
        """Of the weights that sample the next token of this thread's rows."""
        with self._changed:
            if self._stopped or self._agreed(self._refresh.waits):
                taken = self._taken
                self._stopped += 1
                self._take()
                self._changed.wait_for(lambda: self._taken > taken or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._version

    def _take(self) -> None:
        """Takes them, where all that decode have stopped."""
        if not self._stopped or self._stopped < self._decoding:
            return
        try:
            # What is made in inference mode could not be written to outside of it.
            with torch.inference_mode(False), torch.no_grad():
                self._version = self._refresh.take()
        except BaseException as error:
            self._failure = error
        self._stopped, self._taken = 0, self._taken + 1
        self._changed.notify_all()
