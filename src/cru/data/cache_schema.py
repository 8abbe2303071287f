"""The schema of the header of a file of series."""

from typing import Any

from cru.schema import Checksum, Schema


class Labels(Schema):
    """Names, units and origin of the series."""

    names: list[str]
    units: list[str]
    time_unit: str
    origin: str | None


class Header(Schema):
    """The key of the series, their labels, and the checksum of every array in the file."""

    format: int
    key: dict[str, Any]
    labels: Labels
    sha256: dict[str, Checksum]
