"use strict";
// The charts of an experiment: learning curves, calibration, error by gap, gain.

/** Visibility and style of each model on the whole page. */
class ModelStyles {
  constructor(styles) {
    this.styles = styles;
    this.off = new Set();
    this.listeners = [];
    const hex = /^#[0-9a-f]{6}$/i, safe = (colour) => (hex.test(colour) ? colour : "#777777");
    const names = Object.keys(styles), rule = (which) => names.map((name, k) => `--m${k}:${safe(styles[name][which])}`).join(";");
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(`:root{${rule("light")}}@media (prefers-color-scheme: dark){:root{${rule("dark")}}}`);
    document.adoptedStyleSheets = [sheet];
    this.number = new Map(names.map((name, k) => [name, k]));
  }
  style(model) { return { color: `var(--m${this.number.get(model)})`, dash: this.styles[model].dash, model }; }
  name(model) { return this.styles[model].name; }
  shown(model) { return !this.off.has(model); }
  toggle(model) {
    if (!this.off.delete(model)) this.off.add(model);
    for (const listener of this.listeners) listener();
  }
  legend(models) {
    return el("div", { class: "bar legend", role: "group", "aria-label": "Models shown" }, models.map((model) => {
      const button = el("button", { type: "button", "aria-pressed": this.shown(model), "data-model": model, onclick: () => {
        this.toggle(model);
        button.setAttribute("aria-pressed", this.shown(model));
      } }, swatch(this.style(model)), this.name(model));
      return button;
    }));
  }
}

const METRICS = { mse: "MSE", nll: "NLL", mae: "MAE", crps: "CRPS", coverage50: "inside 50 %", coverage90: "inside 90 %" };
const UNITS = { mse: "model units²", nll: "nats a time point", mae: "model units", crps: "model units" };

/** Lines of the runs of an experiment, for visible models. */
function linesOf(context, runs, data, make) {
  return runs.filter((run) => context.models.shown(run.model) && data[run.id])
    .map((run) => ({ name: context.label(run), ...context.models.style(run.model), ...make(data[run.id], run) }));
}

function learningCurves(context, runs) {
  const curves = Object.fromEntries(runs.filter((run) => run.curve.epoch.length).map((run) => [run.id, run.curve]));
  const metrics = Object.keys(METRICS).filter((name) => runs.some((run) => run.curve[name]));
  if (!metrics.length) return null;
  let metric = metrics[0];
  const positive = () => Object.values(curves).every((curve) => (curve[metric] || []).every((v) => v === null || v > 0));
  const chart = new Chart({
    title: "Learning curves, validation set", wide: true, height: 320,
    x: { label: "training [epochs]", name: "epoch", whole: true },
    y: { get label() { return `validation ${METRICS[metric]} [${UNITS[metric]}]`; }, get log() { return positive(); } },
    lines: () => linesOf(context, runs, curves, (curve) => ({ x: curve.epoch, y: curve[metric] || curve.epoch.map(() => null), width: 1.6 })),
    controls: metrics.length > 1 ? choice("Score", metrics.map((name) => [name, METRICS[name]]), metric, (name) => { metric = name; chart.draw(); }) : null,
  });
  return chart;
}

function calibrationChart(context, runs, experiment) {
  if (!Object.keys(experiment.calibration).length) return null;
  return new Chart({
    title: "Calibration", height: 300, wide: !hasGaps(experiment),
    x: { label: "nominal coverage of the central interval", name: "nominal", format: percent, domain: [0, 1] },
    y: { label: "targets inside it", format: percent, domain: [0, 1] },
    under: (sx, sy) => [svg("line", { class: "soft-line", x1: sx.map(0), y1: sy.map(0), x2: sx.map(1), y2: sy.map(1) })],
    lines: () => linesOf(context, runs, experiment.calibration, (curve) => ({ x: curve.x, y: curve.y, dots: true })),
  });
}

const hasGaps = (experiment) => Object.values(experiment.gaps).some((curve) => curve.x.length > 1);

function gapChart(context, runs, experiment) {
  if (!hasGaps(experiment)) return null;
  const all = Object.values(experiment.gaps).flatMap((curve) => curve.x);
  const low = Math.min(...all), high = Math.max(...all);
  return new Chart({
    title: "Error against gap length", height: 300, wide: !Object.keys(experiment.calibration).length,
    x: { label: experiment.time.replace("time", "time since the last observation"), name: "gap", log: low > 0 && high > 50 * low },
    y: { label: `RMSE [${experiment.error_unit}]`, zero: true },
    lines: () => linesOf(context, runs, experiment.gaps, (curve) => ({ x: curve.x, y: curve.y, dots: true })),
  });
}

function gainChart(context, runs, experiment) {
  const spreads = Object.values(experiment.gain);
  if (!spreads.length) return null;
  const noise = spreads[0].by === "noise";
  const column = (spread, k) => spread.quantiles.map((row) => row[k]);
  return new Chart({
    title: `Kalman gain against ${noise ? "noise" : "missing features"}`, height: 300, wide: true,
    x: { label: noise ? "noise in the image" : "features missing at the time point [count]", name: noise ? "noise" : "missing", format: noise ? percent : undefined, whole: !noise },
    y: { label: "norm of the gain [–]", zero: true },
    lines: () => linesOf(context, runs, experiment.gain, (spread) => ({ x: spread.x, y: column(spread, 2), low: column(spread, 1), high: column(spread, 3), dots: true })),
  });
}

/** CPU time of a layer by the size of its state, measured when the page was written. */
function runtimeChart(context, runtime) {
  return new Chart({
    title: "Forward and backward pass of one layer, batch 20, 20 steps, one thread", height: 300,
    x: { label: "latent state size M [dimensions]", name: "M", log: true }, y: { label: "CPU time [ms]", log: true },
    lines: () => Object.entries(runtime).filter(([model]) => context.models.shown(model)).map(([model, curve]) => ({ name: context.name(model), ...context.models.style(model), ...curve, dots: true })),
  });
}
