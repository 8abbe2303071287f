"use strict";
// The explorer: choose a series and its variables, and see observations, bands, forecast, gaps, components and anomalies.

const BLUE = "var(--accent)", INK = "var(--ink)", BAD = "var(--bad)";
const FIRST_VARIABLES = 3, OFTEN = 0.3; // shown at first: so many, of those observed so often compared with the most frequent one
const LABEL = 34; // longest name on an axis
const short = (text, most = LABEL) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Numbers of a variable: as many decimals as its range asks for. */
function decimals(values) {
  const range = limits(values), size = range ? range[1] - range[0] : 0;
  const digits = size > 0 ? Math.max(0, Math.min(8, Math.ceil(-Math.log10(size / 3000)))) : 4;
  return (value) => (value === null || Math.abs(value) >= 1e6 || size === 0 ? show(value, 6) : String(Number(fixed(value, digits).replace("−", "-"))).replace("-", "−"));
}

class Explorer {
  constructor(page, timeFormat) {
    Object.assign(this, { page, timeFormat, order: page.series.map((_, k) => k), at: 0, wanted: null, parts: null, listeners: [] });
    this.list = el("select", { "aria-label": "Series", onchange: () => this.open(Number(this.list.value)) });
    this.find = el("input", { type: "search", placeholder: "Find a series", "aria-label": "Find a series", oninput: () => this.fillList(), onkeydown: (event) => {
      if (event.key === "Enter" && this.list.options.length) { this.open(Number(this.list.options[0].value)); event.preventDefault(); }
    } });
    this.before = el("button", { type: "button", "aria-label": "Previous series", onclick: () => this.go(-1) }, "‹");
    this.after = el("button", { type: "button", "aria-label": "Next series", onclick: () => this.go(1) }, "›");
    const many = page.series.length > 1;
    this.zoom = el("div", { class: "bar tools", role: "group", "aria-label": "Time range" }, [
      ["Earlier", "◀", (chart) => chart.pan(-STEP)], ["Later", "▶", (chart) => chart.pan(STEP)],
      ["Zoom in", "+", (chart) => chart.zoomBy(0.5)], ["Zoom out", "−", (chart) => chart.zoomBy(2)], ["Whole range", "Whole range", (chart) => chart.shared.setZoom(null)],
    ].map(([name, text, act]) => el("button", { type: "button", "aria-label": name, onclick: () => { if (this.charts[0]) act(this.charts[0]); } }, text)));
    this.variables = el("div", { class: "bar tabs", role: "group", "aria-label": "Variables" });
    this.facts = el("p", { class: "soft small", "aria-live": "polite", id: "facts" });
    this.key = el("p", { class: "key small soft" });
    this.body = el("div", { class: "stack" });
    this.charts = [];
    const hint = "Drag across a chart to zoom, and drag with Shift to move. On a touch screen, use one or two fingers. Keys on a chart: arrows for values, Shift and arrows to move, + and − to zoom, Escape for all.";
    this.node = el("section", { id: "explorer" }, el("header", {}, el("h2", {}, "Series"), el("p", { class: "soft small" }, hint)),
      many ? el("div", { class: "bar" }, this.before, el("label", {}, page.id_name || "Series", this.list), this.after, page.series.length > 8 ? this.find : null) : null,
      this.facts, this.variables, this.zoom, this.key, this.body);
  }

  /** Call `listener` with the number of each series that is opened. */
  addListener(listener) { this.listeners.push(listener); }

  /** Show the series in another order in the list. */
  sort(order) { this.order = order; this.fillList(); }

  fillList() {
    const words = this.find.value.toLowerCase(), matches = this.order.filter((k) => this.page.series[k].id.toLowerCase().includes(words));
    this.list.replaceChildren(...matches.map((k) => el("option", { value: k }, short(this.page.series[k].id, 60))));
    if (matches.includes(this.at)) this.list.value = this.at;
    else this.list.selectedIndex = -1;
    this.steps();
  }

  steps() {
    const here = this.order.indexOf(this.at);
    this.before.disabled = here <= 0;
    this.after.disabled = here === this.order.length - 1;
  }

  go(step) { this.open(this.order[this.order.indexOf(this.at) + step]); }

