"""The errors of engines that a user can act on."""

from __future__ import annotations

from rlgraph.catalog.models.missing_heads import missing_head_message


class EngineError(ValueError):
    """An error that a user can act on: a missing model, a prompt without a chat template, a gradient that is not
    finite."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """What to do, where that is known."""


class HubError(EngineError):
    """A model of the hub cannot be loaded."""


class ConversationError(EngineError):
    """A conversation that the model's chat template does not write so that it could be learned from."""

    def __init__(self, message: str, code: str, hint: str = "") -> None:
        super().__init__(message)
        self.args = message, code, hint
        self.code = code
        """Of the diagnostic."""
        self.hint = hint

    def __str__(self) -> str:
        return str(self.args[0])


class NonFiniteGradient(EngineError):
    """A gradient has NaN or infinity in it: the weights, and what the optimizer keeps, were left as they are."""


class NoRoutes(EngineError):
    """Raised where rows are to come with the experts of their tokens, and routers cannot say these."""


class NoRows(EngineError):
    """No rank has a row for an update: nothing has changed, and it does not count as one."""

    def __init__(self) -> None:
        super().__init__("there are no rows to train on: the weights were left as they are")


class PartialUpdate(EngineError):
    """An update failed after it had begun to write: the weights are neither the old ones nor the new ones."""


class MissingHead(EngineError):
    """A value or reward model has no head in its files, and nothing trains one: it would give 0 for every row."""

    def __init__(self, kind: str, source: str) -> None:
        super().__init__(missing_head_message(kind, source))


class ModelRefused(EngineError):
    """A model was loaded for which the engine would compute something else than what it is asked for."""


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, which libraries go on to explain; empty where it says nothing."""
    return (str(error).strip().splitlines() or [""])[0]
