"""`make demo`: real weather stations with gaps, then the paper's pendulum at small scale, then a page to explore.

    python examples/demo.py [--small] [--out build/demo]

Every number is computed while it runs, except those of the full runs, which come from results/ledger.jsonl. With
--small everything is tiny: it shows that the demo works, not how the models compare.
"""

import argparse
import time
from pathlib import Path

import demo_pendulum
import demo_weather
from rich.console import Console

from cru.reporting.report_data import collect
from cru.reporting.report_page import render


def main() -> None:
    """Run both parts, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    options = parser.parse_args()
    console, started = Console(highlight=False, soft_wrap=True), time.perf_counter()
    console.rule("1. Weather stations with gaps")
    forecaster, held_out = demo_weather.show(console, options.out, small=options.small)
    console.rule("2. The paper at small scale: the angle of a pendulum from noisy images")
    demo_pendulum.show(console, options.out, small=options.small)
    report = options.out / "report.html"
    report.write_text(render(collect([options.out / "runs"], title="The pendulum at small scale")), encoding="utf-8")
    console.print(f"Report of the training runs: {report}")
    console.rule("3. A page of the held-out stations")
    page = forecaster.view(held_out, out=options.out / "stations.html", horizon="28D")
    console.print(f"Open {page.resolve()} in a browser. The demo took {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