  open(k) {
    if (this.page.series[k] === undefined) return;
    this.at = k;
    this.list.value = k;
    this.steps();
    this.series = this.page.series[k];
    this.details = this.series.data && decode(this.page, this.series);
    this.shared = new SharedZoom();
    this.build();
    for (const listener of this.listeners) listener(k);
  }

  /** The variables of the series that are shown: those the reader chose, or the first that are observed often. */
  shown() {
    const all = this.details.variables, chosen = this.wanted && all.filter(({ variable }) => this.wanted.has(variable));
    if (chosen && chosen.length) return chosen;
    const most = Math.max(...all.map((one) => one.x.length));
    return all.filter((one) => one.x.length >= OFTEN * most).slice(0, FIRST_VARIABLES);
  }

  build() {
    const { series, timeFormat } = this, span = series.first === null ? "" : `${timeFormat.format(series.first)} to ${timeFormat.format(series.last)}`;
    const known = [`${whole(series.count)} observations`, span, `longest gap ${timeFormat.length(series.gap)}`, series.error === null ? "" : `error ${show(series.error, 3)} standard deviations`,
      series.surprise === null ? "" : `surprise ${show(series.surprise, 3)}`, series.anomalies === null ? "" : `${whole(series.anomalies)} anomal${series.anomalies === 1 ? "y" : "ies"}`];
    this.facts.replaceChildren(el("b", {}, short(series.id, 120)), ` · ${known.filter(Boolean).join(" · ")}`);
    if (!this.details) {
      this.charts = [];
      for (const node of [this.variables, this.zoom, this.key]) node.hidden = true;
      this.body.replaceChildren(el("p", { class: "note" }, series.count ? "The page has no curves of this series, to stay small. Write a page of a table with fewer series." : "This series has no observations."));
      return;
    }
    const shown = this.shown(), all = this.details.variables, components = all.some((one) => one.components.length);
    for (const node of [this.zoom, this.key]) node.hidden = false;
    this.variables.hidden = all.length < 2 && !components;
    this.variables.replaceChildren(
      ...(all.length > 1 ? all.map((one) => el("button", { type: "button", "aria-pressed": String(shown.includes(one)), onclick: () => this.toggle(one) }, short(one.name))) : []),
      ...(components ? [el("button", { type: "button", class: "apart", id: "components", "aria-pressed": String(this.divided(shown)), onclick: () => { this.parts = !this.divided(shown); this.build(); } }, "Components")] : []));
    this.key.replaceChildren(...this.legend(shown));
    this.charts = shown.flatMap((one) => this.panels(one, this.divided(shown) ? one.components : []));
    this.body.replaceChildren(...this.charts.map((chart) => chart.node));
    for (const chart of this.charts) chart.draw();
  }

  /** Whether components are shown: as the reader chose, otherwise if there is one variable. */
  divided(shown) { return this.parts ?? shown.length === 1; }

  toggle(one) {
    const shown = new Set(this.shown().map(({ variable }) => variable));
    if (!shown.delete(one.variable)) shown.add(one.variable);
    if (shown.size) this.wanted = shown;
    const focus = [...this.variables.children].indexOf(document.activeElement);
    this.build();
    if (focus >= 0) this.variables.children[focus].focus();
  }

  legend(shown) {
    const lines = [{ name: "observation", kind: "dots", color: INK }, { name: "mean", color: BLUE }, { name: "forecast", color: BLUE, dash: [4, 3] },
      ...this.page.levels.map((level, k) => this.band({ level }, k))];
    if (shown.some((one) => one.filled.x.length)) lines.splice(1, 0, { name: "filled in", kind: "rings", color: BLUE });
    if (shown.some((one) => one.anomalies.length)) lines.splice(1, 0, { name: "anomaly", kind: "rings", color: BAD });
    const gaps = shown.some((one) => one.gaps.length) ? [el("span", {}, el("i", { class: "gap-swatch" }), "long gap")] : [];
    return [...lines.map((line) => el("span", {}, swatch(line), line.name)), ...gaps];
  }

  band({ level, low, high }, k) { return { name: `${show(level)} %`, kind: "band", color: BLUE, opacity: `calc(var(--band) * ${1 + 0.5 * k})`, x: this.details.points, low, high, loose: true }; }

