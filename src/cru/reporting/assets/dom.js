"use strict";
// Create elements. Text from data becomes a text node or an attribute, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Set attributes and listeners of a node, and append its children. */
function setContent(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // the page's policy forbids the attribute
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const el = (tag, attributes, ...children) => setContent(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => setContent(document.createElementNS(SVG, tag), attributes, children);

/** Format a number with four significant digits, without an exponent if it stays readable. */
function show(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`.replace("-", "−");
  }
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-GB"));
const percent = (v) => `${Number((100 * v).toPrecision(4))} %`;
const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");

/** Make a table. `head` and each row are lists of texts. The first column names the row. */
function table(head, rows, options = {}) {
  const cell = (text, k) => el(k === 0 ? "th" : "td", { scope: k === 0 ? "row" : null, class: options.text?.includes(k) ? "text" : null }, text);
  return el("div", { class: options.tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-label": options.label || "table" },
    el("table", { class: options.prose ? "prose" : null },
      options.caption ? el("caption", {}, options.caption) : null,
      el("thead", {}, el("tr", {}, head.map((text, k) => el("th", { scope: "col", class: options.text?.includes(k) ? "text" : null }, text)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}

/** Make the table when it is opened, because most are never opened. */
function details(summary, make) {
  const box = el("details", {}, el("summary", {}, summary));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(make()); });
  return box;
}

function choice(label, options, value, pick) {
  const list = el("select", { onchange: () => pick(list.value) },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", {}, label, list);
}
