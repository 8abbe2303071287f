"""``cru report``: an HTML page of runs."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import AllowCode, DataDir, find_own_code
from cru.cli.printing import make_console
from cru.errors import InputError


def report(
    paths: Annotated[list[Path], typer.Argument(help="Folders of runs, folders that contain them, or ledgers.")],
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    series: Annotated[int, typer.Option(help="Number of test series of each experiment.", min=1)] = 12,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Measure the runtime of the layers by the latent size M.")
    ] = False,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Write one self-contained HTML page of scores, curves and test series."""
    from cru.reporting.report_data import collect
    from cru.reporting.report_page import render

    console = make_console()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError("out", "end in .html", f"{str(out)!r}")
    find_own_code(allow_code=allow_code)
    options = {"title": title, "series": series, "runtime": runtime, "data_dir": data_dir, "allow_code": allow_code}
    page = render(collect(paths, say=say, **options))  # type: ignore[arg-type]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    console.print(f"{out}: {len(page.encode()) / 1e6:.1f} MB. Open it in any browser.", soft_wrap=True)
