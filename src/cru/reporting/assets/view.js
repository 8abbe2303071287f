"use strict";
// Build the page of a table and its model from the page's data.

(function () {
  const data = JSON.parse(document.getElementById("data").textContent), root = document.getElementById("page"), timeFormat = new TimeFormat(data.clock);
  const explorer = new Explorer(data, timeFormat), { scores } = data;
  const facts = [["series", whole(data.series.length)], ["observations", whole(data.observations)], ["variables", whole(data.names.length)], ["R²", show(scores.r2, 3)],
    ["R² of the last value", show(scores.r2_last_value, 3)], ...(scores.coverage90 === undefined ? [] : [["inside 90 %", percent(Number(scores.coverage90.toFixed(3)))]])];
  const header = el("header", {}, el("p", { class: "over" }, "cru view"), el("h1", {}, data.title),
    el("p", { class: "soft" }, `${data.own_table ? "A table, seen by a fitted model" : "The training table of a fitted model"} · forecast of ${timeFormat.length(data.horizon)} · written ${data.made}`),
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  const map = data.series.length > 1 ? new GapMap(data, timeFormat, (k) => { explorer.open(k); explorer.node.scrollIntoView({ block: "start" }); }) : null;
  const qualitySection = quality(data, timeFormat), trained = data.training.map(([name, text]) => [name, name === "median gap" ? timeFormat.length(data.gap) : text]);
  const training = el("section", { id: "training" }, el("header", {}, el("h2", {}, "What the model was trained on")),
    table(["", ""], trained, { label: "Training", text: [0, 1], prose: true }), data.notes.map((note) => el("p", { class: "soft small" }, note)));
  root.replaceChildren(header, explorer.node, ...(map ? [map.node] : []), qualitySection.node, training);
  if (map) {
    map.addListener((order) => explorer.sort(order));
    explorer.addListener((k) => map.choose(k));
  }
  explorer.sort(explorer.order);
  explorer.open(data.series.findIndex((series) => series.data));
  if (map) map.list();
  for (const chart of qualitySection.charts) chart.draw();
  document.documentElement.dataset.drawn = "true";
})();
