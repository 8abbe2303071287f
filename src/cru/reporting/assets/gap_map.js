"use strict";
// The map of gaps: one row for each series, dark where it has observations. A click opens the series.

const ORDERS = {
  table: ["order of the table", () => 0, null],
  error: ["worst error", (one) => one.error, "error [standard deviations]"],
  gap: ["longest gap", (one) => one.gap, "longest gap"],
  surprise: ["most surprising", (one) => one.surprise, "surprise"],
  anomalies: ["most anomalies", (one) => one.anomalies, "anomalies"],
  count: ["fewest observations", (one) => -one.count, null],
};
const ROW = [3, 18], SCROLL_AREA = 720, HEIGHT = 540, BARS = 84, LABELLED = 11; // pixels: of a row, of all rows, of the map, of the bars, of a row with a name
const TABLE_ROWS = 200;
const USUAL = 0.43; // the mean of -log10 of a uniform number

class GapMap {
  constructor(page, timeFormat, open) {
    Object.assign(this, { page, timeFormat, open, order: page.series.map((_, k) => k), by: "table", row: 0, chosen: 0, listeners: [] });
    this.bins = page.series.map((series) => bytes(series.bins));
    this.spans = page.series.map((series) => (series.first === null ? null : [series.first, series.last]));
    const known = this.spans.filter(Boolean), first = Math.min(...known.map(([from]) => from)), last = Math.max(...known.map(([, to]) => to));
    this.whole = [first, last];
    this.longest = Math.max(...known.map(([from, to]) => to - from)) || 1;
    const typical = known.map(([from, to]) => to - from).sort((a, b) => a - b)[known.length >> 1];
    this.aligned = typical < 0.3 * (last - first); // short series at very different times
    this.height = Math.max(ROW[0], Math.min(ROW[1], Math.floor(SCROLL_AREA / page.series.length)));
    this.canvas = el("canvas", {});
    this.scrollArea = el("div", { class: "scroll-area" });
    this.marks = { chosen: el("div", { class: "mark chosen" }), row: el("div", { class: "mark" }) };
    this.view = el("div", { class: "map", tabindex: 0, role: "img", onscroll: () => this.draw() }, this.canvas, this.scrollArea, Object.values(this.marks));
    this.tip = el("div", { class: "tip", hidden: true });
    this.live = el("p", { class: "soft small", "aria-live": "polite" });
    this.rows = el("div", {});
    const orders = Object.entries(ORDERS).filter(([name]) => name === "table" || page.series.some((one) => ORDERS[name][1](one) !== null));
    const axis = (aligned) => (aligned ? "since the first observation" : "as in the table");
    this.node = el("section", { id: "gaps" }, el("header", {}, el("h2", {}, "Where observations are"),
      el("p", { class: "soft small" }, "One row for each series, strong where observations are dense. Click a row to open the series, or use the arrow keys and Enter. ",
        "The error is that of values withheld as in training, in standard deviations.", page.series.some((one) => one.surprise !== null) ? ` The surprise is the mean of −log10 p of the observations, given those before; ${USUAL} is usual.` : "")),
    el("div", { class: "bar" }, choice("Sort by", orders.map(([name, [text]]) => [name, text]), this.by, (name) => this.sort(name)),
      choice("Time", [[false, axis(false)], [true, axis(true)]].map(([value, text]) => [String(value), text]), String(this.aligned), (value) => { this.aligned = value === "true"; this.draw(); })),
    el("figure", {}, el("div", { class: "plot" }, this.view, this.tip), this.axis = el("div", { class: "plot" }), this.live, details(`Values as a table`, () => this.rows)));
    this.listen();
    new ResizeObserver(() => { if (this.view.clientWidth !== this.width) this.draw(); }).observe(this.view);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Call `listener` with each new order of the series. */
  addListener(listener) { this.listeners.push(listener); }

  sort(name) {
    const value = ORDERS[name][1], key = (k) => value(this.page.series[k]) ?? -Infinity;
    this.by = name;
    this.order = this.page.series.map((_, k) => k).sort((a, b) => key(b) - key(a) || a - b);
    this.row = Math.max(0, this.order.indexOf(this.chosen));
    this.view.scrollTop = 0;
    for (const listener of this.listeners) listener(this.order);
    this.draw();
    this.list();
  }

  /** Mark the series that is open. */
  choose(k) {
    this.chosen = k;
    this.row = Math.max(0, this.order.indexOf(k));
    this.mark();
  }

  /** Move the marks over the open series and over the row of the keyboard. To draw all rows again would take longer. */
  mark() {
    for (const [name, row] of [["chosen", this.order.indexOf(this.chosen)], ["row", this.row]]) {
      Object.assign(this.marks[name].style, { top: `${row * this.height}px`, height: `${this.height}px`, width: `${this.width}px` });
    }
  }

  /** Only the rows in sight are drawn. */
  draw() {
    this.width = this.view.clientWidth;
    if (!this.width) return;
    const { height } = this, total = this.order.length * height, tall = Math.min(total, HEIGHT), ratio = devicePixelRatio || 1;
    this.view.style.height = `${tall}px`;
    this.scrollArea.style.height = `${total}px`;
    const measure = ORDERS[this.by][2], labelled = height >= LABELLED && this.width > 500;
    this.left = labelled ? MARGIN.left + 60 : 18;
    this.right = this.width - (measure ? BARS : 18);
    Object.assign(this.canvas.style, { width: `${this.width}px`, height: `${tall}px` });
    Object.assign(this.canvas, { width: Math.round(this.width * ratio), height: Math.round(tall * ratio) });
    const pen = this.canvas.getContext("2d"), style = getComputedStyle(this.view), colour = (name) => style.getPropertyValue(name).trim();
    pen.scale(ratio, ratio);
    pen.font = "11.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const top = this.view.scrollTop, first = Math.floor(top / height), last = Math.min(this.order.length - 1, Math.ceil((top + tall) / height));
    const sx = this.scale(), values = this.page.series.map(ORDERS[this.by][1]), most = Math.max(...values.map((v) => v ?? 0)) || 1, bar = height > 4 ? 1 : 0;
    const [ink, soft, accent] = ["--ink", "--soft", "--accent"].map(colour);
    for (let row = first; row <= last; row++) {
      const k = this.order[row], y = row * height - top, span = this.spans[k];
      pen.globalAlpha = 1;
      if (labelled) {
        pen.fillStyle = soft;
        pen.textAlign = "right";
        pen.fillText(short(this.page.series[k].id, 17), this.left - 8, y + height / 2);
      }
      if (span) {
        const [from, to] = this.aligned ? [0, span[1] - span[0]] : span, x0 = sx.map(from), bins = this.bins[k], wide = Math.max(1.5, sx.map(to) - x0) / bins.length;
        pen.fillStyle = ink;
        for (let n = 0, from = 0; n < bins.length; from = n) { // equal neighbours are one rectangle
          while (n < bins.length && bins[n] === bins[from]) n++;
          if (!bins[from]) continue;
          pen.globalAlpha = bins[from] / 255;
          pen.fillRect(x0 + from * wide, y + bar, Math.max(wide * (n - from), 0.8), height - 2 * bar);
        }
      }
      if (measure && values[k] !== null) { pen.globalAlpha = 0.75; pen.fillStyle = accent; pen.fillRect(this.right + 8, y + bar, Math.max(1, (BARS - 12) * values[k] / most), height - 2 * bar); }
    }
    this.drawAxis(sx, measure);
    this.mark();
    this.view.setAttribute("aria-label", this.describe());
  }

  scale() { return scale(this.aligned ? [0, this.longest] : this.whole, [this.left, Math.max(this.left + 10, this.right)]); }

  drawAxis(sx, measure) {
    const { timeFormat } = this, root = svg("svg", { width: this.width, height: 40, viewBox: `0 0 ${this.width} 40`, "aria-hidden": "true" });
    const own = !this.aligned && timeFormat.axis ? timeFormat.axis(sx.domain, this.right - this.left) : null;
    const factor = this.aligned && timeFormat.dates ? timeFormat.unit / (sx.domain[1] * timeFormat.unit > 3 * DAY ? DAY : HOUR) : 1;
    const ticks = own ? own.ticks : scale(sx.domain.map((v) => v * factor), [this.left, this.right]).ticks.map((v) => v / factor);
    for (const tick of ticks) {
      root.append(svg("line", { class: "axis-line", x1: sx.map(tick), x2: sx.map(tick), y1: 0, y2: 4 }),
        svg("text", { x: sx.map(tick), y: 16, "text-anchor": "middle" }, own ? own.format(tick) : show(tick * factor)));
    }
    const unit = factor === 1 ? "" : ` [${sx.domain[1] * timeFormat.unit > 3 * DAY ? "days" : "hours"}]`;
    const name = this.aligned ? `time since the first observation of each series${unit}` : timeFormat.label(this.page.time_name, this.whole);
    root.append(svg("line", { class: "axis-line", x1: this.left, x2: this.right, y1: 0.5, y2: 0.5 }), svg("text", { class: "name", x: (this.left + this.right) / 2, y: 33, "text-anchor": "middle" }, name));
    if (measure) root.append(svg("text", { x: this.width, y: 16, "text-anchor": "end" }, measure.split(" [")[0]));
    this.axis.replaceChildren(root);
  }

  describeSeries(k) {
    const one = this.page.series[k], parts = [`${whole(one.count)} observations`, `longest gap ${this.timeFormat.length(one.gap)}`];
    if (one.error !== null) parts.push(`error ${show(one.error, 3)}`);
    if (one.surprise !== null) parts.push(`surprise ${show(one.surprise, 3)}`, `${whole(one.anomalies)} anomalies`);
    return parts;
  }

  describe() {
    const { page, timeFormat } = this, worst = page.series.reduce((a, b) => ((b.gap ?? -1) > (a.gap ?? -1) ? b : a));
    return `${whole(page.series.length)} series with ${whole(page.observations)} observations. The longest gap is ${timeFormat.length(worst.gap)}, in ${worst.id}.`;
  }

  listen() {
    const rowAt = (event) => Math.max(0, Math.min(this.order.length - 1, Math.floor((event.clientY - this.view.getBoundingClientRect().top + this.view.scrollTop) / this.height)));
    this.view.addEventListener("pointermove", (event) => {
      const k = this.order[rowAt(event)], box = this.view.getBoundingClientRect();
      this.tip.replaceChildren(el("b", {}, short(this.page.series[k].id, 60)), ...this.describeSeries(k).map((text) => el("div", {}, text)));
      this.tip.hidden = false;
      this.tip.style.left = `${Math.max(0, Math.min(box.width - this.tip.offsetWidth, event.clientX - box.left + 14))}px`;
      this.tip.style.top = `${Math.max(0, event.clientY - box.top - this.tip.offsetHeight - 8)}px`;
    });
    this.view.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.view.addEventListener("click", (event) => this.open(this.order[rowAt(event)]));
    this.view.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.floor(this.view.clientHeight / this.height) - 1), end = this.order.length - 1;
      const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -end, End: end }[event.key];
      if (event.key === "Enter") this.open(this.order[this.row]);
      else if (step) {
        this.row = Math.max(0, Math.min(end, this.row + step));
        const top = this.row * this.height, { scrollTop, clientHeight } = this.view;
        if (top < scrollTop) this.view.scrollTop = top;
        else if (top + this.height > scrollTop + clientHeight) this.view.scrollTop = top + this.height - clientHeight;
        const k = this.order[this.row];
        this.live.textContent = `${short(this.page.series[k].id, 60)}: ${this.describeSeries(k).join(", ")}`;
        this.mark();
      } else return;
      event.preventDefault();
    });
  }

  /** The table of the first rows in the chosen order. */
  list() {
    const { page, timeFormat } = this, shown = this.order.slice(0, TABLE_ROWS), hasAnomalies = page.series.some((one) => one.surprise !== null);
    const link = (k) => el("button", { type: "button", class: "plain", onclick: () => this.open(k) }, short(page.series[k].id, 60));
    const rows = shown.map((k) => { const one = page.series[k]; return [link(k), whole(one.count), one.first === null ? "–" : timeFormat.format(one.first), one.last === null ? "–" : timeFormat.format(one.last), timeFormat.length(one.gap), show(one.error, 3), ...(hasAnomalies ? [show(one.surprise, 3), whole(one.anomalies)] : [])]; });
    const caption = this.order.length > TABLE_ROWS ? `The first ${TABLE_ROWS} of ${whole(this.order.length)} series, sorted by ${ORDERS[this.by][0]}` : `Sorted by ${ORDERS[this.by][0]}`;
    this.rows.replaceChildren(table([page.id_name || "series", "observations", "first", "last", "longest gap", "error", ...(hasAnomalies ? ["surprise", "anomalies"] : [])], rows, { tall: true, label: "Series", caption }));
  }
}
