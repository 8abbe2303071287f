"use strict";
// Convert data to pixels and back.

function scale(domain, range, log = false, whole = false) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = domain.map(f);
  const factor = (range[1] - range[0]) / (b - a || 1);
  const map = (value) => range[0] + (f(value) - a) * factor;
  const invert = (pixel) => { const v = a + (pixel - range[0]) / factor; return log ? 10 ** v : v; };
  const length = Math.abs(range[1] - range[0]), apart = range[1] < range[0] ? 20 : 40; // a number is wider than high
  const linear = () => linearTicks(domain, Math.max(2, Math.round(length / (1.7 * apart)))).filter((tick) => !whole || Number.isInteger(tick));
  return { map, invert, domain, log, ticks: log ? logTicks(domain, length, apart) : linear() };
}

function linearTicks([low, high], wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

/** Round numbers on a logarithmic axis of `length` pixels, at least `apart` from one another. */
function logTicks([low, high], length, apart) {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), pixels = length / Math.log10(high / low);
  for (const steps of [[1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let p = from; p <= to; p++) for (const s of steps) ticks.push(Number((s * 10 ** p).toPrecision(12)));
    const inside = ticks.filter((t) => t >= low * 0.9999 && t <= high * 1.0001);
    const closest = Math.min(...inside.slice(1).map((t, k) => Math.log10(t / inside[k]) * pixels));
    if (inside.length > 1 && closest >= apart) return inside;
  }
  return linearTicks([low, high], Math.max(2, Math.round(length / apart / 2)));
}

/** The range of numbers with a margin, or null without numbers. */
function extent(values, { log = false, zero = false, pad = 0.05 } = {}) {
  const range = limits(log ? values.filter((v) => v > 0) : values);
  if (!range) return null;
  let [low, high] = range;
  if (zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  if (log) { const f = (high / low) ** pad || 1.1; return low === high ? [low / 2, high * 2] : [low / f, high * f]; }
  const margin = (high - low) * pad || Math.abs(high) * 0.1 || 1;
  return [zero && low === 0 ? 0 : low - margin, high + margin];
}

/** The smallest and the largest number, or null without numbers. */
function limits(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v === null || !Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return low > high ? null : [low, high];
}

/** Find the index of the value in `sorted` that is nearest to `value`. */
function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (sorted[middle] < value) low = middle; else high = middle; }
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
}
