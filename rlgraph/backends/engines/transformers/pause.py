"""Stops the threads that decode blocks of rows side by side for new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

import torch

from rlgraph.backends.engines.roles import WeightRefresh


class RefreshBarrier:
    """Takes new weights once all threads have come to the end of a token: the one that comes last takes them."""

    def __init__(self, refresh: WeightRefresh, agreed: Callable[[bool], bool] = bool) -> None:
        """agreed: from whether this rank could take new weights to whether all ranks of its replica can."""
        self._refresh, self._all_ranks_wait = refresh, agreed
        self._condition = Condition()
        self._version = refresh.version
        self._decoding = self._stopped = self._taken = 0
        self._failure: BaseException | None = None

    @contextmanager
    def count_as_decoding(self) -> Iterator[None]:
        """Count this thread as one that decodes meanwhile: the others wait for it before they take new weights."""
        with self._condition:
            self._condition.wait_for(lambda: not self._stopped or self._failure is not None)
            self._decoding += 1
        try:
            yield
        finally:
            with self._condition:
                self._decoding -= 1
                self._take()

    def wait_for_version(self) -> int:
        """Return the version of the weights that sample the next token of this thread's rows."""
        with self._condition:
            if self._stopped or self._all_ranks_wait(self._refresh.can_take_weights):
                taken = self._taken
                self._stopped += 1
                self._take()
                self._condition.wait_for(lambda: self._taken > taken or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._version

    def _take(self) -> None:
        """Take new weights if all threads that decode have stopped."""
        if not self._stopped or self._stopped < self._decoding:
            return
        try:
            # Tensors made in inference mode could not be written to outside of it.
            with torch.inference_mode(False), torch.no_grad():
                self._version = self._refresh.take_weights()
        except BaseException as error:
            self._failure = error
        self._stopped, self._taken = 0, self._taken + 1
        self._condition.notify_all()
