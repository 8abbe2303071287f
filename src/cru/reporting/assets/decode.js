"use strict";
// Decode a series. Numbers are base64 texts of 16-bit or 32-bit arrays; cru/reporting/view_page.py encodes them.

function bytes(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) found[k] = raw.charCodeAt(k);
  return found;
}

const ticksOf = (text, { first, tick }) => Array.from(new Uint32Array(bytes(text).buffer), (count) => first + count * tick);

function observations({ low, step, code }) {
  const { buffer } = bytes(code);
  return step === undefined ? Array.from(new Float32Array(buffer), Number) : Array.from(new Uint16Array(buffer), (part) => low + part * step);
}

/** Curves of `points` points each. The part `missing` means no value. */
function curvesOf({ low, step, code }, points, missing) {
  const parts = Array.from(new Uint16Array(bytes(code).buffer), (part) => (part === missing ? null : low + part * step)), found = [];
  for (let k = 0; k < parts.length; k += points) found.push(parts.slice(k, k + points));
  return found;
}

/** The details of a series: times, points and variables with observations, mean, bands, components and anomalies. */
function decode(page, { data }) {
  const times = ticksOf(data.times, page), points = ticksOf(data.points, page);
  const variables = data.variables.map((one) => {
    const at = one.at === null ? times.map((_, k) => k) : Array.from(new (one.wide ? Uint32Array : Uint16Array)(bytes(one.at).buffer));
    const [mean, ...bounds] = curvesOf(one.curves, points.length, page.missing), gaps = ticksOf(one.gaps, page);
    return {
      variable: one.variable, name: page.names[one.variable],
      x: at.map((k) => times[k]), y: observations(one.values), mean,
      bands: page.levels.map((level, k) => ({ level, low: bounds[2 * k], high: bounds[2 * k + 1] })),
      gaps: Array.from({ length: gaps.length / 2 }, (_, k) => [gaps[2 * k], gaps[2 * k + 1]]),
      components: one.components.map((component) => ({ name: component.name, y: curvesOf(component, points.length, page.missing)[0] })),
      anomalies: one.anomalies, filled: filled(times, at, points, mean),
    };
  });
  return { times, points, last: data.last, variables };
}

/** The times at which a row of the table has no value of this variable, with the mean of the model there. */
function filled(times, at, points, mean) {
  const observed = new Set(at), place = new Map(points.map((time, k) => [time, k])), x = [], y = [];
  times.forEach((time, k) => { if (!observed.has(k) && place.has(time)) { x.push(time); y.push(mean[place.get(time)]); } });
  return { x, y };
}
