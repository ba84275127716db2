// A line plot over time: SVG that fits its width, with values under the pointer and, by arrow keys, for everyone.

import { h, svg } from "./dom.js";

const HEIGHT = 150;
const [LEFT, RIGHT, TOP, BOTTOM] = [54, 8, 10, 22];

export class Plot {
  // series: {name, of(point), form(value)} each, at most two. ceiling: of the y axis, else from the values.
  // isBinary: the values are bytes. isOptional: it is hidden as long as there is no value.
  constructor({ title, note, series, ceiling = null, least = 1, isBinary = false, isOptional = false }) {
    Object.assign(this, { _title: title, _ceiling: ceiling, _least: least, _isBinary: isBinary, _isOptional: isOptional });
    this._series = series.map((each) => ({ ...each, of: (point) => each.of(point) ?? null }));
    this._points = [];
    this._span = 300;
    this._selected = null; // index of the point whose values are shown
    this._svg = svg("svg", { class: "plot", role: "img", tabindex: "0", height: HEIGHT });
    this._readout = h("p", { class: "readout" });
    this.element = h("figure", { class: "card" },
      h("figcaption", {}, h("span", { class: "plot-title" }, title), h("span", { class: "plot-note" }, note)),
      this._readout, this._svg);
    this._svg.addEventListener("pointermove", (event) => this._select(this._nearest(event.offsetX)));
    this._svg.addEventListener("pointerleave", () => this._select(null));
    this._svg.addEventListener("blur", () => this._select(null));
    this._svg.addEventListener("keydown", (event) => this._move(event));
    new ResizeObserver(() => this._draw()).observe(this._svg);
  }

  // points: in order of time, `at` in seconds; one without values interrupts the line. span: seconds that are shown, up
  // to the last point, whether there are points for all of them or not.
  show(points, span) {
    const last = points.at(-1)?.at ?? 0;
    const shown = points.filter((point) => point.at >= last - span);
    if (this._selected !== null) {
      const at = this._points[this._selected]?.at;
      const found = shown.findIndex((point) => point.at === at);
      this._selected = found < 0 ? null : found;
    }
    this._points = shown;
    this._span = span;
    this.element.hidden = this._isOptional && !points.some((point) => this._series.some(({ of }) => of(point) !== null));
    this._draw();
  }

  _move(event) {
    const last = this._points.length - 1;
    const from = this._selected ?? last;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this._readout.setAttribute("aria-live", "polite");
    this._select(Math.min(last, Math.max(0, to)));
  }

  _nearest(x) {
    const distances = this._points.map((point) => Math.abs(this._x(point.at) - x));
    return distances.length ? distances.indexOf(Math.min(...distances)) : null;
  }

  _select(index) {
    if (index === null) this._readout.removeAttribute("aria-live");
    if (this._selected === index) return;
    this._selected = index;
    this._draw();
  }

  _x(at) {
    const end = this._points.at(-1)?.at ?? 0;
    return LEFT + (1 - (end - at) / this._span) * (this._width - LEFT - RIGHT);
  }

  _y(value) {
    return TOP + (1 - value / this._top) * (HEIGHT - TOP - BOTTOM);
  }

  _draw() {
    this._width = Math.max(200, this._svg.clientWidth || 0);
    const values = this._points.flatMap((point) => this._series.map(({ of }) => of(point))).filter((value) => value !== null);
    const half = Math.max(this._least, ...values) / 2;
    const step = this._ceiling ? this._ceiling / 2 : this._isBinary ? 2 ** Math.ceil(Math.log2(half)) : niceStep(half);
    this._top = step * 2;
    const end = this._points.at(-1)?.at ?? 0;
    this._svg.setAttribute("viewBox", `0 0 ${this._width} ${HEIGHT}`);
    this._svg.replaceChildren(
      ...[0, step, this._top].flatMap((value) => this._gridLine(value)),
      ...[1, 0.5, 0].map((share) => svg("text", { class: "tick", y: HEIGHT - 6, x: this._x(end - share * this._span),
        "text-anchor": share === 1 ? "start" : share ? "middle" : "end" }, share ? ago(share * this._span) : "now")),
      ...this._series.flatMap((each, index) => this._line(each, index)),
      ...this._marks(),
    );
    this._describe();
  }

  _gridLine(value) {
    const y = this._y(value);
    return [
      svg("line", { class: "grid-line", x1: LEFT, x2: this._width - RIGHT, y1: y, y2: y }),
      svg("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, this._series[0].form(value)),
    ];
  }

  _line({ of }, index) {
    const values = this._points.map(of);
    const has = (at) => (values[at] ?? null) !== null;
    const places = values.map((value, at) => has(at) && [this._x(this._points[at].at), this._y(Math.min(value, this._top))]);
    const path = places.map((place, at) => place && `${has(at - 1) ? "L" : "M"}${place.map((each) => each.toFixed(1)).join(" ")}`);
    const alone = places.filter((place, at) => place && !has(at - 1) && !has(at + 1));
    return [svg("path", { class: `line line-${index}`, d: path.filter(Boolean).join("") }),
      ...alone.map(([cx, cy]) => svg("circle", { class: `dot dot-${index}`, cx, cy, r: 2.5 }))];
  }

  _marks() {
    const point = this._points[this._selected];
    if (!point) return [];
    const x = this._x(point.at);
    const dots = this._series.map(({ of }, index) => {
      const value = of(point);
      return value === null ? null : svg("circle", { class: `dot dot-${index}`, cx: x, cy: this._y(Math.min(value, this._top)), r: 4 });
    });
    return [svg("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }), ...dots.filter(Boolean)];
  }

  _describe() {
    const chosen = this._points[this._selected];
    const point = chosen ?? this._points.at(-1);
    const end = this._points.at(-1)?.at ?? 0;
    const texts = this._series.map(({ name, of, form }, index) => {
      const value = point ? of(point) : null;
      return h("span", { class: `value value-${index}` }, h("b", {}, value === null ? "–" : form(value)), ` ${name}`);
    });
    if (chosen) texts.push(h("span", { class: "when" }, end === chosen.at ? "now" : `${ago(end - chosen.at)} ago`));
    this._readout.replaceChildren(...texts);
    this._svg.setAttribute("aria-label", this._summary());
  }

  _summary() {
    const parts = this._series.map(({ name, of, form }) => {
      const values = this._points.map(of).filter((value) => value !== null);
      if (!values.length) return `${name}: no values yet`;
      return `${name}: ${form(values.at(-1))} now, ${form(Math.min(...values))} to ${form(Math.max(...values))}`;
    });
    return `${this._title}, last ${ago(this._span)}. ${parts.join(". ")}. Arrow keys show single values.`;
  }
}

function ago(seconds) {
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Number((seconds / 60).toFixed(1))} min`;
}

// 1, 2 or 5 times a power of ten, at least `least`.
export function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999);
}
