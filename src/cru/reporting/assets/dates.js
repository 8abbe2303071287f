"use strict";
// Times of the table: numbers, or dates that are counted in a unit since an origin.

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR, MONTH = 30.44 * DAY, YEAR = 365.25 * DAY;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DATE_STEPS = [SECOND, 2 * SECOND, 5 * SECOND, 15 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY]; // longer steps are months and years
const MONTH_STEPS = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000];
const LENGTHS = [["year", YEAR], ["day", DAY], ["hour", HOUR], ["minute", MINUTE], ["second", SECOND], ["millisecond", 1], ["microsecond", 1e-3]];

const two = (n) => String(n).padStart(2, "0");

class TimeFormat {
  constructor({ kind, origin, unit, zone }) {
    Object.assign(this, { kind, origin, unit, zone: zone || null, dates: kind !== "number" });
    try { this.parts = zone && new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" }); }
    catch { this.zone = "UTC"; } // a browser may not know the zone
    if (this.dates) this.axis = (domain, pixels) => this.dateAxis(domain, pixels);
  }

  /** Milliseconds since 1970 in UTC. */
  moment(time) { return this.origin + time * this.unit; }

  /** Milliseconds to add to UTC for the local time of the zone. */
  offset(moment) {
    if (!this.parts) return 0;
    const found = Object.fromEntries(this.parts.formatToParts(moment).map(({ type, value }) => [type, Number(value)]));
    return Date.UTC(found.year, found.month - 1, found.day, found.hour, found.minute, found.second) - Math.floor(moment / SECOND) * SECOND;
  }

  /** A time as text. */
  format(time) {
    if (!this.dates) return show(time, 7);
    const exact = this.moment(time), fine = this.unit < SECOND, moment = fine ? Math.round(exact) : Math.round(exact / SECOND) * SECOND;
    const local = new Date(moment + this.offset(moment));
    const date = `${String(local.getUTCFullYear()).padStart(4, "0")}-${two(local.getUTCMonth() + 1)}-${two(local.getUTCDate())}`;
    const [hours, minutes, seconds, rest] = [local.getUTCHours(), local.getUTCMinutes(), local.getUTCSeconds(), local.getUTCMilliseconds()];
    if (this.unit >= DAY && !hours && !minutes && !seconds) return date;
    return `${date} ${two(hours)}:${two(minutes)}${seconds || rest || fine ? `:${two(seconds)}` : ""}${rest ? `.${String(rest).padStart(3, "0")}` : ""}`;
  }

  /** A length of time as text, in the largest unit of which there is at least one. Years begin at two. */
  length(time) {
    if (time === null || time === undefined) return "–";
    if (!this.dates) return show(time, 3);
    const size = time * this.unit, [name, unit] = LENGTHS.find(([name, unit]) => size >= (name === "year" ? 2 : 0.995) * unit) || LENGTHS.at(-1), count = show(size / unit, 3);
    return `${count} ${name}${count === "1" ? "" : "s"}`;
  }

  /** Ticks at round dates, with labels that name the larger unit where it changes. */
  dateAxis([low, high], pixels) {
    const offset = this.offset(this.moment((low + high) / 2));
    const [from, to] = [low, high].map((time) => this.moment(time) + offset), least = (to - from) / Math.max(2, Math.floor(pixels / 76));
    const step = DATE_STEPS.find((one) => one >= least), locals = [];
    let label;
    if (least < SECOND) { // shorter than any round date
      for (const tick of linearTicks([from % SECOND, from % SECOND + to - from], pixels / 76)) locals.push(tick + from - (from % SECOND));
      label = (date) => `${two(date.getUTCSeconds())}.${String(date.getUTCMilliseconds()).padStart(3, "0")}`;
    } else if (step) {
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) locals.push(at);
      const day = (date) => `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
      label = (date) => {
        if (step >= DAY) return date.getUTCMonth() === 0 && date.getUTCDate() <= step / DAY ? `${day(date)} ${date.getUTCFullYear()}` : day(date);
        return date.getTime() % DAY === 0 ? day(date) : `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}${step < MINUTE ? `:${two(date.getUTCSeconds())}` : ""}`;
      };
    } else {
      const months = MONTH_STEPS.find((count) => count * MONTH >= least) || MONTH_STEPS.at(-1), first = new Date(from);
      for (let count = Math.ceil((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months; ; count += months) {
        const at = new Date(0);
        at.setUTCFullYear(Math.floor(count / 12), count % 12, 1); // Date.UTC has other years below 100
        if (at.getTime() > to) break;
        if (at.getTime() >= from) locals.push(at.getTime());
      }
      label = (date) => (date.getUTCMonth() === 0 ? String(date.getUTCFullYear()) : MONTHS[date.getUTCMonth()]);
    }
    const texts = new Map(locals.map((at) => [(at - offset - this.origin) / this.unit, label(new Date(at))]));
    return { ticks: [...texts.keys()], format: (tick) => texts.get(tick) };
  }

  /** The name of the axis, with the dates that it shows. */
  label(name, [low, high]) {
    if (!this.dates) return name;
    const [from, to] = [low, high].map((time) => this.format(time).slice(0, 10));
    return `${name}${this.zone ? ` in ${this.zone}` : ""}, ${from === to ? from : `${from} to ${to}`}`;
  }
}
