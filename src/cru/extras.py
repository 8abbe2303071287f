"""Optional dependencies: import them where they are needed, or say what to install."""

from importlib import import_module
from typing import Any


class MissingExtraError(ImportError, ValueError):
    """A package of an optional dependency is not installed. The message names the extra that installs it."""


def require_extra(module: str, extra: str) -> Any:
    """Import an optional dependency.

    Args:
        module: the module to import.
        extra: the extra of this package that installs it.

    Returns:
        The module.

    Raises:
        MissingExtraError: it is not installed.

    >>> from cru.extras import require_extra
    >>> require_extra("no_such_module", "plots")
    Traceback (most recent call last):
    cru.extras.MissingExtraError: no_such_module is not installed: pip install 'cru[plots]'.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # a package that is installed, but damaged
        package = {"PIL": "pillow"}.get(error.name, error.name.split(".")[0])
        raise MissingExtraError(f"{package} is not installed: pip install 'cru[{extra}]'.") from None
