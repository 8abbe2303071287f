"use strict";
// Build the page from its data.

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const models = new ModelStyles(data.styles), page = document.getElementById("page");
  const countSeeds = (run) => data.runs.filter((other) => other.preset === run.preset && other.model === run.model).length;
  const context = {
    models,
    bands: data.bands,
    marks: data.marks,
    signs: data.signs,
    name: (model) => (data.styles[model] ? models.name(model) : model),
    label: (run) => labels.get(run.id),
  };
  const flat = (object, where = "") => Object.entries(object).flatMap(([key, value]) =>
    value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${where}${key}.`) : [[where + key, JSON.stringify(value)]]);
  const labels = distinct(data.runs, (run) => models.name(run.model) + (countSeeds(run) > 1 ? `, seed ${run.seed}` : ""));
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  const header = el("header", {}, el("p", { class: "over" }, "cru report"), el("h1", {}, data.title), el("p", { class: "soft" },
    [plural(data.runs.length, "run"), plural(new Set(data.runs.map((run) => run.model)).size, "model"), plural(data.experiments.length, "experiment"), `written ${data.made}`].join(" · ")));
  if (data.runs.length === 1) header.append(facts(data.runs[0]));
  page.replaceChildren(header);
  if (data.tables.length) page.append(scoreTables(context, data.tables));
  else page.append(el("section", {}, el("p", { class: "note" }, "No run here has exactly the settings of a preset to the end, so none is set beside the paper's tables.")));

  if (data.runtime) page.append(el("section", { id: "runtime" }, el("header", {}, el("h2", {}, "Runtime")), runtimeChart(context, data.runtime).node));

  const panel = el("div", {});
  if (data.experiments.length > 1) {
    const tabs = el("div", { class: "bar tabs", role: "group", "aria-label": "Experiment" }, data.experiments.map((experiment) =>
      el("button", { type: "button", "aria-pressed": "false", "data-preset": experiment.preset, onclick: () => open(experiment) }, experiment.preset)));
    page.append(el("section", { id: "experiments" }, el("header", {}, el("h2", {}, "Experiments")), tabs));
  }
  page.append(panel);

  function open(experiment) {
    for (const tab of page.querySelectorAll(".tabs button")) tab.setAttribute("aria-pressed", tab.dataset.preset === experiment.preset);
    const runs = data.runs.filter((run) => run.preset === experiment.preset);
    const own = [...new Set(runs.map((run) => run.model))];
    const dots = runs.some((run) => Object.keys(run.test).length) ? new DotPlot(context, runs, experiment) : null;
    const charts = [dots, learningCurves(context, runs), calibrationChart(context, runs, experiment), gapChart(context, runs, experiment), gainChart(context, runs, experiment)].filter(Boolean);
    const browser = experiment.series.length ? new SeriesBrowser(context, runs, experiment) : null;
    const diagnosed = experiment.diagnosed ? `Calibration, error by gap and gain are of the first ${experiment.diagnosed} test series.` : "";
    panel.replaceChildren(
      el("section", {}, el("header", {}, el("h2", {}, experiment.preset), el("p", { class: "soft" }, experiment.about, experiment.about ? ". " : "", diagnosed)),
        own.length > 1 ? models.legend(own) : null,
        el("div", { class: "grid" }, charts.map((chart) => chart.node)),
        experiment.notes.map((note) => el("p", { class: "note" }, note))),
      ...(browser ? [browser.node] : []),
      el("section", { id: "runs" }, el("header", {}, el("h2", {}, "What was run")), runTable(context, runs), details("All settings", () => settings(runs))));
    const draw = () => { for (const chart of charts) chart.draw(); if (browser) browser.draw(); };
    models.listeners = [draw];
    draw();
  }

  /** A label for each run. Equal labels of an experiment get the settings that differ. */
  function distinct(runs, short) {
    const groups = new Map(), found = new Map();
    for (const run of runs) {
      const key = JSON.stringify([run.preset, short(run)]);
      groups.set(key, [...(groups.get(key) || []), run]);
    }
    for (const group of groups.values()) {
      const each = group.map((run) => new Map(flat(run.settings))), labels = [];
      group.forEach((run, k) => {
        const differs = [...each[k]].filter(([key, value]) => value !== "null" && each.some((other) => other.get(key) !== value));
        labels.push([short(run), ...differs.slice(0, 3).map(([key, value]) => `${key.split(".").at(-1)} ${value.replace(/^"|"$/g, "")}`)].join(", "));
        const count = labels.filter((label) => label === labels[k]).length;
        found.set(run.id, count > 1 ? `${labels[k]}, run ${count}` : labels[k]);
      });
    }
    return found;
  }

  function facts(run) {
    const known = [...Object.keys(METRICS).filter((name) => name in run.test).map((name) => [`test ${METRICS[name]}`, UNITS[name] ? show(run.test[name]) : percent(run.test[name])]),
      ["best epoch", !run.best_epoch ? "–" : `${run.best_epoch} of ${run.epochs}`], ["parameters", whole(run.parameters)], ["s / epoch", show(run.seconds, 3)]];
    return el("dl", { class: "facts" }, known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  function settings(runs) {
    const each = runs.map((run) => new Map(flat({ ...run.settings, versions: run.versions, series: run.series, device: run.device })));
    const keys = [...new Set(each.flatMap((map) => [...map.keys()]))];
    return table(["setting", ...runs.map(context.label)], keys.map((key) => [key, ...each.map((map) => (map.get(key) ?? ""))]), { tall: true, label: "Settings" });
  }

  open(data.experiments[0]);
  document.documentElement.dataset.drawn = "true";
})();
