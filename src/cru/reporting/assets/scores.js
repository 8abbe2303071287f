"use strict";
// Scores: the tables of the paper with ours, and every run as a dot next to the range of the paper.

function scoreTable(context, source) {
  const best = {};
  for (const { preset } of source.columns) {
    const means = source.rows.map((row) => row.cells[preset]?.ours?.mean).filter((mean) => mean !== undefined);
    best[preset] = Math.min(...means);
  }
  const cells = (cell, preset) => {
    if (!cell) return [el("td", {}), el("td", {})];
    const paper = cell.paper ? `${fixed(cell.paper[0], source.digits)} ± ${fixed(cell.paper[1], source.digits)}` : "";
    if (!cell.ours) return [el("td", { class: "soft" }, paper), el("td", { class: "soft" }, "–")];
    const { mean, std, seeds, age } = cell.ours;
    const mark = cell.mark ? el("span", { class: `mark-${cell.mark}`, title: context.signs[context.marks[cell.mark]] }, ` ${context.marks[cell.mark]}`) : null;
    const text = `${fixed(mean, source.digits)}${std === null ? "" : ` ± ${fixed(std, source.digits)}`} (${seeds})${age}${cell.beaten ? "*" : ""}`;
    return [el("td", { class: "soft" }, paper), el("td", { class: mean === best[preset] ? "best" : null, "data-mean": mean }, text, mark)];
  };
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table ${source.number}` }, el("table", { class: "scores" },
    el("caption", {}, `Table ${source.number}. ${source.title}`),
    el("thead", {},
      el("tr", { class: "groups" }, el("td", {}), source.columns.map((column) => el("th", { colspan: 2, scope: "colgroup" }, column.name))),
      el("tr", {}, el("th", { scope: "col" }, "model"), source.columns.map(() => [el("th", { scope: "col" }, "paper"), el("th", { scope: "col" }, "ours")]))),
    el("tbody", {}, source.rows.map((row) => el("tr", {}, el("th", { scope: "row" }, context.name(row.model)), source.columns.map(({ preset }) => cells(row.cells[preset], preset)))))));
}

function scoreTables(context, tables) {
  const signs = Object.entries(context.signs).map(([sign, meaning]) => `${sign}: ${meaning}`).join(". ");
  const legend = `${signs}. Only full runs with the preset's settings are in these tables; the best epoch on validation is scored. Lower is better.`;
  return el("section", { id: "scores" }, el("header", {}, el("h2", {}, "Scores beside the paper's"), el("p", { class: "soft small" }, legend)),
    el("div", { class: "tables" }, tables.map((table) => scoreTable(context, table))));
}

