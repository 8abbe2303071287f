"""Loggers that write only printable text."""

import logging

from cru.errors import printable


def make_logger(name: str) -> logging.Logger:
    """Make the logger of a module. Control characters in its messages, from names and files, are escaped.

    >>> from cru.logs import make_logger
    >>> make_logger("cru.example").name
    'cru.example'
    """
    logger = logging.getLogger(name)
    logger.addFilter(_make_printable)
    return logger


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage(), keep="\n\t"), None
    return True
