"use strict";
// How good the model is: errors next to the naive models, calibration, coverage by lead time, and where the model loses.

const OTHERS = ["variable", "lead", "count", "better"]; // columns that are no model
const NOISE = { no: ", by more than noise", unclear: ", within noise" }; // whether the difference to the best naive model is certain
const LOST = 1; // a naive model wins if its error is below this part of the model's
const COLORS = [1, 2, 3, 4, 5, 6, 7].map((k) => `var(--line-${k})`);

/** The best naive model of a row of scores. */
function bestNaive(row, page) {
  const naive = Object.keys(row).filter((name) => page.naive.includes(name) && row[name] !== null);
  return naive.length ? naive.reduce((a, b) => (row[b] < row[a] ? b : a)) : null;
}

function loses(row, page) {
  const best = bestNaive(row, page);
  return best !== null && row[best] < LOST * row.model;
}

/** Name a range of lead times in the units of the table. */
function leadName(lead, page, timeFormat) {
  const gaps = /^up to (\d+) gaps$/.exec(lead);
  return gaps ? `${lead} (${timeFormat.length(Number(gaps[1]) * page.gap)})` : lead;
}

function scoresTable(page, timeFormat) {
  const rows = page.scores.table, models = Object.keys(rows[0]).filter((name) => !OTHERS.includes(name));
  const cell = (row, name) => {
    const best = Math.min(...models.map((one) => row[one]).filter((v) => v !== null)), text = row[name] === null ? "–" : fixed(row[name], 3);
    return el("td", { class: row[name] === best ? "best" : null }, text, name === "model" && loses(row, page) ? el("span", { class: "mark-worse", title: "a naive model is better" }, " ▼") : null);
  };
  let last = null;
  const caption = "Mean absolute error on withheld values, in standard deviations of the variable. Bold: the best. ▼: a naive model is better.";
  const scores = el("div", { class: "scroll tall high", tabindex: 0, role: "region", "aria-label": "Scores" }, el("table", { id: "score-table", "aria-labelledby": "score-caption" },
    el("thead", {}, el("tr", {}, ["variable", "lead time", "values", ...models].map((name, k) => el("th", { scope: "col", class: k === 1 ? "text" : null }, name)))),
    el("tbody", {}, rows.map((row) => {
      const first = row.variable !== last;
      last = row.variable;
      return el("tr", { class: first ? "first" : null }, el("th", { scope: "row" }, short(row.variable)), el("td", { class: "text" }, leadName(row.lead, page, timeFormat)), el("td", {}, whole(row.count)), models.map((name) => cell(row, name)));
    }))));
  return el("div", {}, el("p", { class: "caption", id: "score-caption" }, caption), scores); // outside of the table, which is wider than a phone
}

/** Sentences: in how many rows the model wins, and each row in which it loses, the largest loss first. */
function lossList(page, timeFormat) {
  const best = (row) => bestNaive(row, page), rows = page.scores.table.filter((row) => best(row) !== null);
  const lost = rows.filter((row) => loses(row, page)).sort((a, b) => a[best(a)] / a.model - b[best(b)] / b.model);
  const sentence = (row) => { const naive = best(row); return el("li", {}, el("b", {}, short(row.variable)), `, ${leadName(row.lead, page, timeFormat)}: ${naive} has ${fixed(row[naive], 3)}, the model ${fixed(row.model, 3)} (${whole(row.count)} values${NOISE[row.better] ?? ""}).`); };
  const head = lost.length ? `A naive model is better in ${lost.length} of ${rows.length} rows.` : `No naive model is better in any of ${rows.length} rows.`;
  const items = lost.map(sentence);
  return el("div", { id: "losses" }, el("h3", {}, "Where the model loses"), el("p", {}, head), items.length ? el("ul", {}, items.slice(0, 6)) : null,
    items.length > 6 ? details(`${items.length - 6} more`, () => el("ul", {}, items.slice(6))) : null);
}

/** An axis of the ranges of lead times. */
function leadAxis(leads, page, timeFormat) {
  const tick = (lead) => lead.replace(/^up to (\d+) gaps$/, (_, gaps) => `≤ ${timeFormat.dates ? timeFormat.length(Number(gaps) * page.gap) : `${gaps} gaps`}`).replace("nothing observed", "nothing").replace("same time", "same");
  return { label: "time to the nearest observation that the model sees", name: "", domain: [-0.4, leads.length - 0.6], format: (k) => leadName(leads[k], page, timeFormat),
    axis: () => ({ ticks: leads.map((_, k) => k), format: (k) => tick(leads[k]) }) };
}

