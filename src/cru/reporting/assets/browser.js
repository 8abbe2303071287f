"use strict";
// A browser of test series: choose one, and show its observations and the predictions of the models.

class SeriesBrowser {
  constructor(context, runs, experiment) {
    Object.assign(this, { context, runs, experiment, at: 0, channel: null, width: context.bands.at(-1).width, of: "" });
    this.body = el("div", { class: "stack" });
    const list = experiment.series;
    this.picker = choice("Series", list.map((series, k) => [k, series.id]), 0, (k) => this.go(Number(k)));
    this.before = el("button", { type: "button", "aria-label": "Previous series", onclick: () => this.go(this.at - 1) }, "‹");
    this.after = el("button", { type: "button", "aria-label": "Next series", onclick: () => this.go(this.at + 1) }, "›");
    this.controls = el("div", { class: "bar" });
    const hint = "Drag across a chart to zoom, double-click for the whole range; hover, tap or use the arrow keys for values.";
    this.node = el("section", { id: "series" },
      el("header", {}, el("h2", {}, "Test series"), el("p", { class: "soft small" }, hint)), this.controls, this.body);
    this.charts = [];
    this.go(0);
  }

  go(k) {
    this.at = Math.max(0, Math.min(this.experiment.series.length - 1, k));
    this.picker.querySelector("select").value = this.at;
    this.before.disabled = this.at === 0;
    this.after.disabled = this.at === this.experiment.series.length - 1;
    this.build();
  }

  build() {
    const series = this.series = this.experiment.series[this.at];
    this.shared = new SharedZoom();
    const names = series.channels.map((channel) => channel.name);
    if (!names.includes(this.channel)) this.channel = fullest(series);
    const parts = [this.before, this.picker, this.after];
    if (names.length > 1) parts.push(choice("Feature", names.map((name) => [name, name]), this.channel, (name) => { this.channel = name; this.build(); }));
    const bands = Object.values(series.predictions).some((prediction) => prediction.std);
    if (bands) parts.push(choice("Uncertainty", this.context.bands.map(({ level, width }) => [String(width), level ? `${level} % interval` : "no interval"]), String(this.width), (width) => { this.width = Number(width); this.draw(); }));
    const runsWithStd = this.runs.filter((run) => series.predictions[run.id]?.std);
    if (runsWithStd.length > 1) { // several bands above each other show nothing
      if (!this.of) this.of = runsWithStd[0].id;
      parts.push(choice("of", [...runsWithStd.map((run) => [run.id, this.context.label(run)]), ["all", "all models"]], this.of, (id) => { this.of = id; this.draw(); }));
    } else this.of = "all";
    this.controls.replaceChildren(...parts);
    const first = names.length ? this.values() : this.errors(), gain = this.gain(), noise = this.noise();
    this.charts = [first, gain, noise].filter(Boolean);
    this.frames = series.frames ? new Frames(this.context, series, this.runs, this.shared) : null;
    this.body.replaceChildren(...[first.node, this.frames?.node, gain?.node, this.gainless(), noise?.node].filter(Boolean));
    this.draw();
  }

  draw() {
    for (const chart of this.charts) chart.draw();
    if (this.frames) this.frames.draw();
  }

  x() { return { label: this.experiment.time, name: "time", domain: extent(this.series.times, { pad: PAD }) || [0, 1] }; }

  /** The chosen feature: observations, truth, means and bands. */
  values() {
    const { series } = this, n = series.channels.findIndex((channel) => channel.name === this.channel), channel = series.channels[n];
    const points = (name, kind, known) => known && known.at.length ? [{ name, kind, color: "var(--ink)", x: known.at.map((k) => series.times[k]), y: known.values, width: 1.2, radius: known.at.length > 150 ? 1.6 : 0, dash: kind === "line" ? [4, 3] : [] }] : [];
    const models = () => linesOf(this.context, this.runs, series.predictions, (prediction, run) => {
      const mean = prediction.mean[n], std = prediction.std && prediction.std[n], w = this.width;
      const edge = (side) => mean.map((m, k) => (m === null || std[k] === null ? null : m + side * w * std[k]));
      const band = std && w && (this.of === "all" || this.of === run.id) ? { low: edge(-1), high: edge(1), loose: true } : {};
      return { x: series.times, y: mean, ...band };
    });
    return new Chart({
      title: channel.unit && channel.unit !== "–" ? `${channel.name} [${channel.unit}]` : channel.name, height: 320, shared: this.shared, x: this.x(),
      y: { label: channel.unit ? `${channel.name} [${channel.unit}]` : channel.name },
      lines: () => [...points("seen", "dots", channel.seen), ...points("withheld", "rings", channel.withheld), ...models(), ...points("truth", "line", channel.truth)],
    });
  }

  /** Images: the error of each frame. */
  errors() {
    const { series } = this, seen = series.frames.observed;
    const rug = (sx, sy, box) => series.times.map((t, k) => svg("line", { class: seen[k] === "1" ? "ink-line" : "grid-line", x1: sx.map(t), x2: sx.map(t), y1: box.bottom - 7, y2: box.bottom, "stroke-width": 2 }));
    return new Chart({
      title: "Error of each frame; a dark tick is a frame that was seen", height: 260, shared: this.shared, x: this.x(), under: rug,
      y: { label: `RMSE [${this.experiment.error_unit}]`, zero: true },
      lines: () => linesOf(this.context, this.runs, series.predictions, (prediction) => ({ x: series.times, y: prediction.error, dots: true })),
    });
  }

  gain() {
    const { series } = this;
    if (!Object.values(series.predictions).some((prediction) => prediction.gain)) return null;
    return new Chart({
      title: "Norm of the Kalman gain: the weight of an observation", height: 190, shared: this.shared, x: this.x(), y: { label: "gain [–]", zero: true },
      lines: () => linesOf(this.context, this.runs.filter((run) => series.predictions[run.id]?.gain), series.predictions, (prediction) => {
        const at = series.times.map((_, k) => k).filter((k) => prediction.gain[k] !== null); // only at observed times
        return { x: at.map((k) => series.times[k]), y: at.map((k) => prediction.gain[k]), dots: at.length < 120, radius: 1.8 };
      }),
    });
  }

  /** A sentence that names the models without a gain. */
  gainless() {
    const without = this.runs.filter((run) => this.series.predictions[run.id] && !this.series.predictions[run.id].gain);
    const names = [...new Set(without.map((run) => this.context.name(run.model)))];
    return names.length ? el("p", { class: "soft small", id: "gainless" }, `No Kalman gain to show: ${names.join(", ")}.`) : null;
  }

  noise() {
    const { series } = this;
    if (!series.noise) return null;
    const area = (sx, sy, box) => [svg("path", { class: "noise", d: `M${sx.map(series.times[0])},${box.bottom}` + series.times.map((t, k) => `L${sx.map(t)},${sy.map(series.noise[k])}`).join("") + `L${sx.map(series.times.at(-1))},${box.bottom}Z` })];
    return new Chart({
      title: "Noise in the images", height: 130, shared: this.shared, x: this.x(), under: area,
      y: { label: "noise", domain: [0, 1], format: percent }, lines: () => [{ name: "noise", color: "var(--bad)", x: series.times, y: series.noise, width: 1 }],
    });
  }
}

/** The feature with most observations and targets. */
function fullest(series) {
  const count = (channel) => ["seen", "withheld", "truth"].reduce((sum, kind) => sum + (channel[kind]?.at.length || 0), 0);
  const best = series.channels.reduce((a, b) => (a && count(a) >= count(b) ? a : b), null);
  return best && best.name;
}
