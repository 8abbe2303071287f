"use strict";
// Frames of a sequence of images at the time of the cursor: inputs, truth and predictions.

class Frames {
  constructor(context, series, runs, shared) {
    Object.assign(this, { context, series, shared });
    const { height, width } = series.frames;
    const sheets = [[series.frames.truth ? "seen" : "input", series.frames.seen, "seen"]];
    if (series.frames.truth) sheets.unshift(["truth", series.frames.truth, "truth"]);
    for (const run of runs) {
      const prediction = series.predictions[run.id];
      if (prediction?.frames) sheets.push([context.label(run), prediction.frames, run.model]);
    }
    this.sheets = sheets.map(([name, source, kind]) => {
      const image = new Image(), canvas = el("canvas", { width, height, role: "img" });
      image.onload = () => { this.draw(); this.strip.draw(); };
      image.src = source;
      const node = el("figure", {}, canvas, el("figcaption", {}, name));
      return { name, kind, image, canvas, node };
    });
    this.strip = new FrameStrip(this, shared);
    this.slider = el("input", { type: "range", class: "step", min: 0, max: series.times.length - 1, value: 0, "aria-label": "Frame", oninput: () => this.go(Number(this.slider.value)) });
    this.label = el("span", { class: "small" });
    const button = (text, name, step) => el("button", { type: "button", "aria-label": name, onclick: () => this.go(this.at + step) }, text);
    this.node = el("div", {}, el("div", { class: "frames" }, this.sheets.map((sheet) => sheet.node)),
      this.strip.node, el("div", { class: "bar" }, button("‹", "Previous frame", -1), this.slider, button("›", "Next frame", 1), this.label));
    this.at = 0;
    shared.addListener((cursor) => { if (cursor !== null) this.put(nearest(series.times, cursor)); });
    this.put(0);
  }

  go(k) {
    const at = Math.max(0, Math.min(this.series.times.length - 1, k));
    this.shared.setCursor(this.series.times[at]);
    this.put(at);
  }

  put(k) {
    this.at = k;
    this.slider.value = k;
    const noise = this.series.noise ? `, ${percent(this.series.noise[k])} noise` : "";
    this.label.textContent = `${k + 1} of ${this.series.times.length}, at ${show(this.series.times[k])}${noise}`;
    this.draw();
  }

  shown(sheet) { return !this.context.models.number.has(sheet.kind) || this.context.models.shown(sheet.kind); }

  /** Draw frame `k` of a sheet on a canvas. Return false if it was withheld. */
  paint(pen, sheet, k, left, size) {
    const { height, width, observed } = this.series.frames, unseen = sheet.kind === "seen" && observed[k] === "0";
    pen.imageSmoothingEnabled = false;
    pen.fillStyle = "#777";
    if (unseen) pen.fillRect(left, 0, size, size);
    else if (sheet.image.complete) pen.drawImage(sheet.image, 0, k * height, width, height, left, 0, size, size);
    return !unseen;
  }

  draw() {
    for (const sheet of this.sheets) {
      sheet.node.hidden = !this.shown(sheet);
      const unseen = !this.paint(sheet.canvas.getContext("2d"), sheet, this.at, 0, this.series.frames.width);
      sheet.canvas.setAttribute("aria-label", `${sheet.name}, frame ${this.at + 1} of ${this.series.times.length}${unseen ? ", withheld" : ""}`);
      sheet.node.lastChild.textContent = unseen ? `${sheet.name}: withheld` : sheet.name;
    }
  }
}

/** Rows of small frames along the time axis of the charts with the same zoom, as many as fit. */
class FrameStrip {
  constructor(frames, shared) {
    Object.assign(this, { frames, shared });
    shared.charts.add(this);
    this.node = el("div", { class: "frame-strip" });
    new ResizeObserver(() => { if (this.node.clientWidth !== this.width) this.draw(); }).observe(this.node);
  }

  draw() {
    this.width = this.node.clientWidth;
    if (!this.width) return;
    const { times } = this.frames.series, size = this.width < 600 ? 22 : 30, wide = this.width - MARGIN.left;
    const domain = this.shared.zoom || extent(times, { pad: PAD });
    const sx = scale(domain, [0, wide - MARGIN.right]), chosen = [];
    times.forEach((time, k) => {
      const here = sx.map(time), last = chosen.length ? chosen.at(-1)[1] : -Infinity;
      if (time >= domain[0] && time <= domain[1] && here - last >= size + 2) chosen.push([k, here]);
    });
    const ratio = window.devicePixelRatio || 1;
    this.node.replaceChildren(...this.frames.sheets.filter((sheet) => this.frames.shown(sheet)).map((sheet) => {
      const canvas = el("canvas", { width: wide * ratio, height: size * ratio, style: `width:${wide}px;height:${size}px`, role: "img", "aria-label": `${sheet.name}: ${chosen.length} of ${times.length} frames at their times` });
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      for (const [k, here] of chosen) this.frames.paint(pen, sheet, k, Math.min(wide - size, Math.max(0, here - size / 2)), size);
      canvas.addEventListener("pointermove", (event) => this.shared.setCursor(times[nearest(times, sx.invert(event.offsetX))]));
      return el("div", {}, el("span", { title: sheet.name }, sheet.name), canvas);
    }));
  }

  point() {}
}