  x() {
    const { timeFormat, page, shared } = this, all = [...this.details.times, ...this.details.points], [first, last] = limits(all) || [0, 1];
    const shown = () => (shared.zoom ? [Math.max(first, shared.zoom[0]), Math.min(last, shared.zoom[1])] : [first, last]);
    return { domain: extent(all, { pad: PAD }) || [0, 1], name: "", format: (time) => timeFormat.format(time), axis: timeFormat.axis, get label() { return timeFormat.label(page.time_name, shown()); } };
  }

  /** The charts of a variable: its values, and its components below. */
  panels(one, parts) {
    const { details } = this, write = decimals([...one.y, ...one.mean]), x = this.x();
    const split = details.points.findIndex((time) => time > details.last), from = split < 0 ? details.points.length : split;
    const past = { x: details.points.slice(0, from), y: one.mean.slice(0, from) }, later = { x: details.points.slice(Math.max(0, from - 1)), y: one.mean.slice(Math.max(0, from - 1)) };
    const strange = one.anomalies.map(([k]) => k), radius = [[1500, 1.1], [250, 1.7]].find(([count]) => one.x.length > count)?.[1] ?? 2.4;
    const lines = () => [ // from back to front
      ...one.bands.map((band, k) => this.band(band, k)),
      { name: "mean", color: BLUE, ...past, width: 1.5 },
      { name: "forecast", color: BLUE, ...later, dash: [5, 3], width: 1.7 },
      ...(one.filled.x.length ? [{ name: "filled in", kind: "rings", color: BLUE, radius: one.filled.x.length > 150 ? 1.4 : 1.9, quiet: true, ...one.filled }] : []),
      ...(strange.length ? [{ name: "anomaly", kind: "rings", color: BAD, x: strange.map((k) => one.x[k]), y: strange.map((k) => one.y[k]), radius: 4.4,
        note: (k) => `(expected ${write(one.anomalies[k][1])}, p ${show(one.anomalies[k][2], 2)})` }] : []),
      { name: "observation", kind: "dots", color: INK, x: one.x, y: one.y, radius },
    ];
    const main = new Chart({
      title: short(one.name, 80), height: 240, shared: this.shared, x, stacked: true, y: { label: "", show: write }, lines,
      under: (sx, sy, box) => shade(one.gaps, details.last, sx, box), describe: () => this.describe(one, write),
      more: () => one.components.map((part) => ({ name: part.name, x: details.points, y: part.y })),
    });
    return [main, ...parts.map((part) => new Chart({
      title: `${one.name}, ${part.name}`, height: 88, bare: true, shared: this.shared, x, y: { label: short(part.name, 16), show: decimals(part.y) }, lines: () => [{ name: part.name, color: BLUE, x: details.points, y: part.y, width: 1.4 }],
    }))];
  }

  describe(one, write) {
    const { timeFormat, series, details } = this, range = limits(one.y), end = details.points.length - 1, wide = one.bands[0];
    const values = range ? `${whole(one.y.length)} observations from ${write(range[0])} to ${write(range[1])}` : "no observations";
    const gaps = one.gaps.length ? ` ${one.gaps.length} long gaps.` : "", strange = one.anomalies.length ? ` ${one.anomalies.length} anomal${one.anomalies.length === 1 ? "y" : "ies"}.` : "";
    const forecast = wide ? ` Forecast for ${timeFormat.format(details.points[end])}: ${write(one.mean[end])}, ${show(wide.level)} % interval ${write(wide.low[end])} to ${write(wide.high[end])}.` : "";
    return `${one.name} of ${series.id}: ${values}.${gaps}${strange}${forecast}`;
  }
}

/** Long gaps as areas, and the last observation as a line. */
function shade(gaps, last, sx, box) {
  const d = gaps.map(([from, to]) => `M${sx.map(from).toFixed(1)},${box.top}H${sx.map(to).toFixed(1)}V${box.bottom}H${sx.map(from).toFixed(1)}Z`).join("");
  return [svg("path", { class: "gap", d }), svg("line", { class: "cursor", x1: sx.map(last), x2: sx.map(last), y1: box.top, y2: box.bottom })];
}
