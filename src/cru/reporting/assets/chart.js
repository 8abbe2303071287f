"use strict";
// A chart: lines, bands, dots and rings over x, with zoom and pan (mouse, touch, keys) and values under the pointer.

const MARGIN = { left: 60, right: 20 }; // of every chart, so that those above each other share an axis
const PAD = 0.015;
const CLOSEST = 1e-4; // part of the whole range that one can zoom in to
const MANY = 600; // points from which a line is reduced to what is in sight
const STEP = 0.25; // part of the shown range that a key or button pans by

/** The zoom and the cursor that several charts share. */
class SharedZoom {
  constructor() { this.zoom = null; this.cursor = null; this.charts = new Set(); this.listeners = []; }
  addListener(listener) { this.listeners.push(listener); }
  setZoom(zoom) { this.zoom = zoom; for (const chart of this.charts) chart.draw(); }
  /** Zoom at the next frame: a gesture sends more events than there are frames. */
  schedule(zoom) {
    if (this.waiting === undefined) requestAnimationFrame(() => { const next = this.waiting; this.waiting = undefined; this.setZoom(next); });
    this.waiting = zoom;
  }
  setCursor(cursor) {
    this.cursor = cursor;
    for (const chart of this.charts) chart.point();
    for (const listener of this.listeners) listener(cursor);
  }
}

