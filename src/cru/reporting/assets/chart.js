"use strict";
// A chart: lines, bands, dots and rings over x, with zoom (drag, keys) and values under the pointer.

const MARGIN = { left: 60, right: 20 }; // of every chart, so that those above each other share an axis
const PAD = 0.015;

/** Charts with the same link share their zoom and their cursor. */
class Link {
  constructor() { this.zoom = null; this.cursor = null; this.charts = new Set(); this.heard = []; }
  setZoom(zoom) { this.zoom = zoom; for (const chart of this.charts) chart.draw(); }
  setCursor(cursor) {
    this.cursor = cursor;
    for (const chart of this.charts) chart.point();
    for (const hear of this.heard) hear(cursor);
  }
}

class Chart {
  /**
   * options: title, x {label, log, format}, y {label, log, zero, domain}, height, link, note,
   * lines() -> [{name, color, dash, kind: line | dots | rings | steps, x, y, low, high, width, quiet}],
   * say() -> a text description of the chart, controls: nodes beside the title.
   */
  constructor(options) {
    this.options = options;
    this.link = options.link || new Link();
    this.link.charts.add(this);
    this.plot = el("div", { class: "plot" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.node = el("figure", { class: options.wide ? "wide" : null },
      el("figcaption", {}, el("h3", {}, options.title), options.controls || null),
      this.plot,
      details("Values as a table", () => this.table()));
    this.seen = new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.draw(); });
    this.seen.observe(this.plot);
  }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    const { x, y, height = 240 } = this.options;
    this.lines = this.options.lines();
    const { left, right } = MARGIN, top = 10, bottom = 42;
    this.box = { left, top, right: this.width - right, bottom: height - bottom };
    const full = x.domain || extent(this.lines.flatMap((l) => l.x), { log: x.log, pad: PAD }) || [0, 1];
    const domain = this.link.zoom || full;
    const inside = this.lines.flatMap((l) => this.within(l, domain));
    const range = y.domain || extent(inside, { log: y.log, zero: y.zero }) || [0, 1];
    this.sx = scale(domain, [left, this.box.right], x.log, x.whole);
    this.sy = scale(range, [this.box.bottom, top], y.log);
    this.root = svg("svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "img", tabindex: 0, "aria-label": this.say() });
    const clip = `clip${Chart.count = (Chart.count || 0) + 1}`;
    this.root.append(svg("clipPath", { id: clip }, svg("rect", { x: left, y: top, width: Math.max(0, this.box.right - left), height: Math.max(0, this.box.bottom - top) })));
    axes(this.root, this.sx, this.sy, this.box, x, y);
    const marks = svg("g", { "clip-path": `url(#${clip})` });
    if (this.options.under) marks.append(...this.options.under(this.sx, this.sy, this.box));
    for (const line of this.lines) if (line.low) marks.append(this.band(line));
    for (const line of this.lines) marks.append(...this.mark(line));
    this.over = svg("g", {});
    this.root.append(marks, this.over);
    this.listen();
    this.plot.replaceChildren(this.root, this.tip);
    if (this.link.zoom) this.plot.append(el("button", { class: "reset", type: "button", onclick: () => this.link.setZoom(null) }, "Whole range"));
    this.tip.hidden = true;
    this.point();
  }

  within(line, [low, high]) {
    const found = [];
    for (let k = 0; k < line.x.length; k++) {
      if (line.x[k] < low || line.x[k] > high) continue;
      found.push(line.y[k]);
      if (line.low && !line.loose) found.push(line.low[k], line.high[k]);
    }
    return found;
  }

