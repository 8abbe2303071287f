"""``python -m cru.cli`` is the ``cru`` command."""

from cru.cli import app

app(prog_name="cru")