function calibrationCurve(page) {
  const rows = page.scores.coverage, leads = [...new Set(rows.map((row) => row.lead))];
  const line = (lead, k) => { const own = rows.filter((row) => row.lead === lead); return { name: lead === "all" ? "all lead times" : lead, color: lead === "all" ? BLUE : COLORS[(k - 1) % COLORS.length], width: lead === "all" ? 2.2 : 1, x: own.map((row) => row.level / 100), y: own.map((row) => row.coverage), dots: lead === "all" }; };
  return new Chart({
    title: "Calibration", height: 300, x: { label: "level of the interval", name: "level", format: percent, domain: [0, 1] }, y: { label: "withheld values inside", format: percent, show: percent, domain: [0, 1] },
    under: (sx, sy) => [svg("line", { class: "soft-line", x1: sx.map(0), y1: sy.map(0), x2: sx.map(1), y2: sy.map(1) })], lines: () => leads.map(line).reverse(),
  });
}

function coverageByLead(page, timeFormat) {
  const rows = page.scores.coverage.filter((row) => row.lead !== "all"), leads = [...new Set(rows.map((row) => row.lead))], levels = [50, 80, 90, 95];
  const share = (lead, level) => rows.find((row) => row.lead === lead && row.level === level)?.coverage ?? null;
  return new Chart({
    title: "Coverage by lead time", height: 300, x: leadAxis(leads, page, timeFormat), y: { label: "withheld values inside", format: percent, show: percent, domain: [0, 1] },
    under: (sx, sy, box) => levels.map((level) => svg("line", { class: "cursor", x1: box.left, x2: box.right, y1: sy.map(level / 100), y2: sy.map(level / 100) })),
    lines: () => levels.map((level, k) => ({ name: `${level} % interval`, color: level === 90 ? BLUE : COLORS[k], x: leads.map((_, n) => n), y: leads.map((lead) => share(lead, level)), dots: true })),
  });
}

/** The error of every model by lead time, for one variable or the mean of all. */
function errorByLead(page, timeFormat) {
  const rows = page.scores.table, leads = [...new Set(rows.map((row) => row.lead))], variables = [...new Set(rows.map((row) => row.variable))];
  const models = Object.keys(rows[0]).filter((name) => !OTHERS.includes(name));
  let variable = "";
  const mean = (lead, model) => {
    const own = rows.filter((row) => row.lead === lead && (!variable || row.variable === variable) && row[model] !== null), count = own.reduce((sum, row) => sum + row.count, 0);
    return count ? own.reduce((sum, row) => sum + row.count * row[model], 0) / count : null;
  };
  const chart = new Chart({
    title: "Error by lead time", height: 300, wide: true, x: leadAxis(leads, page, timeFormat), y: { label: "mean absolute error [std]", zero: true },
    lines: () => [...models].reverse().map((model) => { const k = models.indexOf(model); return { name: model, color: model === "model" ? BLUE : COLORS[(k - 1) % COLORS.length], width: model === "model" ? 2.4 : 1.1, dash: page.naive.includes(model) ? [4, 3] : [], dots: model === "model", x: leads.map((_, n) => n), y: leads.map((lead) => mean(lead, model)) }; }),
    controls: variables.length > 1 ? choice("Variable", [["", "all"], ...variables.map((name) => [name, short(name)])], "", (name) => { variable = name; chart.draw(); }) : null,
  });
  return chart;
}

/** The section with all of them, and its charts. */
function quality(page, timeFormat) {
  const { scores } = page, charts = [], parts = [];
  if (scores.table.length) charts.push(errorByLead(page, timeFormat));
  if (scores.coverage.length) charts.push(calibrationCurve(page), coverageByLead(page, timeFormat));
  if (charts.length) parts.push(el("div", { class: "grid" }, charts.map((chart) => el("div", { class: chart.options.wide ? "wide" : null }, chart.node, legendOf(chart)))));
  if (scores.table.length) parts.push(lossList(page, timeFormat), scoresTable(page, timeFormat));
  if (!parts.length) parts.push(el("p", { class: "note" }, "There were too few withheld values for scores by variable and lead time."));
  const about = "During training, the model did not see some values. These charts compare its predictions with them, next to the naive models on the same values.";
  return { charts, node: el("section", { id: "quality" }, el("header", {}, el("h2", {}, "How good the model is"), el("p", { class: "soft small" }, about)), el("div", { class: "tables" }, parts)) };
}

function legendOf(chart) {
  return el("p", { class: "key small soft" }, [...chart.options.lines()].reverse().map((line) => el("span", {}, swatch(line), line.name)));
}
