"""Where the error of a run on USHCN or PhysioNet comes from: python examples/errors.py runs/ushcn-interpolation/cru-0

The script scores each set twice: scaled by its own extremes, as in the paper, and like the training set. It names the
features with the largest share of the error.
"""

import sys
from dataclasses import replace
from pathlib import Path

from cru.evaluation import ScoreSums, predict
from cru.evaluation.metrics import REGIONS
from cru.reporting.run_folder import read_folder
from cru.training.experiment import load_splits
from cru.training.run import load_model

LARGEST = 4  # features


def main(path: Path) -> None:
    """Score the weights of the best epoch on all three sets, scaled both ways."""
    settings, model = read_folder(path).settings, load_model(path)
    for scaling in ("each", "train"):
        data = replace(settings.data, options={**settings.data.options, "scaling": scaling})
        for name, series in load_splits(replace(settings, data=data))._asdict().items():
            score_sums = ScoreSums(series.target_shape, series.task.likelihood, scored=series.task.scored)
            for batch, prediction in predict(model, series, batch_size=100):
                score_sums.add(prediction, batch)
            errors = score_sums.sums[REGIONS.index(score_sums.scored), score_sums.metrics.index("mse")]
            shares = sorted(zip((errors / errors.sum()).tolist(), series.names, strict=True), reverse=True)
            most = ", ".join(f"{feature} {share:.0%}" for share, feature in shares[:LARGEST])
            print(f"{path.name}  scaling={scaling:5}  {name:10}  MSE {100 * score_sums.scores()['mse']:.4f}e-2  {most}")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        main(Path(word))