class Chart {
  /**
   * options: title, x {label, log, format, axis(domain, pixels) -> {ticks, format}}, y {label, log, zero, domain, show},
   * height, shared: a SharedZoom, controls: nodes beside the title, bare: no caption, no table and no labels of x,
   * stacked: lists values from front to back,
   * lines() -> [{name, color, dash, kind: line | dots | rings | band, x, y, low, high, width, quiet, loose, note}],
   * describe() -> a text description of the chart, more() -> further lines of the table.
   */
  constructor(options) {
    this.options = options;
    this.shared = options.shared || new SharedZoom();
    this.shared.charts.add(this);
    this.plot = el("div", { class: "plot" });
    this.tip = el("div", { class: "tip", role: "status", hidden: true });
    this.root = svg("svg", { role: "img", tabindex: 0 });
    this.listen();
    this.reset = el("button", { class: "reset", type: "button", hidden: true, onclick: () => this.shared.setZoom(null) }, "Whole range");
    this.plot.append(this.root, this.tip, ...(options.bare ? [] : [this.reset])); // they stay: a new root would lose the focus and the pointer
    this.node = el("figure", { class: options.wide ? "wide" : null },
      options.bare ? null : el("figcaption", {}, el("h3", {}, options.title), options.controls || null),
      this.plot,
      options.bare ? null : details("Values as a table", () => this.table()));
    this.resizeObserver = new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.draw(); });
    this.resizeObserver.observe(this.plot);
  }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    const { x, y, height = 240 } = this.options;
    this.lines = this.options.lines();
    const { left, right } = MARGIN, top = 10, bottom = this.options.bare ? 10 : 42;
    this.box = { left, top, right: this.width - right, bottom: height - bottom };
    this.full = x.domain || extent(this.lines.flatMap((l) => l.x), { log: x.log, pad: PAD }) || [0, 1];
    const domain = this.shared.zoom || this.full;
    const inside = this.lines.flatMap((l) => this.within(l, domain));
    const range = y.domain || this.loosen(extent(inside, { log: y.log, zero: y.zero }), domain) || [0, 1];
    this.sx = scale(domain, [left, this.box.right], x.log, x.whole);
    this.sy = scale(range, [this.box.bottom, top], y.log);
    if (x.axis) Object.assign(this.sx, x.axis(domain, this.box.right - left));
    setContent(this.root, { width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, "aria-label": this.describe() }, []);
    this.root.replaceChildren();
    const clip = `clip${Chart.count = (Chart.count || 0) + 1}`;
    this.root.append(svg("clipPath", { id: clip }, svg("rect", { x: left, y: top, width: Math.max(0, this.box.right - left), height: Math.max(0, this.box.bottom - top) })));
    axes(this.root, this.sx, this.sy, this.box, this.options.bare ? { ...x, hidden: true } : x, y);
    const marks = svg("g", { "clip-path": `url(#${clip})` });
    if (this.options.under) marks.append(...this.options.under(this.sx, this.sy, this.box));
    const drawn = this.lines.map((line) => reduce(line, domain, this.box.right - left));
    for (const line of drawn) if (line.low) marks.append(this.band(line));
    for (const line of drawn) marks.append(...this.mark(line));
    this.over = svg("g", {});
    this.root.append(marks, this.over);
    this.reset.hidden = !this.shared.zoom;
    this.tip.hidden = true;
    this.point();
  }

  within(line, [low, high]) {
    const found = [];
    for (let k = 0; k < line.x.length; k++) {
      if (line.x[k] < low || line.x[k] > high) continue;
      if (line.kind !== "band") found.push(line.y[k]);
      if (line.low && !line.loose) found.push(line.low[k], line.high[k]);
    }
    return found;
  }

  /** Loose bands widen the range of y, but by not more than its length on each side. */
  loosen(range, [left, right]) {
    const bands = this.lines.filter((line) => line.kind === "band" && line.loose);
    const edges = bands.flatMap((line) => line.x.flatMap((x, k) => (x < left || x > right ? [] : [line.low[k], line.high[k]])));
    const wide = extent(edges, { log: this.options.y.log });
    if (!range || !wide || this.options.y.log) return range || wide;
    const length = range[1] - range[0];
    return [Math.min(range[0], Math.max(wide[0], range[0] - length)), Math.max(range[1], Math.min(wide[1], range[1] + length))];
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
    return svg("path", { d, class: "band", style: `fill:${line.color};opacity:${line.opacity || "var(--band)"}`, stroke: "none" });
  }

  mark(line) {
    if (line.kind === "band") return [];
    if (line.kind === "dots" || line.kind === "rings") {
      const ring = line.kind === "rings", [low, high] = this.sx.domain, radius = line.radius || (ring ? 2.6 : 2.4);
      let d = ""; // all points are one path: a stroke of length 0 with round ends is a dot
      line.x.forEach((x, k) => { if (line.y[k] !== null && x >= low && x <= high) d += `M${this.sx.map(x).toFixed(1)},${this.sy.map(line.y[k]).toFixed(1)}h0`; });
      const dots = (color, width) => svg("path", { d, style: `stroke:${color};stroke-width:${width};stroke-linecap:round;fill:none`, "data-dots": line.name });
      return ring ? [dots(line.color, 2 * radius + 1), dots("var(--paper)", 2 * radius - 1)] : [dots(line.color, 2 * radius)];
    }
    const style = `stroke:${line.color};stroke-width:${line.width || 1.7};fill:none;stroke-linejoin:round`;
    const drawn = [svg("path", { d: this.path(line.x, line.y), style, "stroke-dasharray": (line.dash || []).join(" ") || null, "data-line": line.name })];
    if (line.dots) drawn.push(...this.mark({ ...line, kind: "dots" }));
    return drawn;
  }

  /** Mouse: drag to zoom, shift-drag or the wheel to pan. Touch: one finger pans, two fingers zoom. Keys: see `key`. */
  listen() {
    let start = null, brush = null, before = null;
    const fingers = new Map();
    const at = (event) => Math.min(this.box.right, Math.max(this.box.left, event.clientX - this.root.getBoundingClientRect().left));
    this.root.addEventListener("pointerdown", (event) => {
      if (!this.box) return;
      this.root.setPointerCapture(event.pointerId);
      if (event.pointerType !== "mouse") fingers.set(event.pointerId, at(event));
      const pans = event.pointerType !== "mouse" || event.shiftKey || event.button === 1;
      start = pans ? null : at(event);
      before = pans ? { domain: this.sx.domain, fingers: [...fingers.values()], x: at(event) } : null;
    });
    this.root.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      const here = at(event);
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, here);
      if (before && event.buttons) this.drag(before, here, [...fingers.values()]);
      else if (start !== null && Math.abs(here - start) > 4) {
        if (!brush) { brush = svg("rect", { class: "brush", y: this.box.top, height: this.box.bottom - this.box.top }); this.root.append(brush); }
        brush.setAttribute("x", Math.min(start, here));
        brush.setAttribute("width", Math.abs(here - start));
      }
      this.shared.setCursor(this.snap(this.sx.invert(here)));
      this.hover(here, event.clientY - this.root.getBoundingClientRect().top);
    });
    const end = (event) => {
      const from = start, to = this.box && at(event), shown = brush && brush.isConnected;
      fingers.delete(event.pointerId);
      start = brush = null;
      before = fingers.size ? { domain: this.sx.domain, fingers: [...fingers.values()], x: [...fingers.values()][0] } : null;
      if (shown && event.type === "pointerup") this.zoomTo([from, to].map(this.sx.invert).sort((a, b) => a - b));
    };
    this.root.addEventListener("pointerup", end);
    this.root.addEventListener("pointercancel", end);
    this.root.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.root.addEventListener("dblclick", () => this.shared.setZoom(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("wheel", (event) => {
      const aside = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (!this.box || this.sx.log) return;
      if (event.ctrlKey || event.metaKey) this.zoomBy(Math.exp(0.01 * Math.max(-50, Math.min(50, event.deltaY))), this.sx.invert(at(event)), true);
      else if (this.shared.zoom && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) this.pan(aside / (this.box.right - this.box.left), true);
      else return;
      event.preventDefault();
    }, { passive: false });
  }

  /** Move or stretch the range that was shown `before`, so that it follows one or two pointers. */
  drag(before, here, fingers) {
    if (this.sx.log) return;
    const [low, high] = before.domain, old = scale(before.domain, [this.box.left, this.box.right]);
    if (fingers.length > 1 && before.fingers.length > 1) {
      const apart = (pair) => Math.max(8, Math.abs(pair[0] - pair[1])), middle = (pair) => (pair[0] + pair[1]) / 2;
      const factor = apart(before.fingers) / apart(fingers), held = old.invert(middle(before.fingers)), length = (high - low) * factor;
      const left = held - (length * (middle(fingers) - this.box.left)) / (this.box.right - this.box.left);
      this.zoomTo([left, left + length], true);
    } else if (this.shared.zoom) {
      const shift = old.invert(before.x) - old.invert(here);
      this.zoomTo([low + shift, high + shift], true);
    }
  }

  /** Show a range of x, inside of the whole range. */
  zoomTo([low, high], later = false) {
    const [first, last] = this.full, whole = last - first, length = Math.max(CLOSEST * whole, high - low);
    const left = Math.max(first, Math.min(low, last - length));
    const zoom = this.sx.log ? [low, high] : length >= 0.999 * whole ? null : [left, left + length];
    if (later) this.shared.schedule(zoom); else this.shared.setZoom(zoom);
  }

  zoomBy(factor, around = this.shared.cursor, later = false) {
    const [low, high] = this.shared.waiting || this.sx.domain, inside = around !== null && around >= low && around <= high;
    const held = inside ? around : (low + high) / 2;
    this.zoomTo([held - (held - low) * factor, held + (high - held) * factor], later);
  }

  pan(part, later = false) {
    const [low, high] = this.shared.waiting || this.sx.domain, shift = part * (high - low);
    this.zoomTo([low + shift, high + shift], later);
  }

  /** Arrows move the cursor and, with shift, the range; + and - zoom; Escape shows all. */
  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], zoom = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    const end = { Home: 0, End: -1 }[event.key], xs = this.positions();
    if (move && event.shiftKey && !this.sx.log) this.pan(STEP * move);
    else if ((move || end !== undefined) && xs.length) {
      const here = end !== undefined ? xs.length + end : this.shared.cursor === null ? (move > 0 ? 0 : xs.length - 1) : nearest(xs, this.shared.cursor) + move;
      this.shared.setCursor(xs[end === 0 ? 0 : Math.min(xs.length - 1, Math.max(0, here))]);
      this.hover(this.sx.map(this.shared.cursor), this.box.top + 8);
    } else if (zoom && !this.sx.log) this.zoomBy(zoom);
    else if (event.key === "Escape") this.shared.setZoom(null);
    else return;
    event.preventDefault();
  }

  positions() {
    const [low, high] = this.sx.domain;
    return [...new Set(this.lines.flatMap((line) => line.x))].filter((x) => x >= low && x <= high).sort((a, b) => a - b);
  }

  snap(value) { const xs = this.positions(); return xs.length ? xs[nearest(xs, value)] : value; }

  /** Move the cursor line in this chart and in all charts with the same zoom. */
  point() {
    if (!this.over) return;
    const x = this.shared.cursor, [low, high] = this.sx.domain;
    if (x === null || x < low || x > high) { this.over.replaceChildren(); return; }
    const at = this.sx.map(x);
    this.over.replaceChildren(svg("line", { class: "cursor", x1: at, x2: at, y1: this.box.top, y2: this.box.bottom }));
  }

  hover(left, top) {
    const x = this.shared.cursor;
    if (x === null) return;
    const rows = [];
    for (const line of this.lines) {
      if (line.quiet) continue;
      const k = line.x.indexOf(x);
      if (k >= 0 && (line.kind === "band" ? line.low : line.y)[k] !== null) rows.push([line, k]);
    }
    const height = ([line, k]) => Math.abs(this.sy.map(line.y[k]) - top);
    if (this.options.stacked) rows.reverse();
    else rows.sort((a, b) => height(a) - height(b));
    const format = this.options.x.format || ((v) => show(v));
    this.tip.replaceChildren(el("b", {}, `${this.options.x.name ?? "x"} ${format(x)}`),
      ...rows.slice(0, 10).map(([line, k]) => el("div", { class: "line" }, swatch(line), el("span", {}, line.name), el("span", {}, this.value(line, k)))),
      rows.length > 10 ? el("div", { class: "soft" }, `and ${rows.length - 10} more`) : "");
    this.tip.hidden = rows.length === 0;
    const wide = this.tip.offsetWidth, beside = left + 14 + wide > this.width ? left - wide - 14 : left + 14;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - wide, beside))}px`;
    this.tip.style.top = `${Math.max(0, Math.min(this.box.bottom - this.tip.offsetHeight, top - 10))}px`;
  }

  /** A point of a line as text, with its band. */
  value(line, k) {
    const write = this.options.y.show || show, band = line.low ? `${write(line.low[k], 3)} to ${write(line.high[k], 3)}` : "";
    if (line.kind === "band") return band;
    return write(line.y[k]) + (band ? ` (${band})` : "") + (line.note ? ` ${line.note(k)}` : "");
  }

  describe() {
    const { title, x, y } = this.options;
    if (this.options.describe) return this.options.describe();
    const parts = this.lines.filter((l) => !l.quiet && l.kind !== "band").map((line) => {
      const known = line.y.map((v, k) => [v, line.x[k]]).filter(([v]) => v !== null);
      if (!known.length) return `${line.name}: nothing`;
      const low = known.reduce((a, b) => (b[0] < a[0] ? b : a)), high = known.reduce((a, b) => (b[0] > a[0] ? b : a));
      return `${line.name}: ${known.length} points, from ${show(low[0])} at ${show(low[1])} up to ${show(high[0])} at ${show(high[1])}`;
    });
    return `${title}. ${y.label} against ${x.label}. ${parts.join("; ") || "Nothing to show"}.`;
  }

  table() {
    const lines = [...this.lines.filter((l) => !l.quiet), ...(this.options.more ? this.options.more() : [])], xs = [...new Set(lines.flatMap((l) => l.x))].sort((a, b) => a - b);
    const format = this.options.x.format || ((v) => show(v));
    const place = lines.map((line) => new Map(line.x.map((x, k) => [x, k])));
    const value = (line, k) => k === undefined || (line.kind === "band" ? line.low : line.y)[k] === null ? "" : this.value(line, k);
    return table([this.options.x.label, ...lines.map((l) => l.name)],
      xs.map((x) => [format(x), ...lines.map((line, n) => value(line, place[n].get(x)))]), { tall: true, label: this.options.title });
  }
}

/** The part of a long line that is in sight, with the extremes of groups of points where there are more than pixels. */
function reduce(line, [low, high], pixels) {
  const round = line.kind === "dots" || line.kind === "rings";
  if (round || line.x.length < MANY) return line;
  const first = Math.max(0, line.x.findIndex((x) => x >= low) - 1), after = line.x.findIndex((x) => x > high), last = after < 0 ? line.x.length : after + 1;
  const size = Math.ceil((last - first) / (1.5 * Math.max(1, pixels))), cut = (list) => list && list.slice(first, last);
  const part = { ...line, x: cut(line.x), y: cut(line.y), low: cut(line.low), high: cut(line.high) };
  if (size < 2) return part;
  const groups = Array.from({ length: Math.ceil(part.x.length / size) }, (_, n) => Array.from({ length: Math.min(size, part.x.length - n * size) }, (__, k) => n * size + k));
  const least = (list, ks) => ks.reduce((a, b) => (list[b] < list[a] ? b : a)), most = (list, ks) => ks.reduce((a, b) => (list[b] > list[a] ? b : a));
  if (part.low) {
    const middle = groups.map((ks) => part.x[ks[ks.length >> 1]]);
    return { ...part, x: middle, y: part.y && groups.map((ks) => part.y[ks[ks.length >> 1]]), low: groups.map((ks) => part.low[least(part.low, ks)]), high: groups.map((ks) => part.high[most(part.high, ks)]) };
  }
  const kept = groups.flatMap((ks) => [...new Set([least(part.y, ks), most(part.y, ks)])].sort((a, b) => a - b));
  return { ...part, x: kept.map((k) => part.x[k]), y: kept.map((k) => part.y[k]) };
}

function swatch(line) {
  if (line.kind === "band") return svg("svg", { width: 18, height: 10, "aria-hidden": "true" }, svg("rect", { width: 18, height: 10, style: `fill:${line.color};opacity:${line.opacity || "var(--band)"}` }));
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
    if (!x.hidden) root.append(svg("text", { x: at, y: box.bottom + 17, "text-anchor": "middle", "data-x": tick }, (sx.format || x.format || show)(tick)));
  }
  root.append(svg("line", { class: "axis-line", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  if (!x.hidden) root.append(svg("text", { class: "name", x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle" }, x.label));
  const middle = (box.top + box.bottom) / 2;
  root.append(svg("text", { class: "name", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.label));
}