  path(x, y) {
    let text = "", pen = "M";
    for (let k = 0; k < x.length; k++) {
      if (y[k] === null || (this.sy.log && y[k] <= 0)) { pen = "M"; continue; }
      text += `${pen}${this.sx.map(x[k]).toFixed(1)},${this.sy.map(y[k]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  band(line) {
    const stretches = [[]]; // one shape for each stretch without a hole
    line.x.forEach((_, k) => { if (line.low[k] === null || line.high[k] === null) stretches.push([]); else stretches.at(-1).push(k); });
    const edge = (ks, y) => this.path(ks.map((k) => line.x[k]), ks.map((k) => y[k]));
    const d = stretches.filter((ks) => ks.length > 1).map((ks) => edge(ks, line.high) + edge([...ks].reverse(), line.low).replace("M", "L") + "Z").join("");
    return svg("path", { d, class: "band", style: `fill:${line.color};opacity:var(--band)`, stroke: "none" });
  }

  mark(line) {
    if (line.kind === "dots" || line.kind === "rings") {
      const ring = line.kind === "rings";
      const style = ring ? `stroke:${line.color};fill:var(--paper)` : `fill:${line.color}`;
      const [low, high] = this.sx.domain;
      return line.x.map((x, k) => line.y[k] === null || x < low || x > high ? null : svg("circle", {
        cx: this.sx.map(x).toFixed(1), cy: this.sy.map(line.y[k]).toFixed(1), r: line.radius || (ring ? 2.6 : 2.4), style,
      })).filter(Boolean);
    }
    const style = `stroke:${line.color};stroke-width:${line.width || 1.7};fill:none;stroke-linejoin:round`;
    const drawn = [svg("path", { d: this.path(line.x, line.y), style, "stroke-dasharray": (line.dash || []).join(" ") || null, "data-line": line.name })];
    if (line.dots) drawn.push(...this.mark({ ...line, kind: "dots" }));
    return drawn;
  }

  /** Pointer and keys. */
  listen() {
    let start = null, brush = null;
    const at = (event) => Math.min(this.box.right, Math.max(this.box.left, event.clientX - this.root.getBoundingClientRect().left));
    this.root.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { start = at(event); this.root.setPointerCapture(event.pointerId); } });
    this.root.addEventListener("pointermove", (event) => {
      const here = at(event);
      if (start !== null && Math.abs(here - start) > 4) {
        if (!brush) { brush = svg("rect", { class: "brush", y: this.box.top, height: this.box.bottom - this.box.top }); this.root.append(brush); }
        brush.setAttribute("x", Math.min(start, here));
        brush.setAttribute("width", Math.abs(here - start));
      }
      this.link.setCursor(this.snap(this.sx.invert(here)));
      this.hover(here, event.clientY - this.root.getBoundingClientRect().top);
    });
    this.root.addEventListener("pointerup", (event) => {
      const from = start, to = at(event);
      start = null;
      if (brush) { brush.remove(); brush = null; this.link.setZoom([from, to].map(this.sx.invert).sort((a, b) => a - b)); }
    });
    this.root.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.root.addEventListener("dblclick", () => this.link.setZoom(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], zoom = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    const [low, high] = this.sx.domain, xs = this.positions();
    if (move && xs.length) {
      const here = this.link.cursor === null ? (move > 0 ? 0 : xs.length - 1) : nearest(xs, this.link.cursor) + move;
      this.link.setCursor(xs[Math.min(xs.length - 1, Math.max(0, here))]);
      this.hover(this.sx.map(this.link.cursor), this.box.top + 8);
    } else if (zoom && !this.sx.log) {
      const middle = this.link.cursor ?? (low + high) / 2, half = ((high - low) * zoom) / 2;
      this.link.setZoom([middle - half, middle + half]);
      this.root.focus();
    } else if (event.key === "Escape") { this.link.setZoom(null); this.root.focus(); } else return;
    event.preventDefault();
  }

  positions() {
    const [low, high] = this.sx.domain;
    return [...new Set(this.lines.flatMap((line) => line.x))].filter((x) => x >= low && x <= high).sort((a, b) => a - b);
  }

  snap(value) { const xs = this.positions(); return xs.length ? xs[nearest(xs, value)] : value; }

  /** Move the cursor line in this chart and in all linked charts. */
  point() {
    if (!this.over) return;
    const x = this.link.cursor, [low, high] = this.sx.domain;
    if (x === null || x < low || x > high) { this.over.replaceChildren(); return; }
    const at = this.sx.map(x);
    this.over.replaceChildren(svg("line", { class: "cursor", x1: at, x2: at, y1: this.box.top, y2: this.box.bottom }));
  }

  hover(left, top) {
    const x = this.link.cursor;
    if (x === null) return;
    const rows = [];
    for (const line of this.lines) {
      if (line.quiet) continue;
      const k = line.x.indexOf(x);
      if (k >= 0 && line.y[k] !== null) rows.push([line, line.y[k], line.low ? `${show(line.low[k], 3)} to ${show(line.high[k], 3)}` : ""]);
    }
    rows.sort((a, b) => Math.abs(this.sy.map(a[1]) - top) - Math.abs(this.sy.map(b[1]) - top));
    const format = this.options.x.format || ((v) => show(v));
    this.tip.replaceChildren(el("b", {}, `${this.options.x.name || "x"} ${format(x)}`),
      ...rows.slice(0, 10).map(([line, y, band]) => el("div", { class: "line" }, swatch(line), el("span", {}, line.name), el("span", {}, show(y), band ? ` (${band})` : ""))),
      rows.length > 10 ? el("div", { class: "soft" }, `and ${rows.length - 10} more`) : "");
    this.tip.hidden = rows.length === 0;
    const wide = this.tip.offsetWidth, beside = left + 14 + wide > this.width ? left - wide - 14 : left + 14;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - wide, beside))}px`;
    this.tip.style.top = `${Math.max(0, Math.min(this.box.bottom - this.tip.offsetHeight, top - 10))}px`;
  }

  say() {
    const { title, x, y } = this.options;
    const parts = this.lines.filter((l) => !l.quiet).map((line) => {
      const known = line.y.map((v, k) => [v, line.x[k]]).filter(([v]) => v !== null);
      if (!known.length) return `${line.name}: nothing`;
      const low = known.reduce((a, b) => (b[0] < a[0] ? b : a)), high = known.reduce((a, b) => (b[0] > a[0] ? b : a));
      return `${line.name}: ${known.length} points, from ${show(low[0])} at ${show(low[1])} up to ${show(high[0])} at ${show(high[1])}`;
    });
    return `${title}. ${y.label} against ${x.label}. ${parts.join("; ") || "Nothing to show"}.`;
  }

  table() {
    const lines = this.lines.filter((l) => !l.quiet), xs = [...new Set(lines.flatMap((l) => l.x))].sort((a, b) => a - b);
    const format = this.options.x.format || ((v) => show(v));
    const place = lines.map((line) => new Map(line.x.map((x, k) => [x, k])));
    const value = (line, k) => k === undefined || line.y[k] === null ? "" : show(line.y[k]) + (line.low ? ` (${show(line.low[k], 3)} to ${show(line.high[k], 3)})` : "");
    return table([this.options.x.label, ...lines.map((l) => l.name)],
      xs.map((x) => [format(x), ...lines.map((line, n) => value(line, place[n].get(x)))]), { tall: true, label: this.options.title });
  }
}

function swatch(line) {
  const round = line.kind === "dots" || line.kind === "rings";
  return svg("svg", { width: 18, height: 10, "aria-hidden": "true" }, round
    ? svg("circle", { cx: 9, cy: 5, r: 3, style: line.kind === "rings" ? `stroke:${line.color};fill:none` : `fill:${line.color}` })
    : svg("line", { x1: 0, x2: 18, y1: 5, y2: 5, style: `stroke:${line.color};stroke-width:2`, "stroke-dasharray": (line.dash || []).join(" ") || null }));
}

function axes(root, sx, sy, box, x, y) {
  for (const tick of sy.ticks) {
    const at = sy.map(tick);
    root.append(svg("line", { class: "grid-line", x1: box.left, x2: box.right, y1: at, y2: at }),
      svg("text", { x: box.left - 7, y: at + 4, "text-anchor": "end", "data-y": tick }, (y.format || show)(tick)));
  }
  for (const tick of sx.ticks) {
    const at = sx.map(tick);
    root.append(svg("line", { class: "axis-line", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
    root.append(svg("text", { x: at, y: box.bottom + 17, "text-anchor": "middle", "data-x": tick }, (x.format || show)(tick)));
  }
  root.append(svg("line", { class: "axis-line", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  root.append(svg("text", { class: "name", x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle" }, x.label));
  const middle = (box.top + box.bottom) / 2;
  root.append(svg("text", { class: "name", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.label));
}
