"""Turns what CUDA says of a device without room into a diagnostic."""

from __future__ import annotations

from rlgraph.errors import Diagnostic, RunError, Span

_SAYS = "CUDA out of memory"
_HINT = (
    "let models of the pool sleep in turns (`sleep=true`), take smaller micro-batches (`--token-budget`), a larger "
    "`tp` or `fsdp`, or a smaller `share=` or `cache=` of the engine that samples"
)


def is_device_full(error: BaseException) -> bool:
    """Return whether an error says that a device has no room. An update that ends so is one of the engine's errors,
    with the same words in it."""
    return type(error).__name__ == "OutOfMemoryError" and isinstance(error, RuntimeError) or _SAYS in str(error)


def device_full_error(error: BaseException, doing: str, span: Span, who: str = "") -> RunError:
    """Return the error for it. doing: what was asked for. who: the process, where it is known."""
    text = " ".join(str(error).split())
    # Without what comes before, and without general advice.
    text = text[max(0, text.find(_SAYS)) :].partition(" Of the allocated memory")[0].partition(" If reserved but")[0]
    there = f"the device of {who}" if who else "a device"
    message = f"{there} has no room left: {text.removesuffix('.')}; it was asked for {doing}"
    return RunError(Diagnostic("E0750", message, span, _HINT))