/** Every run as a dot, with mean ± std of the paper as a bar. One row per model, the best first. */
class DotPlot {
  constructor(context, runs, experiment) {
    Object.assign(this, { context, runs: runs.filter((run) => Object.keys(run.test).length), paper: experiment.paper });
    this.metrics = Object.keys(METRICS).filter((name) => UNITS[name] && this.runs.some((run) => Number.isFinite(run.test[name])));
    this.metric = this.metrics[0];
    this.plot = el("div", { class: "plot" });
    this.node = el("figure", { class: "wide", id: "dots" },
      el("figcaption", {}, el("h3", {}, "Scores on the test set, one dot a run"),
        this.metrics.length > 1 ? choice("Score", this.metrics.map((name) => [name, METRICS[name]]), this.metric, (name) => { this.metric = name; this.draw(); }) : null),
      this.plot, details("Values as a table", () => this.table()));
    new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.draw(); }).observe(this.plot);
  }

  rows() {
    const printed = this.paper[this.metric] || {}, rows = new Map();
    for (const run of this.runs) {
      if (!this.context.models.shown(run.model) || !Number.isFinite(run.test[this.metric])) continue;
      if (!rows.has(run.model)) rows.set(run.model, { model: run.model, runs: [], paper: printed[run.model] });
      rows.get(run.model).runs.push(run);
    }
    const score = (row) => Math.min(...row.runs.map((run) => run.test[this.metric]));
    return [...rows.values()].sort((a, b) => score(a) - score(b));
  }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    const rows = this.rows(), left = Math.min(120, this.width * 0.3), height = 26 * rows.length + 62;
    const values = rows.flatMap((row) => [...row.runs.map((run) => run.test[this.metric]), ...(row.paper ? [row.paper[0] - row.paper[1], row.paper[0] + row.paper[1]] : [])]);
    const positive = values.filter((v) => v > 0), log = positive.length === values.length && Math.max(...values) > 8 * Math.min(...values);
    const box = { left, right: this.width - 14, top: 8, bottom: height - 46 };
    const sx = scale(extent(values, { log }) || [0, 1], [box.left, box.right], log);
    const root = svg("svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "img", "aria-label": this.describe(rows) });
    for (const tick of sx.ticks) {
      root.append(svg("line", { class: "grid-line", x1: sx.map(tick), x2: sx.map(tick), y1: box.top, y2: box.bottom }),
        svg("text", { x: sx.map(tick), y: box.bottom + 16, "text-anchor": "middle", "data-x": tick }, show(tick)));
    }
    root.append(svg("text", { class: "name", x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle" }, `test ${METRICS[this.metric]} [${UNITS[this.metric]}], lower is better`));
    rows.forEach((row, k) => {
      const y = box.top + 26 * k + 13, { color } = this.context.models.style(row.model);
      root.append(svg("text", { class: "row", x: left - 12, y: y + 4, "text-anchor": "end" }, this.context.name(row.model)));
      if (row.paper) {
        const [mean, std] = row.paper, low = Math.max(mean - std, log ? mean / 1e3 : -Infinity);
        root.append(svg("line", { class: "soft-line", x1: Math.max(box.left, sx.map(low)), x2: sx.map(mean + std), y1: y, y2: y, "stroke-width": 7, "stroke-opacity": 0.4 }),
          svg("line", { class: "ink-line", x1: sx.map(mean), x2: sx.map(mean), y1: y - 6, y2: y + 6, "stroke-width": 1.5 }));
      }
      for (const run of row.runs) {
        const dot = svg("circle", { cx: sx.map(run.test[this.metric]), cy: y, r: 5, "data-run": run.id, style: run.changed.length ? `stroke:${color};fill:var(--paper);stroke-width:2` : `fill:${color}` });
        dot.append(svg("title", {}, `${this.context.label(run)}: ${show(run.test[this.metric], 5)}`));
        root.append(dot);
      }
    });
    const bar = rows.some((row) => row.paper) ? " Grey bar: the paper's mean ± standard deviation." : "";
    const key = `Filled: as the preset has it. Open: shortened or changed.${bar}`;
    this.plot.replaceChildren(root, el("p", { class: "soft small" }, key));
  }

  describe(rows) {
    const words = rows.map((row) => `${this.context.name(row.model)}: ${row.runs.map((run) => show(run.test[this.metric])).join(", ")}${row.paper ? `, paper ${show(row.paper[0])} ± ${show(row.paper[1])}` : ""}`);
    return `Test ${METRICS[this.metric]} of each run. ${words.join("; ")}.`;
  }

  table() {
    const rows = this.rows().flatMap((row) => row.runs.map((run) => [this.context.label(run), show(run.test[this.metric], 6), row.paper ? `${show(row.paper[0])} ± ${show(row.paper[1])}` : ""]));
    return table(["run", `test ${METRICS[this.metric]}`, "paper"], rows, { label: "Scores" });
  }
}

/** A table with one line per run. */
function runTable(context, runs) {
  const metrics = ["mse", "nll", "coverage90"].filter((name) => runs.some((run) => Number.isFinite(run.test[name])));
  const head = ["run", ...metrics.map((name) => `test ${METRICS[name]}`), "best epoch", "s / epoch", "parameters", "finished", "settings", "commit"];
  const kinds = (run) => (!run.finished ? "not finished" : run.changed.length ? `changed: ${run.changed.join(", ")}` : "the preset's");
  const rows = runs.map((run) => [context.label(run), ...metrics.map((name) => (name === "coverage90" && Number.isFinite(run.test[name]) ? percent(run.test[name]) : show(run.test[name]))),
    !run.best_epoch ? "–" : `${run.best_epoch} of ${run.epochs}`, show(run.seconds, 3), whole(run.parameters), (run.finished || "–").slice(0, 10), kinds(run), (run.commit || "–").slice(0, 8)]);
  return table(head, rows, { text: [head.length - 2], label: "Runs" });
}
